"""One model of the engine's: how it is loaded, and what is known of it since."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from ...errors import OfaError
from .lm import Loader
from .ready import Ready, Wish
from .rows import Row
from .speed import Speed


class Weights:
    """
    One configured model: how it is loaded, and what is known of it since.

    Written by the engine's thread alone; read by all. *arrived* is called on that
    thread each time the weights are there, and returns at once.
    """

    def __init__(self, name: str, load: Loader, wish: Wish | None = None) -> None:
        self.name = name
        self.arrived: Callable[[], None] = _nothing
        self.load = load
        self.wish = wish or Wish()
        self.speed = Speed()
        self.settled = threading.Event()  # loaded once, or known not to load
        self.ready: Ready | None = None  # stays when the weights go
        self.failure: OfaError | None = None
        self.state: Literal["unloaded", "loading", "resident"] = "unloaded"
        # Rows, and since when; None stands for one that can't be made before loading.
        self.waiting: deque[tuple[Row | None, float]] = deque()
        self._again_s: float | None = None  # since when they are loaded again
        self._load_s = 0.0  # what the longest load took

    @contextmanager
    def being_loaded(self) -> Iterator[None]:
        """Note that a load is under way, all that belongs to it, and how long it took;
        it is for the caller to say how it went."""
        self.state = "loading"
        began_s = time.monotonic()
        self._again_s = None if self.ready is None else began_s
        try:
            yield
        finally:
            self._again_s = None
            self._load_s = max(self._load_s, time.monotonic() - began_s)

    def overdue_s(self, limit_s: float) -> float:
        """
        Return how long loading again has taken, if that is longer than it may be.

        It may take *limit_s*, or three times what the longest took. A first load may
        take any time: nobody knows how large a model is, and how slow its disk.
        """
        again_s = self._again_s
        if again_s is None:
            return 0.0
        took_s = time.monotonic() - again_s
        return took_s if took_s > max(limit_s, 3 * self._load_s) else 0.0

    def is_wanted(self) -> bool:
        """Return whether anybody waits for this model, and forget those who left."""
        while self.waiting:
            row, _ = self.waiting[0]
            if row is None or not row.cancelled:
                return True
            self.waiting.popleft()
        return False

    def fail_waiting(self, error: OfaError) -> None:
        """End all rows that wait for this model with *error*."""
        while self.waiting:
            row, _ = self.waiting.popleft()
            if row is not None:
                row.fail(error)


def _nothing() -> None:
    """Do nothing."""
