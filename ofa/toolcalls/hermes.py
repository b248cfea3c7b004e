"""
How Qwen and Hermes models are told of tools, and how they call them.

Declarations are JSON lines between <tools> tags, calls JSON objects in <tool_call>
tags, results <tool_response> blocks in the user's turn. Which of the tags are tokens
differs from model to model: as prompts they are spelled, read as *mark* has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from ..chat import Tool, ToolCall
from . import foreign, written
from .base import Found, Mark, Markup, Piece, Unreadable
from .schema import canonical
from .shown import schema

_BEFORE = """

# Tools

These functions are at your command, one a line:
<tools>
"""
_AFTER = """</tools>

Whenever one of them helps, call it: write its name and its arguments as JSON between \
<tool_call> tags, a pair of tags for each call.
<tool_call>
{"name": "the function's name", "arguments": {"parameter": "value"}}
</tool_call>"""

_BODY = re.compile(r"\s*(?:(?P<json>[{\[])|(?P<other><function=|```))")
_COULD = re.compile(r"\s*(?:<(?:f(?:u(?:n(?:c(?:t(?:i(?:on?)?)?)?)?)?)?)?|`{0,2})\Z")


class Hermes:
    """The form that Qwen 2.5, Qwen 3, Hermes and their descendants are trained on."""

    name = "hermes"
    results_in: Literal["user", "assistant"] = "user"

    def __init__(self, mark: Mark) -> None:
        self._open = mark("<tool_call>")
        self._close = mark("</tool_call>")
        self.openers: tuple[str, ...] = (self._open,)

    def declare(self, tools: Sequence[Tool]) -> Markup:
        """Return *tools* as JSON lines in order of name, and how to call one."""
        lines = [Piece(_declaration(tool), ours=False) for tool in canonical(tools)]
        return (Piece(_BEFORE), *lines, Piece(_AFTER)) if lines else ()

    def calls(self, calls: Sequence[ToolCall]) -> Markup:
        """Return *calls* as blocks, a line break between two."""
        blocks = [_block(call, first=not nth) for nth, call in enumerate(calls)]
        return tuple(piece for block in blocks for piece in block)

    def results(self, results: Sequence[tuple[str, str]]) -> Markup:
        """Return the texts as blocks; the form has no place for the tool's name."""
        pieces: list[Piece] = []
        for _, text in results:
            pieces.append(Piece(("\n" if pieces else "") + "<tool_response>\n"))
            pieces.append(Piece(text + "\n", ours=False))
            pieces.append(Piece("</tool_response>"))
        return tuple(pieces)

    def length(self, text: str) -> int | None:
        """Return where the closing tag outside of the JSON's strings ends."""
        start = len(self._open)
        body = _BODY.match(text, start)
        if body is None:
            rest = text[start:]
            return None if not rest.strip() or _COULD.match(rest) else 0
        start = body.start("json") if body["json"] else len(text)
        at = text.find(self._close, body.end())
        while at >= 0 and _holds(text, start, at):
            at = text.find(self._close, at + 1)
        return None if at < 0 else at + len(self._close)

    def read(self, text: str) -> list[Found]:
        """Return the calls in a block; the closing tag may lack at an answer's end."""
        return [
            replace(call, repairs=(*call.repairs, *slips))
            for body in self._bodies(text.removeprefix(self._open))
            for slips in [() if body.endswith(self._close) else ("unclosed",)]
            for call in _read(body.removesuffix(self._close))
        ]

    def _bodies(self, text: str) -> Iterator[str]:
        """Yield what stands behind each tag: a model may forget to close the first."""
        start = 0
        at = text.find(self._open)
        while at >= 0:
            if not written.in_string(text, start, at):
                yield text[start:at].strip()
                start = at + len(self._open)
            at = text.find(self._open, at + 1)
        yield text[start:].strip()


def _declaration(tool: Tool) -> str:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": schema(tool),
    }
    return written.dump({"type": "function", "function": function}) + "\n"


def _block(call: ToolCall, *, first: bool) -> Markup:
    body = written.dump({"name": call.name, "arguments": call.arguments})
    return (
        Piece("<tool_call>" if first else "\n<tool_call>"),
        Piece(f"\n{body}\n", ours=False),
        Piece("</tool_call>"),
    )


def _holds(text: str, start: int, place: int) -> bool:
    """
    Tell whether a string of the JSON from *start* holds *place*.

    A tag on a line of its own behind a bracket ends even a string that was never
    closed: strings of JSON have no line breaks.
    """
    if not written.in_string(text, start, place):
        return False
    before = text[start:place].rstrip(" \t")
    return not (before.endswith("\n") and before.rstrip().endswith(("}", "]")))


def _read(body: str) -> list[Found]:
    if not body.strip():
        raise Unreadable("there is no call in it")
    if body.lstrip().startswith("<function="):
        return foreign.function_tags(body)
    return written.read_calls(body)
