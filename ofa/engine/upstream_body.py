"""
OpenAI's chat dialect from the asking side: a `Chat` as an upstream's request body.

Knows kinds of servers and JSON; nothing of connections. The serving side of the same
dialect is `ofa.protocols`; engines know no dialects, so this is its own few lines.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ..chat import Chat, Message, Output, Tool
from ..errors import BadRequest
from .upstream_kinds import Kind

_SAMPLING = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
)
# Not OpenAI's own; sent where the upstream is known to have them.
_EXTRA = ("top_k", "min_p", "repetition_penalty")
# Given by clients only. top_k is not here: modes set it, and it is a matter of taste.
_REFUSABLE = ("seed", "logit_bias", "min_p", "repetition_penalty")
# Of the context: an answer gets as much, however long the prompt is taken for.
_LEAST_SHARE = 1 / 16
_MESSAGE_TOKENS = 8  # roles and marks of a turn
_IMAGE_TOKENS = 1000
_LEVELS = ("low", "medium", "high")  # of reasoning_effort that all servers know


def refuse_unasked(
    chat: Chat, features: frozenset[str], *, vision: bool | None
) -> None:
    """Raise `BadRequest` for what *chat* wants and the upstream would drop or break."""
    for name in _REFUSABLE:
        if getattr(chat.sampling, name) not in (None, ()) and name not in features:
            raise _unsupported(name, "has no effect in this server's engine")
    choice = chat.tool_choice.kind
    if choice in ("required", "named") and "tool_choice" not in features:
        raise _unsupported(
            "tool_choice", "this server's engine can't demand a call; use auto"
        )
    if vision is False:
        for image in (image for message in chat.messages for image in message.images):
            raise BadRequest(
                f"{image.param or 'messages'}: the model reads text only",
                param=image.param or "messages",
                code="image_not_supported",
            )


def estimated_tokens(text: str) -> int:
    """Return the length of *text*, on the high side: the tokenizer is the upstream's.

    English has 4 to 5 bytes a token, code 3; numbers alone have fewer.
    """
    return len(text.encode("utf-8", "replace")) // 3 + 1


def within(chat: Chat, context_tokens: int, output_tokens: int) -> Chat:
    """
    Return *chat* with a limit of at most *output_tokens*, and one that leaves room for
    its prompt in *context_tokens*; 0: nobody knows them.

    Some servers refuse a request whose prompt and limit together are over their
    context, and ours is named for clients that name none.
    """
    limit = chat.sampling.max_tokens
    if limit is None:
        return chat
    most = output_tokens
    if context_tokens:
        most = min(most, _room(chat, context_tokens))
    if limit <= most:
        return chat
    return replace(chat, sampling=replace(chat.sampling, max_tokens=most))


def _room(chat: Chat, context_tokens: int) -> int:
    texts = [tool.description + json.dumps(tool.parameters) for tool in chat.tools]
    for message in chat.messages:
        texts += [message.text, *(json.dumps(c.arguments) for c in message.calls)]
    images = sum(len(message.images) for message in chat.messages)
    said = estimated_tokens("".join(texts)) + _IMAGE_TOKENS * images
    said += _MESSAGE_TOKENS * (len(chat.messages) + len(chat.tools))
    return max(context_tokens - said, int(context_tokens * _LEAST_SHARE), 1)


def _unsupported(param: str, remedy: str) -> BadRequest:
    return BadRequest(f"{param}: {remedy}", param=param, code="unsupported_value")


def body(
    chat: Chat, model: str, kind: Kind, features: frozenset[str]
) -> dict[str, Any]:
    """
    Return the request body for *chat*, always streamed, with usage asked for.

    What is not among *features* is left out: whatever may not be left out silently
    was refused before.
    """
    made: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in chat.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(chat, kind, features),
        **_thinking(chat, kind),
    }
    if chat.tools:
        made["tools"] = [_tool(tool) for tool in chat.tools]
        made["tool_choice"] = _tool_choice(chat)
        if not chat.parallel_calls:
            made["parallel_tool_calls"] = False
    if chat.output is not None:
        made["response_format"] = _response_format(chat.output, kind)
    if chat.choices > 1:
        made["n"] = chat.choices
    if chat.logprobs is not None:
        made["logprobs"] = True
        made["top_logprobs"] = max(chat.logprobs, kind.least_logprobs)
    return made


def _sampling(chat: Chat, kind: Kind, features: frozenset[str]) -> dict[str, Any]:
    names = (*_SAMPLING, *(name for name in _EXTRA if name in features))
    given = {name: getattr(chat.sampling, name) for name in names}
    if given.get("top_k") == 0:
        given["top_k"] = kind.top_k_off
    made = {
        kind.renamed.get(name, name): value
        for name, value in given.items()
        if value is not None
    }
    if chat.sampling.stop:
        made["stop"] = list(chat.sampling.stop)
    if chat.sampling.logit_bias:
        made["logit_bias"] = {str(i): bias for i, bias in chat.sampling.logit_bias}
    return made


def _thinking(chat: Chat, kind: Kind) -> dict[str, Any]:
    """Return the switches for reasoning, if the client has said anything of it."""
    effort = chat.reasoning_effort
    if not kind.thinking:
        return {"reasoning_effort": effort} if effort else {}
    made: dict[str, Any] = {"reasoning_effort": effort} if effort in _LEVELS else {}
    if chat.thinking is None:
        return made
    if kind.thinking == "template":
        made["chat_template_kwargs"] = {"enable_thinking": chat.thinking}
    elif not chat.thinking:
        made["reasoning_effort"] = "none"
    else:
        made.setdefault("reasoning_effort", "high" if effort == "xhigh" else "medium")
    return made


def _response_format(output: Output, kind: Kind) -> dict[str, Any]:
    if output.kind == "json_object" and kind.json_object:
        return {"type": "json_object"}
    schema = output.schema or {"type": "object"}
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


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
