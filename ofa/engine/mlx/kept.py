"""Grammars that are kept for the next request, until they are worn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_KEPT = 32
_ROWS = 256  # rows share what their lexer has learnt, and that is never given back

K = TypeVar("K", bound=Hashable)


class Wearing:
    """What any number of rows may be held to, but not for ever."""

    def __init__(self) -> None:
        self._rows = 0
        self._failed = False

    @property
    def worn(self) -> bool:
        """Whether the next row should be held to a new one of the same text."""
        return self._failed or self._rows >= _ROWS

    def _use(self) -> None:
        self._rows += 1

    def _fail(self) -> None:
        self._failed = True


W = TypeVar("W", bound=Wearing)


class Kept(Generic[K, W]):
    """The grammars used last, by what they were made of; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, W] = OrderedDict()

    def get(self, key: K) -> W | None:
        """Return the one of *key*, if there is one that is not worn."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.worn:
                return None
            self._kept.move_to_end(key)
            return kept

    def put(self, key: K, made: W) -> None:
        """Keep *made*; what was used longest ago goes."""
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
