"""
The tool format that Gemma's tool-trained models share, whatever their tokens are.

Knows which tokens stand around what, and where a call ends in a growing text; values
and schemas are `dsl_writer`'s, the grammar `dsl_parser`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal

from ..chat import Tool, ToolCall
from .base import Found, Mark, Markup, Unreadable
from .dsl_parser import parse_calls
from .dsl_writer import Writer, write_declaration
from .schema import canonical

LIMIT = 256 * 1024  # characters of a call block; no honest call comes near


@dataclass(frozen=True)
class Tokens:
    """The control tokens of one model line, as its vocabulary spells them."""

    declare: str
    declared: str
    call: str
    called: str
    answer: str
    answered: str
    quote: str  # on both sides of a string


class Dsl:
    """A `Format`; a model line gives its *name* and *tokens*."""

    name: str
    tokens: Tokens
    results_in: Literal["user", "assistant"] = "assistant"

    def __init__(self, mark: Mark) -> None:
        """Read texts in which control tokens are spelled by *mark*."""
        tokens = self.tokens
        self._open, self._close = mark(tokens.call), mark(tokens.called)
        self._quote = mark(tokens.quote)
        self._spelled = {mark(token): token for token in astuple(tokens)}
        self._any = re.compile("|".join(map(re.escape, self._spelled)))
        stops = re.escape(self._close[0])
        self._head = re.compile(rf"\s*(?:call:\s*)?[^\s{{}}{stops}]{{0,256}}\s*")

    @property
    def openers(self) -> tuple[str, ...]:
        """What a call may begin with."""
        return (self._open,)

    def declare(self, tools: Sequence[Tool]) -> Markup:
        """Return what tells a model of *tools*, sorted: the same for any order."""
        writer = Writer(self.tokens.quote)
        for tool in canonical(tools):
            writer.ours(self.tokens.declare)
            write_declaration(writer, tool)
            writer.ours(self.tokens.declared)
        return writer.markup()

    def calls(self, calls: Sequence[ToolCall]) -> Markup:
        """Return past *calls* as the model writes them."""
        writer = Writer(self.tokens.quote)
        for call in calls:
            writer.ours(f"{self.tokens.call}call:")
            writer.theirs(call.name)
            writer.value(call.arguments)
            writer.ours(self.tokens.called)
        return writer.markup()

    def results(self, results: Sequence[tuple[str, str]]) -> Markup:
        """Return (tool's name, text) pairs; they stand in the assistant's turn."""
        writer = Writer(self.tokens.quote)
        for name, text in results:
            writer.ours(f"{self.tokens.answer}response:")
            writer.theirs(name)
            writer.value({"value": text})
            writer.ours(self.tokens.answered)
        return writer.markup()

    def length(self, text: str) -> int | None:
        """
        Return how long the call is that *text* begins with; None while it may grow.

        Called after every token, so the usual answer must be cheap: while the closing
        token is nowhere, one substring search in C says so, and nothing is parsed. A
        call over `LIMIT` is cut there, and then unreadable.
        """
        opens = self._opens(text)
        if opens is False:
            return 0
        end = self._end(text) if opens else None
        if end is not None and end <= LIMIT:
            return end
        return LIMIT if len(text) > LIMIT else None

    def read(self, text: str) -> list[Found]:
        """
        Return the calls in *text*, several if the model wrote several in one.

        A model may stop without the closing token: what is whole without it is taken.
        """
        if len(text) >= LIMIT:
            raise Unreadable("the call is too long")
        body = text.removeprefix(self._open).removesuffix(self._close)
        found = parse_calls(body, self._quote, self._plain)
        if not text.endswith(self._close):
            found[-1] = replace(found[-1], repairs=(*found[-1].repairs, "closing"))
        return found

    def _opens(self, text: str) -> bool | None:
        """
        Return whether *text* goes on behind its opener as a call, None if it may yet.

        A model that explains its own syntax names the token and goes on in prose.
        """
        head = self._head.match(text, len(self._open))
        at = head.end() if head else len(self._open)
        rest = text[at : at + len(self._close)]
        if rest.startswith("{") or rest == self._close:
            return True
        return None if self._close.startswith(rest) else False

    def _end(self, text: str) -> int | None:
        """
        Return where the first closing token ends that stands in no string.

        In a string it is text, unless a new call opens before the string ends: then
        the string was never closed, and the call ended there, broken.
        """
        start = len(self._open)
        if text.find(self._close, start) < 0:
            return None
        in_string, doubtful = False, None
        for match in self._any.finditer(text, start):
            if match[0] == self._quote:
                in_string, doubtful = not in_string, None
            elif match[0] == self._close:
                if not in_string:
                    return match.end()
                doubtful = doubtful or match.end()
            elif match[0] == self._open and doubtful:
                return doubtful
        return None

    def _plain(self, text: str) -> str:
        """Return *text* with control tokens as the characters they are named by."""
        return self._any.sub(lambda match: self._spelled[match[0]], text)
