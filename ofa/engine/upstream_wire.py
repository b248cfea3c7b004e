"""
OpenAI's chat dialect from the asking side: a `Chat` to a body, frames to events.

Knows JSON and server-sent events; nothing of sockets. The serving side of the same
dialect is `ofa.protocols`; engines know no dialects, so this is its own few lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..chat import (
    Call,
    Chat,
    End,
    Event,
    FinishReason,
    Message,
    Text,
    Thought,
    Tool,
    ToolCall,
    Usage,
)
from ..errors import EngineError

# A frame holds one token or a whole tool call; a megabyte of call is a broken server.
MAX_LINE_BYTES = 16 << 20

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tools",
    "function_call": "tools",
}
_SAMPLING = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
)
# vLLM, llama-server, LM Studio, SGLang and mlx servers take these; OpenAI refuses them.
_LOCAL_SAMPLING = ("top_k", "min_p", "repetition_penalty")


def body(chat: Chat, model: str, *, local: bool) -> dict[str, Any]:
    """
    Return the request body for *chat*, always streamed, with usage asked for.

    *local* servers also get the sampling fields that OpenAI itself does not know.
    """
    fields = _SAMPLING + (_LOCAL_SAMPLING if local else ())
    given = {name: getattr(chat.sampling, name) for name in fields}
    made: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in chat.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in given.items() if value is not None},
    }
    if chat.sampling.stop:
        made["stop"] = list(chat.sampling.stop)
    if chat.sampling.logit_bias:
        made["logit_bias"] = {str(i): bias for i, bias in chat.sampling.logit_bias}
    if chat.reasoning_effort:
        made["reasoning_effort"] = chat.reasoning_effort
    if chat.tools:
        made["tools"] = [_tool(tool) for tool in chat.tools]
        made["tool_choice"] = _tool_choice(chat)
        if not chat.parallel_calls:
            made["parallel_tool_calls"] = False
    return made


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for call in message.calls
        ]
        made["content"] = message.text or None
    if message.role == "tool":
        made["tool_call_id"] = message.answers
    return made


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return text + [
        {"type": "image_url", "image_url": {"url": image.url}}
        for image in message.images
    ]


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(chat: Chat) -> str | dict[str, Any]:
    choice = chat.tool_choice
    if choice.kind == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.kind


def frames(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """
    Yield the JSON objects of a server-sent event stream, cut anywhere into *pieces*.

    Lines end at LF or CRLF only: the text in them may hold U+2028, which str.splitlines
    takes for an end. Comments and event names are passed over, ``[DONE]`` ends it.
    """
    for line in _lines(pieces):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            frame = json.loads(data)
        except (ValueError, RecursionError):
            raise EngineError("the upstream sent a frame that is not JSON") from None
        if isinstance(frame, dict):
            yield frame


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        *complete, rest = piece.split(b"\n")
        for part in complete:
            yield b"".join((*held, part)).rstrip(b"\r")
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise EngineError("the upstream sent a line without an end")
    yield b"".join(held)


def events(frames: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """
    Yield the events of one answer. Tool calls come whole, after all text.

    Raises `EngineError` for an error frame, an answer that stops without a finish
    reason, and a call whose arguments are no JSON object.
    """
    reader = _Reader()
    for frame in frames:
        yield from reader.read(frame)
    yield from reader.end()


class _Reader:
    def __init__(self) -> None:
        self._calls: dict[int, dict[str, str]] = {}
        self._finish = ""
        self._usage: Usage | None = None

    def read(self, frame: Mapping[str, Any]) -> Iterator[Event]:
        if frame.get("error"):
            raise EngineError(f"the upstream failed: {error_text(frame)}")
        if isinstance(usage := frame.get("usage"), dict):
            self._usage = _usage(usage)
        choices = frame.get("choices") or [{}]
        choice = choices[0] if isinstance(choices[0], dict) else {}
        # A whole answer, from servers that don't stream, has the same parts.
        delta = choice.get("delta") or choice.get("message") or {}
        for name in ("reasoning_content", "reasoning"):
            if thought := delta.get(name):
                yield Thought(str(thought))
                break
        if text := delta.get("content"):
            yield Text(str(text))
        for call in delta.get("tool_calls") or ():
            self._add(call)
        self._finish = choice.get("finish_reason") or self._finish

    def end(self) -> Iterator[Event]:
        if not self._finish:
            raise EngineError("the upstream stopped before the end of its answer")
        for number in sorted(self._calls):
            yield Call(_call(self._calls[number], number))
        # Some servers say "stop" after calls; clients then never run them.
        reason = "tools" if self._calls else _FINISH.get(self._finish, "stop")
        yield End(reason, self._usage)

    def _add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        identity = str(piece.get("id") or "")
        number = piece.get("index")
        if not isinstance(number, int):
            # Servers that leave the index out send calls whole, each with its id.
            known = [n for n, c in self._calls.items() if c["id"] == identity]
            number = known[0] if known and identity else len(self._calls)
        call = self._calls.setdefault(
            number, {"id": identity, "name": "", "arguments": ""}
        )
        call["name"] = call["name"] or str(function.get("name") or "")
        arguments = function.get("arguments") or ""
        call["arguments"] += (
            arguments if isinstance(arguments, str) else json.dumps(arguments)
        )


def _call(made: Mapping[str, str], number: int) -> ToolCall:
    try:
        arguments = json.loads(made["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or not made["name"]:
        raise EngineError(
            f"the upstream's tool call {number} has no name, or arguments that are "
            "no JSON object"
        )
    return ToolCall(made["id"] or f"call_{number:024x}", made["name"], arguments)


def _usage(raw: Mapping[str, Any]) -> Usage | None:
    prompt, completion = raw.get("prompt_tokens"), raw.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    cached = (raw.get("prompt_tokens_details") or {}).get("cached_tokens")
    thought = (raw.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return Usage(prompt, completion, cached or 0, thought or 0)


def error_text(answer: object) -> str:
    """Return the message of an error answer, in whatever shape it comes, cut short."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or "no message"
    return " ".join(str(error).split())[:500]
