"""
Who is next: a waiting line in which nobody is kept out by who asks more.

Knows keys and priorities; nothing of chats, engines or HTTP.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Generic, TypeVar

from ..errors import ShuttingDown

T = TypeVar("T")

# Keys whose last turn is remembered. Of more, those served longest ago are forgotten,
# which makes no difference to their place: first.
_KEYS_REMEMBERED = 1024


class Line(Generic[T]):
    """
    Items in the order in which they are to be served, for any number of threads.

    A lower priority goes first. Within one, keys take turns: next is the oldest item
    of the key that was served longest ago, so that ten jobs of one key make another
    key's single job wait for one of them, not for ten.

    With a *side_limit*, at most that many items of a priority over 0 are out at once:
    taken, and not yet told to be `done`.
    """

    def __init__(self, *, side_limit: int | None = None) -> None:
        self._side_limit = side_limit
        self._sides_out: list[T] = []
        self._lock = threading.Lock()
        self._rows: dict[int, _Row[T]] = {}  # by priority; emptied ones stay
        self._serial = itertools.count(1)
        self._open = True

    def put(self, item: T, *, key: str = "", priority: int = 0) -> None:
        """Add *item* behind the others of *key*; `ShuttingDown` once closed."""
        with self._lock:
            if not self._open:
                raise ShuttingDown("the server is stopping; ask again in a minute")
            row = self._rows.setdefault(priority, _Row())
            row.put(item, key, next(self._serial))

    def get_nowait(self) -> T | None:
        """Return the next item, or None if there is none that may go now."""
        with self._lock:
            priority = self._next()
            return None if priority is None else self._take(priority)

    def done(self, item: T) -> None:
        """Tell that *item*, taken before, is finished; no matter without a limit."""
        with self._lock:
            _discard(self._sides_out, item)

    def remove(self, item: T) -> bool:
        """Take *item* itself out, wherever it stands; whether it was there."""
        with self._lock:
            return any(row.remove(item) for row in self._rows.values())

    def close(self) -> None:
        """Take no more items; what is in line stays."""
        with self._lock:
            self._open = False

    def __len__(self) -> int:
        """Return how many items are in line."""
        with self._lock:
            return sum(len(row) for row in self._rows.values())

    def _next(self) -> int | None:
        """Return the priority of the next item, if it may go."""
        filled = (priority for priority, row in self._rows.items() if len(row))
        first = min(filled, default=None)
        if first is None or (first > 0 and self._sides_are_out()):
            return None
        return first

    def _sides_are_out(self) -> bool:
        limit = self._side_limit
        return limit is not None and len(self._sides_out) >= limit

    def _take(self, priority: int) -> T:
        item = self._rows[priority].take(next(self._serial))
        if priority > 0 and self._side_limit is not None:
            self._sides_out.append(item)
        return item


class _Row(Generic[T]):
    """The items of one priority; its line holds the lock."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[int, T]]] = {}  # never an empty one
        self._served: dict[str, int] = {}  # serial of each key's last turn, in order

    def put(self, item: T, key: str, serial: int) -> None:
        self._waiting.setdefault(key, deque()).append((serial, item))

    def take(self, serial: int) -> T:
        key = min(self._waiting, key=self._rank)
        _, item = self._waiting[key].popleft()
        self._served.pop(key, None)
        self._served[key] = serial
        if len(self._served) > _KEYS_REMEMBERED:
            del self._served[next(iter(self._served))]
        self._forget_if_empty(key)
        return item

    def remove(self, item: T) -> bool:
        for key, items in self._waiting.items():
            for place, (_, each) in enumerate(items):
                if each is item:
                    del items[place]
                    self._forget_if_empty(key)
                    return True
        return False

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def _rank(self, key: str) -> tuple[int, int]:
        """Return when *key* was last served, then since when its first item waits."""
        return self._served.get(key, 0), self._waiting[key][0][0]

    def _forget_if_empty(self, key: str) -> None:
        if not self._waiting[key]:
            del self._waiting[key]


def _discard(items: list[T], item: T) -> bool:
    for place, each in enumerate(items):
        if each is item:
            del items[place]
            return True
    return False
