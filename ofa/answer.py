"""
The Answerer: the program in one page.

A chat comes in as the client sent it; it goes to the engine with the mode's own
instructions, the passages that its question needs, and nothing of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from .answer_fitted import RAG_TOLD, Fitted
from .chat import Chat, Sampling, Tool
from .engine.base import Limits, Reply
from .engine.queue import Place, Queued
from .errors import BadRequest
from .modes import Mode, Modes
from .prompts import Prompts
from .rag.cite import takes_footer, without_footers
from .rag.lookup import Looked
from .rag.question import is_side_request, trimmed
from .toolcalls.strict import check_strict

# The longest a person may wait for tools to be read: beyond it they are no help.
TOOLS_WAIT_S = 60.0
# Of declarations as JSON: VS Code's 40 have 56,000 characters and 12,100 tokens of
# Gemma's; the forms that models are told them in have fewer.
_CHARS_A_TOKEN = 4


@dataclass(frozen=True)
class Caller:
    """Who asks: enough to key a conversation and spot an editor's side request."""

    key_id: str = ""  # a fingerprint of the key, never the key; empty: no auth
    user_agent: str = ""


@dataclass(frozen=True)
class Answered:
    """A reply that is about to start, and what to tell the client beside it."""

    reply: Reply
    headers: Mapping[str, str] = field(default_factory=dict)  # x-ofa-…
    ignored: tuple[str, ...] = ()  # fields of the request that had no effect


class Answering(Protocol):
    """What a web route needs of the `Answerer`."""

    def reply(self, chat: Chat, caller: Caller) -> Answered:
        """Check *chat*, take a place, retrieve, and return the reply to read."""


class Looking(Protocol):
    """What the `Answerer` needs of retrieval."""

    def augment(
        self, chat: Chat, mode: Mode, key_id: str, room_tokens: int
    ) -> Iterator[Looked]:
        """
        Yield *chat* with its passages, at most *room_tokens* of them; then with fewer
        and fewer, without any at the last. Never raises for a failed look-up.
        """


@dataclass(frozen=True)
class AnswerSettings:
    """What a site chooses about every answer."""

    client_system: Literal["auto", "replace", "append"] = "auto"
    tools: bool | Literal["auto"] = "auto"
    strict_tools: bool = False  # schemas that can't be told exactly are refused
    max_tokens: int = 0  # where the request names no limit; 0: the engine's own
    cite: bool = False  # answers end with the files that were looked up for them


