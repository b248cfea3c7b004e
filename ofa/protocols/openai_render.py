"""
Answers in OpenAI's chat form: whole, streamed, and errors.

A stream is closed properly whatever happens: its choice gets a finish reason, a
failure gets an error frame after it, and ``[DONE]`` is last. That order is the one
that VS Code, the OpenAI SDKs and the AI SDK all show to people.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..chat import Answer, Call, End, Event, Text, Thought, ToolCall, Usage, Waiting
from ..errors import EngineError, OfaError
from .frames import comment, encode, sse

FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls"}
# Not OpenAI's word, and on purpose none of theirs: a failed answer is no finished one.
FAILED = "error"

_PIECE_BYTES = 1024  # of a call's arguments in one chunk
_DONE = "[DONE]"


def new_head(model: str, created: int) -> dict[str, Any]:
    """Return what every chunk of one answer repeats: id, time and model."""
    return {
        "id": f"chatcmpl-{secrets.token_hex(16)}",
        "created": created,
        "model": model,
    }


def whole(answer: Answer, head: Mapping[str, Any]) -> dict[str, Any]:
    """Render a complete answer."""
    choice = {
        "index": 0,
        "message": _message(answer),
        "logprobs": None,
        "finish_reason": FINISH[answer.end.reason],
    }
    body = {**head, "object": "chat.completion", "choices": [choice]}
    if answer.end.usage is not None:
        body["usage"] = _usage(answer.end.usage)
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
    yield writer.chunk({"role": "assistant", "content": ""})
    try:
        for event in events:
            yield from writer.event(event)
            if isinstance(event, End):
                yield from _tail(writer, event, usage=usage)
                return
        raise EngineError("the engine stopped before the end of its answer")
    except OfaError as exc:
        yield writer.chunk({}, FAILED)
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
    """Renders chunks of one choice; counts its calls."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._calls = 0

    def event(self, event: Event) -> Iterator[str]:
        match event:
            case Waiting():
                yield comment("keep-alive")
            case Text(text) if text:
                yield self.chunk({"content": text})
            case Thought(text) if text:
                yield self.chunk({"reasoning_content": text})
            case Call(call):
                yield from self._call(call)

    def chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**self._head, "choices": [choice]})

    def usage(self, usage: Usage) -> str:
        return sse({**self._head, "choices": [], "usage": _usage(usage)})

    def _call(self, call: ToolCall) -> Iterator[str]:
        """Send one call to its end before the next: VS Code doesn't read the index."""
        index, self._calls = self._calls, self._calls + 1
        yield self.chunk({"tool_calls": [{"index": index, **_wire(call, "")}]})
        for piece in _pieces(encode(call.arguments)):
            delta = {"index": index, "function": {"arguments": piece}}
            yield self.chunk({"tool_calls": [delta]})


def _tail(writer: _Writer, end: End, *, usage: bool) -> Iterator[str]:
    yield writer.chunk({}, FINISH[end.reason])
    if usage and end.usage is not None:
        yield writer.usage(end.usage)
    yield sse(_DONE)


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
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
