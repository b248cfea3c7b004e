"""One answer of the MLX engine: token ids in, events out, on the reader's thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...chat import (
    Call,
    End,
    Event,
    FinishReason,
    Logprob,
    Message,
    Text,
    Thought,
    ToolCall,
    Usage,
    Waiting,
)
from ...toolcalls.base import Failed
from ...toolcalls.reader import Reader
from ..text import Channels, StopStrings
from .foreign import FOREIGN, as_ours, note_place
from .repetition import Repetition
from .rows import Mailbox, Row, Sampled
from .vocabulary import Decoder, Vocabulary

log = logging.getLogger("ofa.engine.mlx")

_NEVER_LOGPROB = -9999.0  # OpenAI's number for a token that was ruled out


Piece = Text | Thought | Call | Failed


@dataclass
class Writer:
    """
    Turns the tokens of one choice into pieces of text, and with a *reader* into calls.

    The control tokens that a reader of the answer may see come from *decoder* under
    alias. What they mean is taken out on the way; the rest leaves as it is spelled.
    Stop strings are looked for in the answer's text only: in a model's reasoning a
    client's stop would end it before it has said anything, in a call it would cut it.
    An answer that says the same over and over ends as at its limit.
    """

    decoder: Decoder
    channels: Channels
    stops: StopStrings
    vocabulary: Vocabulary
    repetition: Repetition
    reader: Reader | None = None
    index: int = 0
    sampled: int = 0
    reasoning: int = 0
    text: list[str] = field(default_factory=list)  # of the answer, for the next turn
    calls: list[ToolCall] = field(default_factory=list)  # likewise
    failed: bool = False  # a call of it was none
    finish: FinishReason | None = None  # why it wants no more tokens
    ended: bool = False
    _held: list[Logprob] = field(default_factory=list)  # of what may still be a call
    _logprobs: list[Logprob] = field(default_factory=list)  # of text to come

    @property
    def answer(self) -> Message:
        """What was answered, as a next request will send it back."""
        return Message("assistant", "".join(self.text), tuple(self.calls))

    def feed(self, sampled: Sampled) -> Iterator[Piece]:
        """Yield what a token makes visible, and at the end all that was held back."""
        self.sampled += 1
        self.reasoning += self.channels.thinking
        if sampled.finish != "stop":  # an end token is no text
            if sampled.logprob is not None and not self.channels.thinking:
                self._held.append(self._likely(sampled, sampled.logprob))
            text = self.decoder.feed(sampled.token)
            yield from self._visible(self.channels.feed(text))
        if sampled.finish or self.repetition.feed(sampled.token):
            yield from self._visible(self.channels.flush())
            if self.reader is not None:
                cut = sampled.finish != "stop"
                yield from self._read(self.reader.finish(cut=cut))
            yield from self._rest()

    def _visible(self, pieces: Sequence[Text | Thought]) -> Iterator[Piece]:
        for piece in pieces:
            if self.stops.done:
                return
            if isinstance(piece, Thought):
                yield Thought(self.vocabulary.plain(piece.text), self.index)
            elif self.reader is None:
                yield from self._read([piece.text])
            else:
                yield from self._read(self.reader.feed(piece.text))
        if self.reader is None:
            self._sure()

    def _read(self, parts: Sequence[str | ToolCall | Failed]) -> Iterator[Piece]:
        for part in parts:
            if self.stops.done:
                return
            if isinstance(part, str):
                self._sure()
                if text := self.stops.feed(self.vocabulary.plain(part)):
                    yield self._piece(text)
                continue
            self._held.clear()
            yield from self._rest()
            yield self._call(part)

    def _sure(self) -> None:
        """Know that what was held back is text."""
        self._logprobs += self._held
        self._held.clear()

    def _rest(self) -> Iterator[Text]:
        """Yield the text that might have been the start of a stop string."""
        rest = self.stops.flush()
        if rest or self._logprobs:
            yield self._piece(rest)

    def _call(self, part: ToolCall | Failed) -> Call | Failed:
        plain = self.vocabulary.plain
        if isinstance(part, Failed):
            self.failed = True
            return Failed(plain(part.raw), plain(part.why), self.index)
        call = replace(part, arguments=_plain(part.arguments, plain))
        self.calls.append(call)
        return Call(call, self.index)

    def _piece(self, text: str) -> Text:
        logprobs, self._logprobs = tuple(self._logprobs), []
        self.text.append(text)
        return Text(text, self.index, logprobs)

    def _likely(self, sampled: Sampled, logprob: float) -> Logprob:
        raw = self.vocabulary.raw(sampled.token)
        top = tuple(
            Logprob(_text(other), max(value, _NEVER_LOGPROB), other)
            for token, value in sampled.top
            if value > -math.inf  # ruled out: no alternative
            for other in (self.vocabulary.raw(token),)
        )
        return Logprob(_text(raw), max(logprob, _NEVER_LOGPROB), raw, top)


def _plain(value: Any, plain: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    """Return *value* with all its texts made *plain*."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(one, plain) for one in value]
    if isinstance(value, dict):
        return {plain(key): _plain(one, plain) for key, one in value.items()}
    return value


