"""One answer of the MLX engine: token ids in, events out, on the reader's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...chat import End, Event, FinishReason, Logprob, Text, Thought, Usage
from ..text import Channels, StopStrings
from .foreign import FOREIGN, as_ours, note_place
from .rows import Mailbox, Row, Sampled
from .vocabulary import Decoder, Vocabulary

_NEVER_LOGPROB = -9999.0  # OpenAI's number for a token that was ruled out


@dataclass
class Writer:
    """
    Turns the tokens of one choice into pieces of text.

    Stop strings are looked for in the answer only: in a model's reasoning a client's
    stop would end it before it has said anything.
    """

    decoder: Decoder
    channels: Channels
    stops: StopStrings
    vocabulary: Vocabulary
    index: int = 0
    sampled: int = 0
    reasoning: int = 0
    text: list[str] = field(default_factory=list)  # of the answer, for the next turn
    ended: bool = False
    _logprobs: list[Logprob] = field(default_factory=list)

    def feed(self, sampled: Sampled) -> Iterator[Text | Thought]:
        """Yield what a token makes visible, and at the end all that was held back."""
        self.sampled += 1
        self.reasoning += self.channels.thinking
        if sampled.finish != "stop":  # an end token is no text
            if sampled.logprob is not None and not self.channels.thinking:
                self._logprobs.append(self._likely(sampled, sampled.logprob))
            yield from self._visible(
                self.channels.feed(self.decoder.feed(sampled.token))
            )
        if sampled.finish:
            yield from self._visible(self.channels.flush())
            rest = self.stops.flush()
            if rest or self._logprobs:
                yield self._piece(rest)

    def _visible(self, pieces: Sequence[Text | Thought]) -> Iterator[Text | Thought]:
        for piece in pieces:
            if self.stops.done:
                return
            if isinstance(piece, Thought):
                yield Thought(piece.text, self.index)
            elif text := self.stops.feed(piece.text):
                yield self._piece(text)

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


def _written(writer: Writer, sampled: Sampled) -> list[Text | Thought]:
    """Return what a token makes visible; raise `EngineError` if that fails."""
    try:
        return list(writer.feed(sampled))
    except FOREIGN as error:
        note_place("a token could not be turned into text", error)
        message = "the engine could not write this answer; send it again"
        raise as_ours(error, message) from None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class MlxReply:
    """
    Rows that start when they are read; see `Reply`.

    *submit* sends a row to the engine's thread; *finished* gets the answer of a chat
    with one choice once it is complete, for what a next turn will begin with.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        writers: Sequence[Writer],
        *,
        submit: Callable[[Row], None],
        finished: Callable[[str], None],
        told: Mapping[str, str],
    ) -> None:
        self._rows = rows
        self._writers = writers
        self._submit = submit
        self._finished = finished
        self._told = told
        self._mailbox: Mailbox = rows[0].mailbox

    @property
    def told(self) -> Mapping[str, str]:
        """How much of the prompt is at hand already."""
        return self._told

    def __iter__(self) -> Iterator[Event]:
        """Yield the events of all choices; starts the work."""
        for row in self._rows:
            self._submit(row)
        whole = False
        try:
            left = len(self._rows)
            for sampled in self._mailbox.read():
                writer = self._writers[sampled.index]
                if writer.ended:
                    continue
                yield from _written(writer, sampled)
                finish = "stop" if writer.stops.done else sampled.finish
                if finish:
                    writer.ended = True
                    left -= 1
                    whole = not left
                    yield self._end(finish, writer.index, last=whole)
                    if whole:
                        return
        finally:
            self.close()
            if whole and len(self._writers) == 1:
                self._finished("".join(self._writers[0].text))

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
