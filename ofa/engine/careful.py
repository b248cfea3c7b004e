"""
A reply whose calls are all good: one that can't be used is asked for once more.

Sits between an engine whose replies may have `Failed` among their events and everybody
else, who never sees one. Knows chats, events and what calls are made of; no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..chat import (
    Call,
    Chat,
    End,
    Event,
    Message,
    Text,
    Thought,
    Usage,
    Waiting,
)
from ..errors import Cancelled, OfaError
from ..toolcalls.base import Failed
from ..toolcalls.tally import Tally
from .base import InHand, Reply

TOLD = "x-ofa-tools"
_LEAST_TOKENS = 16  # with less left of what the client allows, no call gets far

_FAILED = """\
That call was not carried out: {why}.
Write the call once more without this mistake, or answer in words if no tool helps."""
_NONE = """\
No tool was called, but a call is needed here. Call {what} now, in the form that the \
tools' description asks for, and write nothing else."""


class Careful:
    """
    The reply to *chat* that *ask* gives, and if its calls fail, the one to another try.

    *ask*'s replies may yield `Failed` beside the events of `Reply`. Text goes out as
    it comes, and stays; what follows a failed call waits until it is known whether
    that call is asked for again. A failure that stays is given out as text. *tally*
    is what *ask*'s replies count in.
    """

    def __init__(
        self, chat: Chat, ask: Callable[[Chat], Reply], tally: Tally | None = None
    ) -> None:
        self._chat = chat
        self._ask = ask
        self._tally = tally or Tally()
        self._first = ask(chat)
        self._hand = InHand(self._first)

    @property
    def patient(self) -> bool:
        """Whether the engine's replies are."""
        return self._first.patient

    @property
    def told(self) -> Mapping[str, str]:
        """What the first reply tells, and what has happened to calls so far."""
        told = self._tally.told()
        return {**self._first.told, **({TOLD: told} if told else {})}

    def __iter__(self) -> Iterator[Event]:
        if self._chat.choices > 1:
            yield from _as_they_are(self._first)
            return
        first, again = _Try(), None
        for event in first.read(self._first):
            if not isinstance(event, End):
                yield event
            elif self._is_worth_it(first, event) and (again := self._second(first)):
                break
            else:  # at once: what the reply does behind its end keeps nobody waiting
                yield from first.rest(event.usage)
        if again is not None:
            yield from self._again(first, again)

    def close(self) -> None:
        """Stop whichever reply is being read, and ask for no other."""
        self._hand.close()

    def _is_worth_it(self, tried: _Try, end: End) -> bool:
        """Return whether another try is due, and there is room for it."""
        demanded = self._chat.tool_choice.kind in ("required", "named")
        due = not tried.called and bool(tried.failed or demanded)
        left = _left(self._chat, end.usage)
        room = left is None or left >= _LEAST_TOKENS
        return due and room and end.reason != "length"

    def _second(self, tried: _Try) -> Reply | None:
        """Return the reply to what is asked then; None if the engine refuses."""
        self._hand.check()
        self._first.close()
        try:
            reply = self._ask(self._asked_again(tried))
        except Cancelled:
            raise
        except OfaError:
            return None  # the conversation has grown too long, or a place is lost
        self._hand.take(reply)
        self._tally.asked_again += 1
        return reply

    def _asked_again(self, tried: _Try) -> Chat:
        chat = self._chat
        turns = [Message("user", _what_is_wrong(chat, tried.failed))]
        if said := tried.written():
            turns.insert(0, Message("assistant", said))
        usage = tried.end.usage if tried.end else None
        sampling = replace(chat.sampling, max_tokens=_left(chat, usage))
        return replace(chat, messages=(*chat.messages, *turns), sampling=sampling)

    def _again(self, first: _Try, reply: Reply) -> Iterator[Event]:
        """Yield the second answer, apart from what was sent of the first."""
        spent = first.end.usage if first.end else None
        second = _Try(apart=bool(first.sent))
        try:
            for event in second.read(reply):
                if isinstance(event, End):
                    yield from second.rest(_sum(spent, event.usage))
                else:
                    yield event
        except Cancelled:
            raise
        except OfaError:
            if second.begun:
                raise
            # It was refused only now: the first must do.
            yield from first.rest(spent)
        finally:
            reply.close()


