"""
How models without a tool format of their own are told of tools, and how they call.

Nothing here is a token: tools are signatures, calls and results fenced blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..chat import Tool, ToolCall
from . import signature, written
from .base import Found, Markup, Piece, Unreadable
from .schema import canonical

OPENER = "```tool_call"

_BEFORE = """

You have these tools. A question mark means that a parameter may be left out.
"""
_AFTER = """
To use a tool, answer with a block like this, filled in, and nothing after it:
```tool_call
{"name": "<name of the tool>", "arguments": {"<parameter>": <value>}}
```
You get its result in the next message. Answer in plain words where no tool helps."""

_HEAD = re.compile(r"[ \t]*\r?\n\s*(?=[{\[])")
_COULD = re.compile(r"[ \t]*(?:\r?\n\s*)?\Z")
_CLOSE = re.compile(r"\n[ \t]*```")


class Generic:
    """Blocks of JSON, which any model has seen often, with a tag of their own."""

    name = "generic"
    openers: tuple[str, ...] = (OPENER,)
    results_in: Literal["user", "assistant"] = "user"

    def declare(self, tools: Sequence[Tool]) -> Markup:
        """Return *tools* as signatures in order of name, and how to call one."""
        lines = [signature.render(tool) + "\n" for tool in canonical(tools)]
        if not lines:
            return ()
        return (Piece(_BEFORE), Piece("".join(lines), ours=False), Piece(_AFTER))

    def calls(self, calls: Sequence[ToolCall]) -> Markup:
        """Return *calls* as blocks, a line break between two."""
        return tuple(Piece(text, ours=False) for text in _blocks(calls))

    def results(self, results: Sequence[tuple[str, str]]) -> Markup:
        """Return the texts, each in a block that names the tool it came from."""
        blocks = [
            f"{fence}tool_result {name}\n{text}\n{fence}"
            for name, text in results
            for fence in [_fence(text)]
        ]
        return (Piece("\n".join(blocks), ours=False),) if blocks else ()

    def length(self, text: str) -> int | None:
        """Return where the fence behind the JSON, or outside of its strings, ends."""
        head = _HEAD.match(text, len(OPENER))
        if head is None:
            return None if _COULD.match(text, len(OPENER)) else 0
        for close in _CLOSE.finditer(text, head.end()):
            if not written.in_string(text, head.end(), close.start()):
                return close.end()
        return None

    def read(self, text: str) -> list[Found]:
        """Return the calls in a block; its last line may lack at an answer's end."""
        head = _HEAD.match(text, len(OPENER))
        if head is None:
            raise Unreadable("there is no JSON in its block")
        body = text[head.end() :].rstrip()
        slips = () if body.endswith("```") else ("unclosed",)
        calls = written.read_calls(body.removesuffix("```"))
        return [replace(call, repairs=(*call.repairs, *slips)) for call in calls]


def _blocks(calls: Sequence[ToolCall]) -> list[str]:
    blocks = [
        written.dump({"name": call.name, "arguments": call.arguments}) for call in calls
    ]
    return ["\n".join(f"{OPENER}\n{body}\n```" for body in blocks)] if blocks else []


def _fence(text: str) -> str:
    """Return a fence that *text* can't end."""
    runs = re.findall(r"`{3,}", text)
    return "`" * (max(map(len, runs), default=2) + 1)
