"""
Several shelves as one: what a person built goes before what the site did.

Knows shelves; nothing of where they lie. None is ever written to from here, so that a
site's may stand on a file system that is mounted read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .generation import Generation
from .shelf import Shelf


class Shelves:
    """*shelves* in their order of precedence, asked as one; safe between threads."""

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self._shelves = tuple(shelves)

    def generation(self, collection: str) -> Generation | None:
        """Return the first state of *collection* that there is, or None."""
        for shelf in self._shelves:
            if found := shelf.generation(collection):
                return found
        return None

    @property
    def problems(self) -> Mapping[str, str]:
        """What keeps collections from their newest state, by collection."""
        told: dict[str, str] = {}
        for shelf in reversed(self._shelves):
            told.update(shelf.problems)
        return told

    def collections(self) -> tuple[str, ...]:
        """Return the names of all collections that have a state."""
        return tuple(
            sorted({n for shelf in self._shelves for n in shelf.collections()})
        )