@dataclass
class _Try:
    """One answer as it is read: what went out of it, and what is held back."""

    apart: bool = False  # text went out before: the first of this one starts a block
    begun: bool = False
    called: bool = False
    sent: list[str] = field(default_factory=list)  # text that went out
    held: list[Event | Failed] = field(default_factory=list)  # from the first failure
    failed: list[Failed] = field(default_factory=list)
    end: End | None = None

    def read(self, reply: Reply) -> Iterator[Event]:
        """Yield what may go out, and the end as it came; the rest is held."""
        for event in reply:
            if isinstance(event, End):
                self.end = event
                yield event
                continue
            self.begun = self.begun or not isinstance(event, Waiting)
            yield from self._take(event)

    def rest(self, usage: Usage | None) -> Iterator[Event]:
        """Yield what is held, failed calls as text, and the end with *usage*."""
        yield from self._held()
        if self.end is not None:
            reason = self.end.reason
            if reason != "length":
                reason = "tools" if self.called else "stop"
            yield replace(self.end, reason=reason, usage=usage)

    def written(self) -> str:
        """Return the answer as the model wrote it, as far as it is known."""
        held = (
            event.raw if isinstance(event, Failed) else event.text
            for event in self.held
            if isinstance(event, Failed | Text)
        )
        return "".join((*self.sent, *held))

    def _take(self, event: Event | Failed) -> Iterator[Event]:
        if isinstance(event, Failed):
            self.failed.append(event)
        if isinstance(event, Call) and not self.called:
            self.called = True  # it stands, so nothing is asked again
            yield from self._held()
        if isinstance(event, Waiting | Thought):
            yield event
        elif not self.called and self.failed:
            self.held.append(event)
        else:
            yield from self._given(event)

    def _held(self) -> Iterator[Event]:
        held, self.held = self.held, []
        for event in held:
            yield from self._given(event)

    def _given(self, event: Event | Failed) -> Iterator[Event]:
        if isinstance(event, Failed):
            event = Text(event.raw, event.index)
        if isinstance(event, Text) and event.text:
            if self.apart:
                self.apart = False
                yield Text("\n\n", event.index)
            self.sent.append(event.text)
        yield event


def _as_they_are(reply: Reply) -> Iterator[Event]:
    """Yield the events of *reply*, failed calls as text: of several answers none is
    asked for again."""
    for event in reply:
        yield Text(event.raw, event.index) if isinstance(event, Failed) else event


def _what_is_wrong(chat: Chat, failed: Sequence[Failed]) -> str:
    if failed:
        reasons = dict.fromkeys(one.why.rstrip(".") for one in failed)
        return _FAILED.format(why="; ".join(reasons))
    named = chat.tool_choice.name
    names = ", ".join(sorted(tool.name for tool in chat.tools))
    return _NONE.format(what=named or f"one of the tools ({names})")


def _left(chat: Chat, usage: Usage | None) -> int | None:
    """Return how many tokens the client allows beside those of *usage*."""
    limit = chat.sampling.max_tokens
    if limit is None or usage is None:
        return limit
    return limit - usage.completion_tokens


def _sum(first: Usage | None, second: Usage | None) -> Usage | None:
    """Return all the work there was; None where one engine told no counts."""
    if first is None or second is None:
        return None
    return Usage(
        first.prompt_tokens + second.prompt_tokens,
        first.completion_tokens + second.completion_tokens,
        _both(first.cached_tokens, second.cached_tokens),
        _both(first.reasoning_tokens, second.reasoning_tokens),
    )


def _both(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
