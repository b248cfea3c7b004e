"""One answer of the MLX engine: token ids in, events out, on the reader's thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...chat import End, Event, FinishReason, Text, Thought, Usage
from ..text import Channels, StopStrings
from .rows import Finish, Row
from .scheduler import Scheduler
from .vocabulary import Decoder


class MlxReply:
    """
    A row that starts when it is read; see `Reply`.

    Stop strings are looked for in the answer only: in a model's reasoning a client's
    stop would end it before it has said anything.
    """

    def __init__(
        self,
        row: Row,
        scheduler: Scheduler,
        *,
        decoder: Decoder,
        channels: Channels,
        stops: StopStrings,
    ) -> None:
        self._row = row
        self._scheduler = scheduler
        self._decoder = decoder
        self._channels = channels
        self._stops = stops
        self._sampled = 0
        self._reasoning = 0

    @property
    def told(self) -> Mapping[str, str]:
        """Nothing yet."""
        return {}

    def __iter__(self) -> Iterator[Event]:
        """Yield the answer's events; starts the work."""
        self._scheduler.submit(self._row)
        try:
            for token, finish in self._row:
                yield from self._read(token, finish)
                if self._stops.done:
                    finish = "stop"
                if finish:
                    # The batch may be at work on more: out with it, then tell.
                    self.close()
                    yield self._end(finish)
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Stop the work at the engine's next step; the reader comes back at once."""
        self._row.cancel()

    def _read(self, token: int, finish: Finish) -> Iterator[Text | Thought]:
        """Yield what *token* makes visible, and at the end all that was held back."""
        self._sampled += 1
        self._reasoning += self._channels.thinking
        if finish != "stop":  # an end token is no text
            yield from self._visible(self._channels.feed(self._decoder.feed(token)))
        if finish:
            yield from self._visible(self._channels.flush())
            rest = self._stops.flush()
            if rest:
                yield Text(rest)

    def _visible(self, pieces: list[Text | Thought]) -> Iterator[Text | Thought]:
        for piece in pieces:
            if self._stops.done:
                return
            if isinstance(piece, Text):
                piece = Text(self._stops.feed(piece.text))
            if piece.text:
                yield piece

    def _end(self, reason: FinishReason) -> End:
        return End(
            reason,
            Usage(
                prompt_tokens=len(self._row.ids),
                completion_tokens=self._sampled,
                reasoning_tokens=self._reasoning,
            ),
        )
