"""The one seam between ofa and whatever produces tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..chat import Chat, Event
from ..errors import BadRequest, Cancelled

SILENCE_S = 0.25  # after which a patient reply, or a queue for another one, looks up


@dataclass(frozen=True)
class Limits:
    """What an engine can take; told to clients and used to size prompts."""

    context_tokens: int  # prompt and answer together
    output_tokens: int  # the most one answer may have
    tools: bool = False  # tool declarations are rendered and calls come back
    vision: bool | None = False  # images are read; None: not known, they are passed on
    structured: bool = False  # `Chat.output` is enforced
    choices: int = 1  # the most answers to one request
    logprobs: int | None = None  # the most alternatives a token; None: none are told
    prefill_per_s: float | None = None  # prompt tokens a second, if measured
    description: str = ""  # model, source, licence, numeric type: for people


@dataclass(frozen=True)
class Status:
    """Whether an engine can answer now, and if not, why."""

    ready: bool
    reason: str = ""  # empty when ready; else one line such as "loading the model"
    final: bool = False  # it will not get ready: what was configured can't be used
    broken: bool = False  # it will not get ready again in this process
    details: Mapping[str, str] = field(default_factory=dict)  # for people and probes


class Reply(Protocol):
    """
    A stream of events, `End` last, that its reader may abandon.

    Nothing runs until it is read: iterating starts the work. It is read by one
    thread, once. A failure is raised from the iterator as an `OfaError`.
    """

    @property
    def patient(self) -> bool:
        """
        Whether it never keeps its reader waiting: in a silence it yields `Waiting` at
        least every `SILENCE_S`. Others are read by a thread of the queue's.
        """

    @property
    def told(self) -> Mapping[str, str]:
        """What the client should know before the first event: headers ``x-ofa-…``."""

    def __iter__(self) -> Iterator[Event]:
        """Yield the events as they arrive."""

    def close(self) -> None:
        """Stop the work behind the stream. Any thread, any time, any number of times.

        A reader blocked in the iterator comes back within a second: with `Cancelled`
        or by the end of the iteration.
        """


class Around:
    """What stands around a reply and reads it: a subclass says what it makes of it."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def patient(self) -> bool:
        """Whether the inner reply is."""
        return self._reply.patient

    @property
    def told(self) -> Mapping[str, str]:
        """What the inner reply tells."""
        return self._reply.told

    def close(self) -> None:
        """Stop the inner reply."""
        self._reply.close()


class InHand:
    """The reply that is being read, in whose place another may come; safe for threads.

    For what reads one and then, perhaps, the next: whoever closes it closes whichever
    is there, and none is read that comes later.
    """

    def __init__(self, reply: Reply | None = None) -> None:
        self._lock = threading.Lock()
        self.reply = reply
        self.closed = False

    def check(self) -> None:
        """Raise `Cancelled` if it was closed."""
        if self.closed:
            raise Cancelled("the reader left")

    def take(self, reply: Reply) -> Reply:
        """Return *reply*, the one from now on; closed meanwhile, raise `Cancelled`."""
        with self._lock:
            self.reply, closed = reply, self.closed
        if closed:
            reply.close()
        self.check()
        return reply

    def close(self) -> None:
        """Stop the reply that is there, and take no other."""
        with self._lock:
            self.closed = True
            reply = self.reply
        if reply is not None:
            reply.close()


class Engine(Protocol):
    """Anything that can continue a chat."""

    def reply(self, chat: Chat) -> Reply:
        """
        Check *chat* and return its reply, not yet started.

        Everything that can be refused is refused here, on the caller's thread, while
        a status can still be sent: `BadRequest` with the field, `ContextLengthExceeded`
        with both numbers, `NotReady`, `Overloaded`.
        """

    def limits(self, weights: str = "") -> Limits:
        """
        Return what it can take; cheap, never waits for a model to load.

        *weights* is as in `Chat`; engines with one model need not look at it.
        """

    def status(self) -> Status:
        """Return whether it can answer now; cheap, never blocks."""

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """
        Make chats that begin like these quick, whenever there is nothing else to do.

        Returns at once and never fails; what can't be done is left out.
        """

    def count_tokens(self, text: str) -> int:
        """Return the length of *text* in tokens: exact where a tokenizer is at hand,
        else an estimate on the high side."""

    def close(self) -> None:
        """Stop all work and free what is held. Safe to call twice."""


def refuse_unable(chat: Chat, limits: Limits) -> None:
    """Raise `BadRequest` for what *chat* asks and an engine of *limits* can't do."""
    if chat.output is not None and not limits.structured:
        raise _unsupported(
            chat.output.param, "this server's engine can't hold an answer to a schema"
        )
    if chat.logprobs is not None and limits.logprobs is None:
        raise _unsupported("logprobs", "this server's engine tells none; leave it out")
    if chat.logprobs is not None and chat.logprobs > (limits.logprobs or 0):
        raise _unsupported("top_logprobs", f"at most {limits.logprobs} are told here")
    if chat.choices > limits.choices:
        raise _unsupported("n", f"at most {limits.choices} here; ask again for more")


def _unsupported(param: str, remedy: str) -> BadRequest:
    return BadRequest(f"{param}: {remedy}", param=param, code="unsupported_value")
