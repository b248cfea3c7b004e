"""
How the collections that a server answers from are: how many passages, how old, sound?

Knows shelves; nothing of who asks. A file system that hangs keeps one look busy, and
everybody else gets what the look before it saw.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from .generation import Generation

WAIT_S = 1.0  # for another's look to end


class Served(Protocol):
    """A `Shelf`, or several as one."""

    def generation(self, collection: str) -> Generation | None:
        """Return a collection's state, or None if there is none."""

    def collections(self) -> tuple[str, ...]:
        """Return the names of all collections."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What keeps collections from their newest state, by collection."""


@dataclass(frozen=True)
class Health:
    """How one collection is; no *passages* where it has no state that can be read."""

    name: str
    passages: int = 0
    created: datetime | None = None
    embedder: str = ""
    problem: str = ""  # what keeps it from its newest state
    private: bool = False


@dataclass(frozen=True)
class Documents:
    """What retrieval has to tell of itself."""

    collections: tuple[Health, ...]
    embedder: str
    embedder_state: str  # ready, loading or failed
    problems: tuple[str, ...] = ()  # of no collection
    is_fresh: bool = True


class Checkup:
    """Lets one at a time *look*; who would wait for long gets what was seen before."""

    def __init__(
        self,
        look: Callable[[Sequence[str]], Iterable[Health]],
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self._look = look
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._seen: tuple[Health, ...] = ()

    def __call__(self, names: Sequence[str]) -> tuple[tuple[Health, ...], bool]:
        """Return how the collections *names* were seen, and whether just now."""
        if not self._lock.acquire(timeout=self._wait_s):
            return self._seen, False
        try:
            self._seen = tuple(self._look(names))
        finally:
            self._lock.release()
        return self._seen, True


def health(
    shelf: Served, names: Iterable[str] = (), *, private: bool = False
) -> list[Health]:
    """Return how the collections *names* are, and whatever else is on the *shelf*."""
    found = []
    for name in dict.fromkeys((*names, *shelf.collections())):
        state = shelf.generation(name)
        problem = shelf.problems.get(name, "")
        if state is None:
            found.append(Health(name, problem=problem, private=private))
            continue
        about = state.manifest
        found.append(
            Health(
                name,
                about.passages,
                _moment(about.created),
                about.embedder,
                problem,
                private,
            )
        )
    return found


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
