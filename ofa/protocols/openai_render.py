"""
Answers in OpenAI's chat form: whole, streamed, and errors.

A stream is closed properly whatever happens: each choice gets a finish reason, a
failure gets an error frame after them, and ``[DONE]`` is last. That order is the one
that VS Code, the OpenAI SDKs and the AI SDK all show to people.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..chat import (
    Answer,
    Call,
    End,
    Event,
    Logprob,
    Text,
    Thought,
    ToolCall,
    Usage,
    Waiting,
)
from ..errors import EngineError, OfaError
from .frames import comment, encode, sse

FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls"}
# Not OpenAI's word, and on purpose none of theirs: a failed answer is no finished one.
FAILED = "error"

# OpenAI's word for "very unlikely": what a mask forbids is minus infinity to an engine,
# which JSON can't say.
_LEAST_LOGPROB = -9999.0

_PIECE_BYTES = 1024  # of a call's arguments in one chunk
_DONE = "[DONE]"
_MARK = "\x00text\x00"  # in no other field: a model's name is printable


def new_head(model: str, created: int) -> dict[str, Any]:
    """Return what every chunk of one answer repeats: id, time and model."""
    return {
        "id": f"chatcmpl-{secrets.token_hex(16)}",
        "created": created,
        "model": model,
    }


def whole(answers: Sequence[Answer], head: Mapping[str, Any]) -> dict[str, Any]:
    """Render complete *answers*, one a choice."""
    body = {
        **head,
        "object": "chat.completion",
        "choices": [_choice(answer) for answer in answers],
    }
    usages = [answer.end.usage for answer in answers if answer.end.usage is not None]
    if usages:
        body["usage"] = _usage(usages[-1])  # of the request; one End has it
    return body


def stream(
    events: Iterable[Event], head: Mapping[str, Any], *, usage: bool = False
) -> Iterator[str]:
    """
    Render *events* as they come: the role first, ``[DONE]`` last, failures included.

    *usage* asks for the chunk with token counts; it is left out where the engine told
    none. An `OfaError` from *events* becomes an error frame and is not raised.
    """
    writer = _Writer(head)
    yield from writer.open(0)  # at once: who reads a stream waits for a sign of life
    try:
        for event in events:
            if frame := writer.text(event):  # nearly all of them
                yield frame
                continue
            if isinstance(event, End) and event.last:  # in one piece: a send each costs
                yield "".join((*writer.event(event), *_tail(writer, event, usage)))
                return
            yield from writer.event(event)
        raise EngineError("the engine stopped before the end of its answer")
    except OfaError as exc:
        yield from writer.fail()
        yield sse(error(exc))
        yield sse(_DONE)


def error(exc: OfaError) -> dict[str, Any]:
    """Render *exc* in the envelope that OpenAI's clients expect."""
    return {
        "error": {
            "message": str(exc),
            "type": exc.kind,
            "param": exc.param,
            "code": exc.code,
        }
    }


class _Writer:
    """Renders chunks; knows which choices are open, and how many calls each has."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._calls: dict[int, int] = {}  # by choice, from its role to its finish
        self._frames: dict[int, tuple[str, str]] = {}  # by choice, around its text

    def open(self, index: int) -> Iterator[str]:
        """Begin a choice with its role, unless it has begun."""
        if index not in self._calls:
            self._calls[index] = 0
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def text(self, event: Event) -> str:
        """Return the frame of one more piece of text; empty if *event* is none."""
        if not isinstance(event, Text) or event.logprobs:
            return ""
        around = self._frames.get(event.index)
        if not (around and event.text):
            return ""
        return f"{around[0]}{encode(event.text)}{around[1]}"

    def event(self, event: Event) -> Iterator[str]:
        if isinstance(event, Waiting):
            yield comment("keep-alive")
            return
        yield from self.open(event.index)
        match event:
            case Text(text, index, logprobs) if logprobs:
                yield self._chunk(index, {"content": text}, logprobs=logprobs)
            case Text(text, index) if text:
                self._frames[index] = self._around(index)
                yield self.text(event)
            case Thought(text, index) if text:
                yield self._chunk(index, {"reasoning_content": text})
            case Call(call, index):
                yield from self._call(index, call)
            case End(reason, _, index):
                del self._calls[index]
                self._frames.pop(index, None)
                yield self._chunk(index, {}, FINISH[reason])

    def fail(self) -> Iterator[str]:
        """Close the choices that are open."""
        for index in sorted(self._calls):
            yield self._chunk(index, {}, FAILED)
        self._calls.clear()

    def usage(self, usage: Usage) -> str:
        return sse({**self._head, "choices": [], "usage": _usage(usage)})

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        finish: str | None = None,
        *,
        logprobs: Sequence[Logprob] = (),
    ) -> str:
        told = {"logprobs": _logprobs(logprobs)} if logprobs else {}
        choice = {"index": index, "delta": delta, **told, "finish_reason": finish}
        return sse({**self._head, "choices": [choice]})

    def _around(self, index: int) -> tuple[str, str]:
        """Return what stands around a piece of text in its frame: most frames differ
        in nothing else, and to encode each whole takes five times as long."""
        chunk = self._chunk(index, {"content": _MARK})
        before, _, after = chunk.partition(encode(_MARK))
        return before, after

    def _call(self, index: int, call: ToolCall) -> Iterator[str]:
        """Send one call to its end before the next: VS Code doesn't read its number."""
        number = self._calls[index]
        self._calls[index] = number + 1
        first = {"index": number, **_wire(call, "")}
        yield self._chunk(index, {"tool_calls": [first]})
        for piece in _pieces(encode(call.arguments)):
            more = {"index": number, "function": {"arguments": piece}}
            yield self._chunk(index, {"tool_calls": [more]})


def _tail(writer: _Writer, end: End, usage: bool) -> Iterator[str]:
    if usage and end.usage is not None:
        yield writer.usage(end.usage)
    yield sse(_DONE)


def _choice(answer: Answer) -> dict[str, Any]:
    told = answer.logprobs
    return {
        "index": answer.end.index,
        "message": _message(answer),
        "logprobs": _logprobs(told) if told else None,
        "finish_reason": FINISH[answer.end.reason],
    }


def _message(answer: Answer) -> dict[str, Any]:
    calls = [_wire(call, encode(call.arguments)) for call in answer.calls]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not answer.text else answer.text,
        "refusal": None,
    }
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if calls:
        message["tool_calls"] = calls
    return message


def _logprobs(tokens: Sequence[Logprob]) -> dict[str, Any]:
    content = [
        {**_token(token), "top_logprobs": [_token(top) for top in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: Logprob) -> dict[str, Any]:
    return {
        "token": token.token,
        # JSON has no infinities: an upstream may tell any number.
        "logprob": min(0.0, max(_LEAST_LOGPROB, token.logprob)),
        "bytes": list(token.raw),
    }


def _wire(call: ToolCall, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _pieces(text: str) -> Iterator[str]:
    """Cut *text* into pieces of at most `_PIECE_BYTES`, never inside a character."""
    encoded = text.encode()
    start = 0
    while start < len(encoded):
        end = min(start + _PIECE_BYTES, len(encoded))
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
            end -= 1
        yield encoded[start:end].decode()
        start = end


def _usage(usage: Usage) -> dict[str, Any]:
    made: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    # What nobody has told is left out: 0 would be a claim.
    if usage.cached_tokens is not None:
        made["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        made["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return made
