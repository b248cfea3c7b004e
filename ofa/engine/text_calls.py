"""
Calls that an engine gave as text, or read itself and nobody checked.

Knows events and `toolcalls`; no engine. What comes out may have `Failed` among it, so
`Careful` stands around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from ..chat import Call, Chat, End, Event, Logprob, Text, Tool
from ..toolcalls.base import Failed, Found
from ..toolcalls.reader import Piece, Reader
from .base import Around, Reply


def offered(chat: Chat) -> tuple[Tool, ...]:
    """Return the tools that may be called in the answer to *chat*."""
    if chat.tool_choice.kind == "none":
        return ()
    if chat.tool_choice.kind != "named":
        return chat.tools
    return tuple(tool for tool in chat.tools if tool.name == chat.tool_choice.name)


@dataclass(frozen=True)
class Unsettled:
    """A call that an engine has read and that `TextCalls` has yet to settle; only
    between these two."""

    found: Found
    identity: str
    index: int = 0


class TextCalls(Around):
    """
    *reply* with the calls that its text holds; *reader* makes a reader for a choice.

    Calls that *reply* brings itself are settled like any other. *texts* False: only
    these are looked at, as where an answer's text is held to a schema.
    """

    def __init__(
        self, reply: Reply, reader: Callable[[], Reader], *, texts: bool = True
    ) -> None:
        super().__init__(reply)
        self._reader = reader
        self._texts = texts
        self._choices: dict[int, _Choice] = {}

    def __iter__(self) -> Iterator[Event]:
        for event in self._reply:
            # `Failed` among them is between us and `Careful` alone.
            yield from cast("Iterable[Event]", self._read(event))

    def _read(self, event: Event | Failed | Unsettled) -> Iterator[Event | Failed]:
        match event:
            case Text() if self._texts:
                yield from self._choice(event.index).text(event)
            case Call(call, index):
                found = Found(call.name, call.arguments)
                yield from self._choice(index).call(found, call.id)
            case Unsettled(found, identity, index):
                yield from self._choice(index).call(found, identity)
            case End():
                yield from self._choice(event.index).end(event)
            case Failed():
                choice = self._choice(event.index)
                choice.reader.tally.failed += 1
                yield event
            case _:
                yield event

    def _choice(self, index: int) -> _Choice:
        if index not in self._choices:
            self._choices[index] = _Choice(index, self._reader())
        return self._choices[index]


@dataclass
class _Choice:
    """One answer, and the log probabilities of text that has not gone out."""

    index: int
    reader: Reader
    logprobs: list[Logprob] = field(default_factory=list)

    def text(self, text: Text) -> Iterator[Event | Failed]:
        self.logprobs += text.logprobs
        yield from self._events(self.reader.feed(text.text))

    def call(self, found: Found, identity: str) -> Iterator[Event | Failed]:
        yield from self._events(self.reader.take(found, identity))

    def end(self, end: End) -> Iterator[Event | Failed]:
        cut = end.reason == "length"
        yield from self._events(self.reader.finish(cut=cut))
        if self.logprobs and not self.reader.calls:
            yield Text("", self.index, tuple(self.logprobs))  # the end mark's
        reason = end.reason
        if not cut:
            reason = "tools" if self.reader.calls else "stop"
        yield End(reason, end.usage, self.index, end.last)

    def _events(self, pieces: Sequence[Piece]) -> Iterator[Event | Failed]:
        for piece in pieces:
            if isinstance(piece, str):
                yield Text(piece, self.index, self._told(piece))
            elif isinstance(piece, Failed):
                self.logprobs.clear()
                yield Failed(piece.raw, piece.why, self.index)
            else:
                self.logprobs.clear()
                yield Call(piece, self.index)

    def _told(self, text: str) -> tuple[Logprob, ...]:
        """Return those of the tokens that make up *text*; the rest waits for more."""
        chars, count = 0, 0
        while count < len(self.logprobs) and chars < len(text):
            chars += len(self.logprobs[count].token)
            count += 1
        told = tuple(self.logprobs[:count])
        del self.logprobs[:count]
        return told
