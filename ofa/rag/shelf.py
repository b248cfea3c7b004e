"""
The collections that a running server answers from, each at its newest sound state.

Knows generations and when to look for new ones; nothing of questions. A state that
can't be read switches nothing off while an older one is in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .generation import (
    CURRENT,
    Generation,
    IndexDamaged,
    current_folder,
    open_generation,
)

log = logging.getLogger("ofa.rag")

LOOK_EVERY_S = 1.0  # a rebuilt index is served within two seconds of its rename

# What a pointer's stat tells: another number is another file, or another content.
Mark = tuple[int, int, int]


@dataclass
class _Place:
    """What is known of one collection."""

    looked_s: float = float("-inf")
    mark: Mark | None = None
    generation: Generation | None = None
    problem: str = ""


class Shelf:
    """
    The collections under *folder*, one folder each; safe to share between threads.

    *fingerprint* is the embedder's that will ask: a generation made with another model
    would compare numbers that have nothing to do with each other, and is a problem.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fingerprint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}

    def generation(self, collection: str) -> Generation | None:
        """
        Return the state of *collection* to answer from, or None if there is none.

        Looks at the pointer file at most once in `LOOK_EVERY_S`; one thread reads a new
        generation while the others go on with the old one.
        """
        with self._lock:
            place = self._places.setdefault(collection, _Place())
            now = self._clock()
            due = now - place.looked_s >= LOOK_EVERY_S
            if due:
                place.looked_s = now
        if due:
            self._look(collection, place)
        return place.generation

    @property
    def problems(self) -> Mapping[str, str]:
        """What keeps collections from their newest state, by collection."""
        with self._lock:
            places = self._places.items()
            return {name: place.problem for name, place in places if place.problem}

    def collections(self) -> tuple[str, ...]:
        """Return the names of all collections that have a state, sorted."""
        try:
            found = {path.parent.name for path in self._folder.glob(f"*/{CURRENT}")}
        except OSError:
            found = set()
        with self._lock:
            held = {name for name, place in self._places.items() if place.generation}
        return tuple(sorted(found | held))

    def _look(self, collection: str, place: _Place) -> None:
        folder = self._folder / collection
        mark = _mark(folder / CURRENT)
        if mark == place.mark and not place.problem:
            return
        if mark is None:
            self._say(collection, place, "its folder is gone" if place.mark else "")
            return
        try:
            generation = self._open(folder)
        except IndexDamaged as exc:
            self._say(collection, place, str(exc))
            return
        with self._lock:
            place.mark, place.generation, place.problem = mark, generation, ""
        log.info(
            "collection %s: serving %s, %d passages",
            collection,
            generation.name,
            generation.manifest.passages,
        )

    def _open(self, folder: Path) -> Generation:
        newest = current_folder(folder)
        if newest is None:
            raise IndexDamaged(f"{folder}: it went away while it was read")
        generation = open_generation(newest)
        if generation.collection != folder.name:
            raise IndexDamaged(
                f"{newest}: it holds the collection {generation.collection!r}; "
                f"run `ofa index build {folder.name}`"
            )
        if self._fingerprint not in ("", generation.manifest.fingerprint):
            raise IndexDamaged(
                f"{newest}: made with another embedding model "
                f"({generation.manifest.embedder}); run `ofa index build {folder.name}`"
            )
        return generation

    def _say(self, collection: str, place: _Place, problem: str) -> None:
        with self._lock:
            new = problem != place.problem
            place.problem = problem
        if problem and new:
            kept = "the state before it is served" if place.generation else "it is off"
            log.warning("collection %s: %s (%s)", collection, problem, kept)


def _mark(pointer: Path) -> Mark | None:
    try:
        seen = pointer.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
