"""What is read ahead, when nobody waits: which beginnings are left, and since when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from .rows import Row

# Of answers to be read ahead: nothing is, as long as requests come, and whoever got one
# so many answers ago has asked on by then or gone.
_MOST_ANSWERS = 16
# Nothing is begun so soon behind a request: the next one of a burst would wait for it.
REST_S = 0.25


class Ahead:
    """Rows without a reader, oldest first; used on the engine's thread only."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._rows: deque[Row] = deque()
        self._asked_s = -REST_S

    def __bool__(self) -> bool:
        return bool(self._rows)

    def note_request(self) -> None:
        """Note that somebody wants something just now, or got it."""
        self._asked_s = self._now_s()

    @property
    def rest_s(self) -> float:
        """For how long nothing is to be begun yet; 0 where there is nothing."""
        if not self._rows:
            return 0.0
        return max(0.0, self._asked_s + REST_S - self._now_s())

    def put(self, row: Row) -> None:
        """Put *row* last; what has waited longest goes, if that is too much."""
        self._rows.append(row)
        answers = [row for row in self._rows if row.kind == "answer"]
        for old in answers[:-_MOST_ANSWERS]:
            self._rows.remove(old)

    def put_back(self, row: Row) -> None:
        """Put *row*, which was begun, first."""
        self._rows.appendleft(row)

    def take(self) -> Row | None:
        """Return the first, or None while there is none or it is too soon."""
        return self._rows.popleft() if self._rows and not self.rest_s else None

    def clear(self) -> None:
        """Forget all of them."""
        self._rows.clear()