def _written(writer: Writer, sampled: Sampled) -> list[Piece]:
    """Return what a token makes visible; raise `EngineError` if that fails."""
    try:
        return list(writer.feed(sampled))
    except FOREIGN as error:
        note_place("a token could not be turned into text", error)
        message = "the engine could not write this answer; send it again"
        raise as_ours(error, message) from None


def _finish(writer: Writer, sampled: Sampled) -> FinishReason | None:
    """Return why *writer* is done with *sampled*, if it is."""
    if writer.reader is not None and writer.reader.repeats:
        return "tools"  # a weak model that is made to call may do so for ever
    if writer.repetition.found and not writer.stops.done:
        log.info("an answer repeats itself and ends as at its limit")
        return "length"
    if not (sampled.finish or writer.stops.done):
        return None
    if sampled.finish == "length" and not writer.stops.done:
        return "length"
    return "tools" if writer.calls else "stop"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class MlxReply:
    """
    Rows that start when they are read; see `Reply`.

    *submit* sends a row to the engine's thread; *finished* gets the answer of a chat
    with one choice once it is complete, for what a next turn will begin with. Calls
    that are none come out as `Failed`, for who may ask again.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        writers: Sequence[Writer],
        *,
        submit: Callable[[Row], None],
        finished: Callable[[Message], None],
        told: Mapping[str, str],
    ) -> None:
        self._rows = rows
        self._writers = writers
        self._submit = submit
        self._finished = finished
        self._told = told
        self._mailbox: Mailbox = rows[0].mailbox

    @property
    def patient(self) -> bool:
        """Yes: it reads what the engine's thread hands it."""
        return True

    @property
    def told(self) -> Mapping[str, str]:
        """How much of the prompt is at hand already."""
        return self._told

    def __iter__(self) -> Iterator[Event | Failed]:
        """Yield the events of all choices; starts the work."""
        for row in self._rows:
            self._submit(row)
        whole = False
        try:
            left = len(self._rows)
            for item in self._mailbox.read():
                if item is None:
                    yield Waiting()
                    continue
                writer = self._writers[item.index]
                if isinstance(item, Sampled) and not writer.finish:
                    yield from _written(writer, item)
                    writer.finish = _finish(writer, item)
                    if item.finish:  # told once the row is gone from the batch
                        continue
                if writer.finish and not writer.ended:
                    writer.ended = True
                    left -= 1
                    whole = not left
                    yield self._end(writer.finish, writer.index, last=whole)
                    if whole:
                        return
        finally:
            self.close()
            if whole and len(self._writers) == 1 and not self._writers[0].failed:
                self._finished(self._writers[0].answer)

    def close(self) -> None:
        """Stop the work at the engine's next step; the reader comes back at once."""
        self._mailbox.cancel()

    def _end(self, reason: FinishReason, index: int, *, last: bool) -> End:
        if not last:
            self._rows[index].over = True
            return End(reason, None, index, last=False)
        # The batch may be at work on more: out with it, then tell.
        self.close()
        usage = Usage(
            prompt_tokens=len(self._rows[0].ids),
            completion_tokens=sum(writer.sampled for writer in self._writers),
            cached_tokens=self._rows[0].cached,
            reasoning_tokens=sum(writer.reasoning for writer in self._writers),
        )
        return End(reason, usage, index)
