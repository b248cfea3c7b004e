"""
The frames of one upstream's answer as events: texts, thoughts, calls, ends.

Knows what OpenAI's chunks hold and how servers differ in them; nothing of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..chat import (
    Call,
    End,
    Event,
    FinishReason,
    Logprob,
    Text,
    Thought,
    ToolCall,
    Usage,
    Waiting,
)
from ..errors import EngineError
from ..toolcalls.base import Failed, Found, Unreadable
from ..toolcalls.repair import read_object
from .text_calls import Unsettled
from .upstream_wire import Frame, error_text

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tools",
    "function_call": "tools",
}
_FAILED = ("error", "abort")  # ofa's and vLLM's words for an answer that broke off
# llama-server, LM Studio and ofa say the first; Ollama, and vLLM from 0.11, the other.
_THOUGHTS = ("reasoning_content", "reasoning")


def events(
    frames: Iterable[Frame | None], *, choices: int = 1, top: int = 0
) -> Iterator[Event]:
    """Yield the events of a whole answer's *frames*; see `Reader`."""
    reader = Reader(choices=choices, top=top)
    for frame in frames:
        yield from reader.read(frame)
    yield from reader.end()


class Reader:
    """
    Turns frames into events, as they come. Tool calls come whole, after all text.

    *choices* is how many answers were asked for, *top* how many alternatives a token.
    Raises `EngineError` for an error frame and an answer that stops without a finish
    reason. So it does for a call whose arguments are no JSON object, unless *fails*:
    then it yields `Failed` or `Unsettled`, and `TextCalls` has to stand around it.
    """

    def __init__(
        self, *, choices: int = 1, top: int = 0, fails: bool = False, key: str = ""
    ) -> None:
        self._key = key  # the server's own: what it says of an error may quote it
        self._choices = [_Choice(index, top, fails) for index in range(choices)]
        self._usage: Usage | None = None

    def read(self, frame: Frame | None) -> Iterator[Event]:
        """Yield what *frame* brings; a comment, None, is but a sign of life."""
        if frame is None:
            yield Waiting()
            return
        try:
            yield from self._read(frame)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise EngineError("the upstream sent a frame that is none") from None

    def _read(self, frame: Frame) -> Iterator[Event]:
        if frame.get("error") or frame.get("object") == "error":  # vLLM before 0.11
            said = error_text(frame, self._key)
            raise EngineError(f"the upstream failed: {said}")
        if isinstance(usage := frame.get("usage"), dict):
            self._usage = _usage(usage) or self._usage
        listed = frame.get("choices")  # none beside the counts: empty, null or absent
        for piece in listed if isinstance(listed, list) else ():
            choice = self._choice(piece)
            if choice is not None:
                yield from choice.read(piece)
                if choice.finish and any(not c.finish for c in self._choices):
                    yield from choice.end()

    def end(self) -> Iterator[Event]:
        """Yield what was held back for the end: the last choice's, with the counts."""
        left = [choice for choice in self._choices if not choice.ended]
        if any(not choice.finish for choice in left):
            raise EngineError("the upstream stopped before the end of its answer")
        for choice in left[:-1]:
            yield from choice.end()
        yield from left[-1].end(last=True, usage=self._usage)

    def _choice(self, piece: object) -> _Choice | None:
        if not isinstance(piece, dict):
            return None
        index = piece.get("index", 0)
        known = isinstance(index, int) and 0 <= index < len(self._choices)
        choice = self._choices[index] if known else None
        return None if choice is None or choice.ended else choice