class Answerer:
    """Brief the model for its mode, add what the question needs, and let it answer."""

    def __init__(
        self,
        queue: Queued,
        modes: Modes,
        prompts: Prompts,
        *,
        lookup: Looking | None = None,
        settings: AnswerSettings | None = None,
    ) -> None:
        self._queue = queue
        self._modes = modes
        self._prompts = prompts
        self._lookup = lookup
        self._settings = settings or AnswerSettings()

    def reply(self, chat: Chat, caller: Caller) -> Answered:
        """
        Return the reply to *chat*, not yet started, and the headers that go with it.

        Raises what the client should see as a status: `UnknownModel`, `Overloaded`
        (before any other work), or whatever the engine refuses.
        """
        mode = self._modes.pick(chat.model)
        place = self._queue.reserve()
        try:
            return self._answer(chat, mode, caller, place)
        except BaseException:
            place.release()
            raise

    def beginnings(self) -> tuple[Chat, ...]:
        """Return how a chat of each mode begins, for an engine to read ahead."""
        return tuple(
            self._briefed(Chat(mode.id, (), weights=mode.weights), mode)
            for mode in self._modes
        )

    def _answer(self, chat: Chat, mode: Mode, caller: Caller, place: Place) -> Answered:
        headers: dict[str, str] = {}
        chat = replace(
            without_footers(chat),  # also of a time before `cite` was turned off
            sampling=self._sampling(chat, mode),
            caller=caller.key_id,
            weights=mode.weights,
        )
        if self._queue.limits(mode.weights).vision is False:
            chat = _without_tool_images(chat)
        if is_side_request(chat, caller.user_agent):
            # A title or a summary is no question to a domain expert.
            chat, headers[RAG_TOLD] = _as_side_request(chat), "skipped; side request"
            return _answered(place.reply(chat), headers, chat)
        chat, told = self._with_tools_or_without(chat)
        headers.update(told)
        chat = self._briefed(chat, mode)
        if self._lookup is None:
            headers[RAG_TOLD] = "skipped; retrieval is off"
            return _answered(place.reply(chat), headers, chat)
        sets = self._lookup.augment(chat, mode, caller.key_id, self._room(chat))
        cite = self._settings.cite and takes_footer(chat)
        # A reply that was read and refused has given its place back.
        reply = Fitted(sets, place.reply, self._queue.reply, cite=cite)
        return _answered(reply, headers, reply.chat)

    def _sampling(self, chat: Chat, mode: Mode) -> Sampling:
        # VS Code names no limit and plans for the one that /v1/models tells (R064).
        most = self._queue.limits(mode.weights).output_tokens
        limit = self._settings.max_tokens or most
        sampling = chat.sampling.over(mode.sampling)
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=limit)
        return sampling

    def _with_tools_or_without(self, chat: Chat) -> tuple[Chat, Mapping[str, str]]:
        if not chat.tools:
            return chat, {}
        if chat.tool_choice.kind == "none":
            return _without_tools(chat), {"x-ofa-tools": "off; tool_choice is none"}
        limits = self._queue.limits(chat.weights)
        enabled, tokens = self._settings.tools, 0
        if enabled == "auto":
            tokens = len(_declared(chat.tools)) // _CHARS_A_TOKEN
        reason = tools_off_reason(enabled, limits, tokens)
        if not reason:
            if self._settings.strict_tools:
                for tool in chat.tools:
                    check_strict(tool)
            if chat.tool_choice.kind == "named":  # it is that one call which is wanted
                chat = replace(chat, parallel_calls=False)
            return chat, {}
        if chat.tool_choice.kind in ("required", "named"):
            raise BadRequest(
                f"tool_choice: a call was demanded, but {reason}",
                param="tool_choice",
                code="unsupported_value",
            )
        return _without_tools(chat), {"x-ofa-tools": f"ignored; {reason}"}

    def _briefed(self, chat: Chat, mode: Mode) -> Chat:
        ours = self._prompts.render(mode, tools=bool(chat.tools))
        theirs = "\n\n".join(
            m.text for m in chat.messages if m.role == "system" and m.text.strip()
        )
        how = self._settings.client_system
        # An agent's rules live in its system text, and so does what a program says of
        # the JSON it wants; without either there is nothing to keep.
        needed = bool(chat.tools) or chat.output is not None
        keep = how == "append" or (how == "auto" and needed)
        return chat.with_system(f"{ours}\n\n{theirs}" if keep and theirs else ours)

    def _room(self, chat: Chat) -> int:
        """Return how many tokens of passages fit beside *chat* and an answer."""
        limits = self._queue.limits(chat.weights)
        said = self._queue.count_tokens(_all_text(chat))
        wanted = chat.sampling.max_tokens or limits.output_tokens
        answer = min(wanted, limits.output_tokens, limits.context_tokens // 4)
        return max(0, limits.context_tokens - said - answer - 64 * len(chat.messages))


def _all_text(chat: Chat) -> str:
    """Return about what a prompt has of *chat*: its texts, calls and tools."""
    messages = (message.text for message in chat.messages)
    calls = (
        json.dumps(call.arguments)
        for message in chat.messages
        for call in message.calls
    )
    return "\n".join((*messages, *calls, _declared(chat.tools)))


def _declared(tools: Iterable[Tool]) -> str:
    return "\n".join(
        json.dumps([tool.name, tool.description, tool.parameters]) for tool in tools
    )


def _answered(reply: Reply, headers: Mapping[str, str], chat: Chat) -> Answered:
    return Answered(reply, {**headers, **reply.told}, chat.ignored)


def tools_off_reason(
    enabled: bool | Literal["auto"], limits: Limits, tokens: int = 0
) -> str:
    """Return why tools of so many *tokens* have no effect; empty if they have."""
    if enabled is False:
        return "tools are off on this server ([tools] enabled = false)"
    if not limits.tools:
        return "this server's engine does not call tools"
    if enabled is True:
        return ""
    remedy = "([tools] enabled = true turns them on all the same)"
    if tokens > limits.context_tokens // 2:
        return (
            f"their declarations have about {tokens} tokens, over half of the context "
            f"of {limits.context_tokens} {remedy}"
        )
    speed = limits.prefill_per_s
    if speed and tokens / speed > TOOLS_WAIT_S:
        return (
            f"to read their declarations of about {tokens} tokens would take "
            f"{tokens / speed / 60:.0f} minutes here {remedy}"
        )
    return ""


def _as_side_request(chat: Chat) -> Chat:
    return replace(chat, tools=(), priority=1)


def _without_tools(chat: Chat) -> Chat:
    """Return *chat* without tools, and without the editor's reminders to use them."""
    messages = tuple(
        replace(m, text=trimmed(m.text)) if m.role == "user" else m
        for m in chat.messages
    )
    return replace(chat, tools=(), messages=messages)


def _without_tool_images(chat: Chat) -> Chat:
    """
    Return *chat* with a note in place of each image that a tool has returned.

    An agent's tool may look at a picture unasked; to refuse that would end its turn
    for good. An image that a person sends is refused by the engine.
    """
    shown = [
        (place, image.param)
        for place, message in enumerate(chat.messages)
        if message.role == "tool"
        for image in message.images
    ]
    if not shown:
        return chat
    messages = list(chat.messages)
    for place in {place for place, _ in shown}:
        message = messages[place]
        note = "[an image stood here; this model reads text only]"
        text = f"{message.text}\n{note}" if message.text else note
        messages[place] = replace(message, text=text, images=())
    told = replace(chat, messages=tuple(messages))
    return told.ignoring(*(param for _, param in shown))
