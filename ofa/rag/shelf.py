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
from dataclasses import dataclass, field
from pathlib import Path

from ..files import reason
from .generation import (
    CURRENT,
    Generation,
    IndexDamaged,
    current_folder,
    has_generations,
    is_retired,
    open_generation,
)

log = logging.getLogger("ofa.rag")

LOOK_EVERY_S = 1.0  # a rebuilt index is served within two seconds of its rename
RETRY_EVERY_S = 15.0  # reading a damaged one again costs as much as a sound one

# What a pointer's stat tells: another number is another file, or another content.
Mark = tuple[int, int, int]


@dataclass
class _Place:
    """What is known of one collection; written by who holds *lock*."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    next_look_s: float = float("-inf")
    retry_s: float = float("-inf")  # for a problem that may pass, an I/O error say
    mark: Mark | None = None  # of the pointer last looked at, sound or not
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

        Looks at the pointer file at most once in `LOOK_EVERY_S`. One thread reads a new
        generation while others go on with the old one, or wait if there is none.
        """
        with self._lock:
            place = self._places.setdefault(collection, _Place())
        if place.lock.acquire(blocking=place.generation is None):
            try:
                self._look(collection, place)
            finally:
                place.lock.release()
        return place.generation

    @property
    def problems(self) -> Mapping[str, str]:
        """What keeps collections from their newest state, by collection."""
        with self._lock:
            places = self._places.items()
            return {name: place.problem for name, place in places if place.problem}

    def collections(self) -> tuple[str, ...]:
        """Return the names of all collections that have a state, without reading it."""
        try:
            found = {path.parent for path in self._folder.glob(f"*/{CURRENT}")}
        except OSError:
            found = set()
        with self._lock:
            held = {name for name, place in self._places.items() if place.generation}
        return tuple(sorted(held | {at.name for at in found if not _retired(at)}))

    def _look(self, collection: str, place: _Place) -> None:
        now = self._clock()
        folder = self._folder / collection
        if now < place.next_look_s:
            return
        place.next_look_s = now + LOOK_EVERY_S
        try:
            mark = _mark(folder / CURRENT)
        except OSError as exc:
            self._say(collection, place, f"{folder / CURRENT}: {reason(exc)}")
            return
        if mark is None:
            # Not there yet, or gone for a moment: what is in memory goes on serving.
            place.mark = None
            self._say(collection, place, _absence(folder, place))
            return
        if mark == place.mark and (not place.problem or now < place.retry_s):
            return
        place.mark, place.retry_s = mark, now + RETRY_EVERY_S
        try:
            place.generation = None if is_retired(folder) else self._open(folder)
        except IndexDamaged as exc:
            self._say(collection, place, str(exc))
            return
        place.problem = ""
        count = place.generation.manifest.passages if place.generation else 0
        log.info("collection %s: serving %d passages", collection, count)

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
        new = problem != place.problem
        place.problem = problem
        if problem and new:
            kept = "the state before it is served" if place.generation else "it is off"
            log.warning("collection %s: %s (%s)", collection, problem, kept)


def _retired(folder: Path) -> bool:
    try:
        return is_retired(folder)
    except IndexDamaged:
        return False  # it had a state, and `problems` will say what became of it


def _absence(folder: Path, place: _Place) -> str:
    """Return what is wrong where there is no pointer; nothing, if never was one."""
    if place.generation:
        return "its folder is gone"
    if has_generations(folder):
        return f"{folder / CURRENT}: it is gone; run `ofa index build` to make it"
    return ""


def _mark(pointer: Path) -> Mark | None:
    try:
        seen = pointer.stat()
    except FileNotFoundError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
