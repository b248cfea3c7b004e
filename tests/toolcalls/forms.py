"""
Families' formats as engines use them: what a prompt says, and what a model writes.

`FORMS` has each family twice: with control tokens under spellings that no text has, as
the own engine reads them, and as the plain characters that an upstream server sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ofa.chat import ToolCall
from ofa.toolcalls.base import Format, Found, Markup, Piece, plain
from ofa.toolcalls.functiongemma import FunctionGemma
from ofa.toolcalls.gemma4 import Gemma4
from ofa.toolcalls.generic import Generic
from ofa.toolcalls.hermes import Hermes

_TOKEN = re.compile(r'<\|"\|>|<\|[a-z_]+>|<[a-z_]+\|>|</?[a-z_]+>')


def hidden(token: str) -> str:
    """Return the spelling of a control token that no author can write."""
    return f"\ue000{token[1:-1]}\ue001"


@dataclass(frozen=True)
class Form:
    """A family's format, and how its control tokens are spelled."""

    format: Format
    mark: Callable[[str], str] | None = None  # None: as the characters they are

    def said(self, markup: Markup) -> str:
        """Return *markup* as the text that a model's own tokens would be read as."""
        return "".join(map(self._piece, markup))

    def _piece(self, piece: Piece) -> str:
        if not piece.ours or self.mark is None:
            return piece.text
        mark = self.mark
        return _TOKEN.sub(lambda match: mark(match[0]), piece.text)

    def opens(self, text: str, at: int) -> str:
        """Return the shortest opener that stands at *at*; empty if none does."""
        fitting = [o for o in self.format.openers if text.startswith(o, at)]
        return min(fitting, key=len, default="")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the calls of *text* stand, which holds nothing but calls."""
        found = []
        at = 0
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            assert self.opens(text, at), f"no call at {at}: {text[at : at + 40]!r}"
            length = self.format.length(text[at:])
            assert length, f"a call that is {length} long: {text[at:]!r}"
            found.append((at, at + length))
            at += length
        return found

    def read(self, text: str) -> list[Found]:
        """Return the calls of *text*, which holds nothing but calls."""
        spans = self.spans(text)
        return [one for a, b in spans for one in self.format.read(text[a:b])]

    def check_cuts(self, text: str) -> None:
        """Assert that each call is known to end at its last character, not before."""
        for start, end in self.spans(text):
            first = start + len(self.opens(text, start))
            for cut in range(first, end):
                early = self.format.length(text[start:cut])
                assert early is None, f"{early} at {text[start:cut]!r}"
            assert self.format.length(text[start:end]) == end - start


FORMS = {
    "gemma4": Form(Gemma4(hidden), hidden),
    "functiongemma": Form(FunctionGemma(hidden), hidden),
    "hermes": Form(Hermes(hidden), hidden),
    "hermes-plain": Form(Hermes(str)),
    "generic": Form(Generic()),
}
FAMILIES = ("gemma4", "functiongemma", "hermes", "generic")
# Where quotes of strings are control tokens, plain text can't hold them as text.
PLAIN_FORMS = {
    "gemma4-plain": Form(Gemma4(str)),
    "functiongemma-plain": Form(FunctionGemma(str)),
}


def call(name: str, arguments: dict[str, Any], number: int = 0) -> ToolCall:
    """Return a call with an id of the usual form."""
    return ToolCall(f"call_{number:024x}", name, arguments)


def check_same(found: Sequence[Found], calls: Sequence[ToolCall]) -> None:
    """Assert that *found* are *calls*: names, values, their types, nothing mended."""
    assert [one.name for one in found] == [one.name for one in calls]
    for one, wanted in zip(found, calls, strict=True):
        assert typed(one.arguments) == typed(wanted.arguments)
        assert not one.repairs


def typed(value: Any) -> Any:
    """Return *value* so that 1, 1.0 and True differ, and the order of keys does not."""
    if isinstance(value, dict):
        return {name: typed(one) for name, one in value.items()}
    if isinstance(value, list):
        return [typed(one) for one in value]
    return type(value).__name__, repr(value)


def told(form: Form, tools: Sequence[Any]) -> str:
    """Return what a model is told of *tools*, as text."""
    return plain(form.format.declare(tools))
