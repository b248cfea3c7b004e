"""
OpenAI's /v1/chat/completions: bodies into `Chat`s, events into answers.

Knows nothing of engines, retrieval or HTTP. Two rules decide about fields: one with a
meaning that can't be honoured is refused by name, one that nobody knows is ignored and
told (`Chat.ignored`), or refused too if the site says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..chat import Chat, Sampling
from .openai_fields import (
    bad,
    boolean,
    find_unknown,
    find_unread_format,
    identifier,
    read_fields,
    refuse_names,
    refuse_unsupported,
    usage_wanted,
)
from .openai_messages import read_messages
from .openai_render import error, new_head, stream, whole
from .openai_tools import read_offer

__all__ = ["Delivery", "delivery", "error", "new_head", "parse", "stream", "whole"]

_SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
)
_NO_THINKING = ("none", "minimal")


@dataclass(frozen=True)
class Delivery:
    """How the answer is to be sent; no matter of the engine's."""

    stream: bool = False
    usage: bool = False  # a chunk with token counts at the end of the stream


def delivery(body: Mapping[str, Any]) -> Delivery:
    """Read how the answer is to be sent."""
    streamed, options = body.get("stream"), body.get("stream_options")
    return Delivery(
        stream=streamed is not None and boolean(streamed, "stream"),
        usage=options is not None and usage_wanted(options, "stream_options"),
    )


def parse(body: Mapping[str, Any], *, refuse_unknown: bool = False) -> Chat:
    """
    Read a request body; raise `BadRequest` naming the field that is wrong.

    Checked in this order, so that the first complaint is the most useful one: fields
    never supported, fields unknown, the model's name, values, tools, messages.
    """
    refuse_unsupported(body)
    unknown = find_unknown(body)
    if refuse_unknown:
        refuse_names(unknown)
    model = identifier(body.get("model"), "model")
    fields = read_fields(body)
    offer = read_offer(
        body.get("tools"), body.get("tool_choice"), refuse_unknown=refuse_unknown
    )
    thinking, unused = _thinking(fields)
    format_unused = find_unread_format(body.get("response_format"), "response_format")
    told = ("verbosity",) if "verbosity" in fields else ()
    return Chat(
        model=model,
        messages=read_messages(body.get("messages")),
        sampling=_sampling(fields),
        tools=offer.tools,
        tool_choice=offer.choice,
        parallel_calls=fields.get("parallel_tool_calls", True),
        thinking=thinking,
        reasoning_effort=fields.get("reasoning_effort", ""),
        output=fields.get("response_format"),
        choices=fields.get("n", 1),
        logprobs=_logprobs(fields),
        ignored=(*unknown, *told, *unused, *format_unused, *offer.ignored),
    )


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    given = {name: fields[name] for name in _SAMPLING if name in fields}
    top_k = fields.get("top_k")
    return Sampling(
        **given,
        top_k=None if top_k is None else max(top_k, 0),  # -1 is vLLM's word for off
        max_tokens=fields.get("max_completion_tokens", fields.get("max_tokens")),
    )


def _logprobs(fields: Mapping[str, Any]) -> int | None:
    """Return how many alternatives to tell with each token; None: tell nothing."""
    top = fields.get("top_logprobs", 0)
    if fields.get("logprobs"):
        return int(top)
    if top:
        raise bad("top_logprobs", "is told with logprobs only; set that to true")
    return None


def _thinking(fields: Mapping[str, Any]) -> tuple[bool | None, tuple[str, ...]]:
    """
    Return whether to think, and the template arguments that have no effect.

    The template's own switch, where given, is more exact than an effort.
    """
    template = fields.get("chat_template_kwargs", {})
    unused = tuple(
        f"chat_template_kwargs.{name}" for name in template if name != "enable_thinking"
    )
    switch = template.get("enable_thinking")
    if switch is not None:
        return boolean(switch, "chat_template_kwargs.enable_thinking"), unused
    effort = fields.get("reasoning_effort")
    return (None if effort is None else effort not in _NO_THINKING), unused
