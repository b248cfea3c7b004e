"""
One chat over HTTP: body to `Chat`, reply to bytes, and what to do if the client leaves.

Knows dialects and the Answerer; nothing of Flask or sockets. A handler gets an `Asked`
and returns a `Page` or a `Stream`, or raises an `OfaError`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .answer import Answering, Caller
from .chat import Answer, End, Event, Waiting, gather_choices
from .engine.base import Reply
from .errors import Cancelled, OfaError
from .modes import Modes
from .protocols import openai_chat
from .protocols.body import MAX_JSON_BYTES, read_object
from .protocols.frames import encode
from .web_guard import ignored_header, raised_at

TOOLS_TOLD = "x-ofa-tools"

_log = logging.getLogger("ofa.web")


@dataclass(frozen=True)
class Asked:
    """A request that passed the guard, in the words of no framework."""

    headers: Mapping[str, str]  # names in Title-Case
    key_id: str = ""  # a fingerprint, never the key
    args: Mapping[str, str] = field(default_factory=dict)  # from the path
    query: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[], bytes] = bytes
    gone: Callable[[], bool] = lambda: False  # whether the client hung up
    notes: dict[str, object] = field(default_factory=dict)  # for the log; no content


@dataclass(frozen=True)
class Page:
    """A complete answer; *headers* are cleaned and cut before they are sent."""

    text: str
    status: int = 200
    media: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """An answer still to come; *close* is called in any case, also if never read."""

    frames: Iterator[str]
    close: Callable[[], None]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatRules:
    """What a site chooses about chat requests."""

    refuse_unknown: bool = False
    max_json_bytes: int = MAX_JSON_BYTES
    keep_alive_s: float = 10.0
    clock: Callable[[], float] = time.monotonic


class ChatRoute:
    """Answers ``POST /v1/chat/completions``, streamed or whole: the same events."""

    def __init__(
        self, answerer: Answering, modes: Modes, rules: ChatRules | None = None
    ) -> None:
        self._answerer = answerer
        self._modes = modes
        self._rules = rules or ChatRules()

    def __call__(self, asked: Asked) -> Page | Stream:
        """Answer one request; everything that can be refused is refused before."""
        rules = self._rules
        body = read_object(asked.body(), limit_bytes=rules.max_json_bytes)
        self._note(body, asked.notes)
        delivery = openai_chat.delivery(body)
        chat = openai_chat.parse(body, refuse_unknown=rules.refuse_unknown)
        caller = Caller(asked.key_id, asked.headers.get("User-Agent", "")[:200])
        answered = self._answerer.reply(chat, caller)
        watched = Watched(answered.reply, asked, rules)
        head = openai_chat.new_head(chat.model, int(time.time()))
        headers = dict(answered.headers)
        if ignored := answered.ignored or chat.ignored:
            headers.setdefault("x-ofa-ignored", ignored_header(ignored))
        if delivery.stream:
            frames = openai_chat.stream(watched, head, usage=delivery.usage)
            return Stream(frames, watched.close, headers)
        answers = _all(watched)
        # What became of calls and passages is known only now.
        headers |= answered.reply.told
        return Page(encode(openai_chat.whole(answers, head)), headers=headers)

    def _note(self, body: Mapping[str, Any], notes: dict[str, object]) -> None:
        """Note what the log tells, and refuse an unknown model before anything else."""
        messages = body.get("messages")
        notes["messages"] = len(messages) if isinstance(messages, list) else "-"
        notes["stream"] = body.get("stream") is True
        model = body.get("model")
        if isinstance(model, str) and model:
            notes["model"] = model
            notes["mode"] = self._modes.pick(model).name


class Watched:
    """
    A reply as one client's connection reads it.

    Stops the work when the client is gone, lets `Waiting` through only after a silence
    that needs a sign of life, and turns whatever else goes wrong into an `OfaError`.
    """

    def __init__(self, reply: Reply, asked: Asked, rules: ChatRules) -> None:
        self._reply = reply
        self._gone = asked.gone
        self._notes = asked.notes
        self._rules = rules

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self._events()
        except OfaError as exc:
            self._notes["outcome"] = exc.code
            raise
        except Exception as exc:  # noqa: BLE001 - a defect below must end as an error frame
            self._notes["outcome"] = "internal_error"
            raise internal_error(exc) from None
        finally:
            self.close()

    def close(self) -> None:
        """Stop the work behind the reply; safe to call twice."""
        self._notes.setdefault("outcome", "abandoned")
        self._reply.close()

    def _events(self) -> Iterator[Event]:
        clock, limit_s = self._rules.clock, self._rules.keep_alive_s
        last_s = clock()
        for event in self._reply:
            # Not in a silence only: of a whole answer nothing is written that could
            # fail, and one that is written without a pause has no silence.
            if self._gone():
                raise Cancelled("the client hung up")
            if isinstance(event, Waiting) and clock() - last_s < limit_s:
                continue
            last_s = clock()
            if isinstance(event, End) and event.last:
                self._note_end(event)
            yield event

    def _note_end(self, end: End) -> None:
        self._notes["outcome"] = end.reason
        if end.usage is not None:
            self._notes["prompt"] = end.usage.prompt_tokens
            self._notes["completion"] = end.usage.completion_tokens
        if tools := self._reply.told.get(TOOLS_TOLD):
            self._notes["tools"] = tools


def internal_error(exc: BaseException) -> OfaError:
    """Log where *exc* was raised and return an error that tells nothing of it."""
    _log.error("internal error: %s", raised_at(exc))
    return OfaError("internal error; the server's log says where")


def _all(watched: Watched) -> tuple[Answer, ...]:
    try:
        return gather_choices(watched)
    finally:
        watched.close()
