"""One request inside the engine: what its reader and the engine's thread share."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Literal

from ...chat import Sampling
from ...errors import Cancelled, OfaError

Finish = Literal["", "stop", "length"]


class Row:
    """
    A prompt on its way through a batch, and the mailbox its tokens come back in.

    The engine's thread calls `put` and `fail`; the reader iterates; anyone cancels.
    """

    def __init__(
        self, ids: tuple[int, ...], *, max_tokens: int, sampling: Sampling
    ) -> None:
        self.ids = ids
        self.max_tokens = max_tokens
        self.sampling = sampling
        self.cancelled = False
        self._mailbox: SimpleQueue[tuple[int, Finish] | OfaError] = SimpleQueue()

    def put(self, token: int, finish: Finish) -> None:
        """Hand over one sampled token; *finish* is set with the last."""
        self._mailbox.put((token, finish))

    def fail(self, error: OfaError) -> None:
        """End the row with *error*."""
        self._mailbox.put(error)

    def cancel(self) -> None:
        """Have the row taken out at the engine's next step, its reader at once."""
        self.cancelled = True
        self._mailbox.put(Cancelled("the request was cancelled"))

    def __iter__(self) -> Iterator[tuple[int, Finish]]:
        while True:
            item = self._mailbox.get()
            if self.cancelled:
                raise Cancelled("the request was cancelled")
            if isinstance(item, OfaError):
                raise item
            yield item
            if item[1]:
                return