@dataclass
class _Choice:
    """What has come of one of the answers."""

    index: int
    top: int
    fails: bool  # a bad call is an event, no error
    finish: str = ""
    ended: bool = False
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    held: tuple[Logprob, ...] = ()  # of tokens that have made no text yet

    def read(self, piece: Mapping[str, Any]) -> Iterator[Event]:
        # A whole answer, from servers that don't stream, has the same parts.
        delta = piece.get("delta") or piece.get("message") or {}
        thought = next((delta[name] for name in _THOUGHTS if delta.get(name)), "")
        text, calls = delta.get("content") or "", delta.get("tool_calls") or ()
        if text or not (thought or calls):
            self.held += _logprobs(piece.get("logprobs"), self.top)
        if thought:
            yield Thought(str(thought), self.index)
        if text:
            told, self.held = self.held, ()
            yield Text(str(text), self.index, told)
        for call in calls:
            self._add(call)
        self.finish = str(piece.get("finish_reason") or "") or self.finish
        if self.finish in _FAILED:
            raise EngineError("the upstream broke its answer off")

    def end(self, *, last: bool = False, usage: Usage | None = None) -> Iterator[Event]:
        self.ended = True
        if self.held:  # the end mark's, or half a character's
            yield Text("", self.index, self.held)
        for number in sorted(self.calls):
            # `Failed` among them is between us and `Careful` alone.
            yield from cast("Iterable[Event]", self._called(number))
        reason = _FINISH.get(self.finish, "stop")
        # Some servers say "stop" after calls; clients then never run them.
        if self.calls and reason != "length":
            reason = "tools"
        yield End(reason, usage, self.index, last)

    def _called(self, number: int) -> Iterator[Event | Failed | Unsettled]:
        made = self.calls[number]
        identity = made["id"] or f"call_{self.index:04x}{number:020x}"
        arguments = _arguments(made["arguments"])
        if arguments is not None and made["name"]:
            yield Call(ToolCall(identity, made["name"], arguments), self.index)
        elif _FINISH.get(self.finish) == "length" and number == max(self.calls):
            return  # cut by the limit: half a call is none
        elif self.fails:
            yield self._mended(made, identity)
        else:
            raise EngineError(
                f"the upstream's tool call {number} has no name, or arguments that are "
                "no JSON object"
            )

    def _mended(self, made: Mapping[str, str], identity: str) -> Failed | Unsettled:
        name, text = made["name"], made["arguments"]
        try:
            arguments, repairs = read_object(text)
        except Unreadable as why:
            return Failed(f"{name}({text})", f"{name or 'the call'}: {why}", self.index)
        return Unsettled(Found(name, arguments, repairs), identity, self.index)

    def _add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        identity = str(piece.get("id") or "")
        number = self._number(piece.get("index"), identity)
        call = self.calls.setdefault(
            number, {"id": identity, "name": "", "arguments": ""}
        )
        call["name"] = call["name"] or str(function.get("name") or "")
        arguments = function.get("arguments") or ""
        call["arguments"] += (
            arguments if isinstance(arguments, str) else json.dumps(arguments)
        )

    def _number(self, index: object, identity: str) -> int:
        """Return the number of the call that a piece belongs to."""
        known = [n for n, call in self.calls.items() if call["id"] == identity]
        if not isinstance(index, int):
            # Servers that leave the index out send calls whole, each with its id.
            return known[0] if known and identity else len(self.calls)
        before = self.calls.get(index)
        if before and identity and before["id"] not in ("", identity):
            # Ollama gave every call the index 0: a new id there is a new call.
            return known[0] if known else max(self.calls) + 1
        return index


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _logprobs(told: object, top: int) -> tuple[Logprob, ...]:
    """Read the ``logprobs`` of a choice, with *top* alternatives at most."""
    content = told.get("content") if isinstance(told, dict) else None
    if not isinstance(content, list):
        return ()
    return tuple(_logprob(row, row.get("top_logprobs") or (), top) for row in content)


def _logprob(row: Mapping[str, Any], tops: Iterable[Any], top: int) -> Logprob:
    token, raw = str(row["token"]), row.get("bytes")
    return Logprob(
        token=token,
        logprob=float(row["logprob"]),
        raw=token.encode("utf-8", "replace") if raw is None else bytes(raw),
        top=tuple(_logprob(other, (), 0) for other in list(tops)[:top]),
    )


def _usage(raw: Mapping[str, Any]) -> Usage | None:
    prompt, completion = raw.get("prompt_tokens"), raw.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    cached = (raw.get("prompt_tokens_details") or {}).get("cached_tokens")
    thought = (raw.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return Usage(prompt, completion, _whole(cached), _whole(thought))


def _whole(told: object) -> int | None:
    return told if isinstance(told, int) else None
