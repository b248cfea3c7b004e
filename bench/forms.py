"""
Forms in which a model without a tool format can be told of tools, and call them.

Each differs from ofa's own (`ofa.toolcalls.generic`) in one thing, so that what the
thing is worth shows. Answers are read as ofa reads them, mended and rescued where it
must be, and held to no grammar. Questions are BFCL's, with its gold calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ofa.chat import Tool, ToolCall
from ofa.toolcalls import written
from ofa.toolcalls.base import Failed, Found
from ofa.toolcalls.generic import OPENER, Generic
from ofa.toolcalls.reader import Reader
from ofa.toolcalls.schema import canonical, types_of
from ofa.toolcalls.shown import schema

from .servers import ROOT, CannotMeasure

if TYPE_CHECKING:
    from tests.toolcalls.bfcl import Question

_CLOSER = "```"
_MARK_SAID = " A question mark means that a parameter may be left out."
_EXAMPLE = '{"name": "<name of the tool>", "arguments": {"<parameter>": <value>}}'
_IN_WORDS = '{"name": "tool", "arguments": {"parameter": "value"}}'
_JSON = re.compile(r"\s*(?=[{\[])")
_SAMPLES: Mapping[str, object] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": [],
    "object": {}, "null": None,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """How a tool is written, and what stands around a call."""

    name: str
    opener: str = OPENER
    closer: str = _CLOSER
    as_json: bool = False  # tools as JSON Schema, not as signatures
    shown: str = _EXAMPLE  # the example; empty: a call of the first tool

    def declare(self, tools: Sequence[Tool]) -> str:
        """Return what stands behind the system text: ofa's own, one thing exchanged."""
        before, lines, after = (piece.text for piece in Generic().declare(tools))
        shown = self.example(tools)
        after = after.replace(
            f"{OPENER}\n{_EXAMPLE}\n{_CLOSER}", f"{self.opener}\n{shown}\n{self.closer}"
        )
        if self.as_json:
            before = before.replace(_MARK_SAID, "")
            lines = "".join(map(_as_json, canonical(tools)))
        return before + lines + after

    def example(self, tools: Sequence[Tool]) -> str:
        """Return the call that stands as the example."""
        return self.shown or _call_of(canonical(tools)[0])


FORMS = (
    Form("signatures, tool_call fence"),
    Form("JSON Schema, tool_call fence", as_json=True),
    Form("signatures, json fence", opener="```json"),
    Form("signatures, tags", opener="<tool_call>", closer="</tool_call>"),
    Form("signatures, tool_call fence, a real example", shown=""),
    Form("signatures, tool_call fence, an example in words", shown=_IN_WORDS),
)
"""What is compared; the first is ofa's own."""


class Tried(Generic):
    """A form's calls, found between its opener and its closer."""

    def __init__(self, form: Form) -> None:
        self.openers = (form.opener,)
        self._form = form

    def length(self, text: str) -> int | None:
        """Return where the closer outside of the JSON's strings ends."""
        start = len(self._form.opener)
        head = _JSON.match(text, start)
        if head is None:
            return 0 if text[start:].strip() else None
        at = text.find(self._form.closer, head.end())
        while at >= 0 and written.in_string(text, head.end(), at):
            at = text.find(self._form.closer, at + 1)
        return None if at < 0 else at + len(self._form.closer)

    def read(self, text: str) -> list[Found]:
        """Return the calls in a block; the closer may lack at an answer's end."""
        body = text.removeprefix(self._form.opener).removesuffix(self._form.closer)
        return written.read_calls(body.strip())


def _as_json(tool: Tool) -> str:
    told = {"name": tool.name, "description": tool.description}
    return written.dump({**told, "parameters": schema(tool)}) + "\n"


def _call_of(tool: Tool) -> str:
    """Return a call of *tool* with its required parameters."""
    shown = schema(tool)
    arguments = {
        name: _SAMPLES.get(next(iter(types_of(one)), "string"))
        for name, one in shown["properties"].items()
        if name in shown.get("required", ())
    }
    return written.dump({"name": tool.name, "arguments": arguments})


# --- questions and what an answer is worth ------------------------------------------


def questions(count: int, *, irrelevant: bool = False) -> list[Question]:
    """
    Return *count* of BFCL's questions over several functions, evenly taken.

    One call is right; of *irrelevant* ones, none. Raises `CannotMeasure` where they
    are not installed.
    """
    from tests.toolcalls import bfcl

    try:
        found = bfcl.questions("irrelevance" if irrelevant else "multiple")
    except FileNotFoundError as error:
        raise CannotMeasure(str(error)) from None
    return found[:: len(found) // count][:count]


def system_text(form: Form, tools: Sequence[Tool]) -> str:
    """Return the instruction that ofa gives where tools are offered, and *tools*."""
    said = (ROOT / "prompts" / "openai_tools.txt").read_text(encoding="utf-8").strip()
    return said + form.declare(tools)


def outcome(form: Form, question: Question, answer: str) -> str:
    """Return "right", or what *answer* is instead: see the code for the words."""
    reader = Reader(Generic() if form == FORMS[0] else Tried(form), question.tools)
    pieces: list[Any] = [*reader.feed(answer), *reader.finish(cut=False)]
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    if not calls:
        failed = any(isinstance(piece, Failed) for piece in pieces)
        return "a call that can't be used" if failed else "no call"
    if not question.calls:
        return "a call"
    if len(calls) > 1:
        return "several calls"
    if calls[0].name != question.calls[0].name:
        return "another tool"
    return "right" if question.accepts(calls[0]) else "other arguments"
