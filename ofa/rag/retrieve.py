"""
From a question to ranked passages: dense and lexical search, joined and gated.

Knows generations, scores and the floor; nothing of prompts, tokens or HTTP. A search
never harms a chat: whatever goes wrong or takes too long ends in a `Found` whose
*reason* says so, and what had been found by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import rank
from .asked import Words
from .courtesy import is_continuation, is_small_talk
from .generation import Generation
from .passage import Hit

log = logging.getLogger("ofa.rag")

# How well the best passage must fit, from 0 to about 1: half for the share of the
# question's words that a collection knows, the rest for meaning beyond chance. On whole
# corpora (16,900 passages) it keeps all 86 questions that have an answer and none of
# 13 others; on the short notes (1,100) 181 of 192, and 3 of 32, most of which are of
# neighbouring fields.
FLOOR = 0.56
NO_FLOOR = -1.0  # as configured: everything gets through
_KNOWN_SHARE = 0.5
_SPREADS = 20  # beyond chance that count 1: what MiniLM gives a question its answer
# Without vectors: the share of a question's words that one passage must have.
WORDS_FLOOR = 0.5

_SLOW = "the embedding model took too long"

# A worker that hangs (a dead file server) keeps its place; the rest goes on.
PLACES = 8
# Question vectors kept: one question is asked of shared and of private passages.
_VECTORS_KEPT = 16


class Generations(Protocol):
    """What is searched: a `Shelf`, or anything that hands out generations."""

    def generation(self, collection: str) -> Generation | None:
        """Return a collection's state, or None if there is none."""

    def collections(self) -> tuple[str, ...]:
        """Return the names of all collections."""


class Embedding(Protocol):
    """What turns a question into a vector: an `Embedder`."""

    @property
    def fingerprint(self) -> str:
        """What must be equal for vectors to be comparable."""

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the unit vector of a question."""


@dataclass(frozen=True)
class Found:
    """
    Passages, best first, and why these or none.

    *reason* begins with ``hit``, ``none``, ``skipped`` or ``failed``; a colon and more
    may follow, never text of a question or document.
    """

    hits: tuple[Hit, ...] = ()
    reason: str = "none"

    @property
    def kind(self) -> str:
        """The first word of the reason."""
        return self.reason.partition(":")[0]


@dataclass(frozen=True)
class Settings:
    """How to rank and when to find nothing; *floor* None lets every match through."""

    dense_weight: float = 0.4  # the rest is the lexical side's: best on the benchmark
    floor: float | None = FLOOR
    max_per_file: int = 3
    max_hits: int = 24
    deadline_s: float = 1.0


class Retriever:
    """
    Finds passages of *shared* collections and, where given, of the user's *private*
    ones. *embedder* returns None while there is none: then words alone decide.
    """

    def __init__(
        self,
        shared: Generations,
        embedder: Callable[[], Embedding | None],
        *,
        private: Generations | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._shared = shared
        self._private = private
        self._embedder = embedder
        self._settings = settings or Settings()
        self._places = threading.BoundedSemaphore(PLACES)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    def find(
        self, collections: Sequence[str], question: str, previous: str = ""
    ) -> Found:
        """
        Return passages of *collections*, which stand in their order of precedence.

        *previous* is the question before, where this one leans on it. Never raises, and
        returns by the deadline, but for ranking what words alone have found then.
        """
        return self._find(self._shared, lambda: collections, (question, previous))

    def find_private(self, question: str, previous: str = "") -> Found:
        """Return passages of all the user's own collections, likewise."""
        if self._private is None:
            return Found()
        names = self._private.collections
        return self._find(self._private, names, (question, previous))

    @property
    def counts(self) -> Mapping[str, int]:
        """How many searches ended in which kind of reason."""
        with self._lock:
            return dict(self._counts)

    def _find(
        self,
        shelf: Generations,
        names: Callable[[], Sequence[str]],
        asked: tuple[str, str],
    ) -> Found:
        found = _skipped(asked[0]) or self._within_deadline(shelf, names, asked)
        with self._lock:
            self._counts[found.kind] += 1
        return found

    def _within_deadline(
        self,
        shelf: Generations,
        names: Callable[[], Sequence[str]],
        asked: tuple[str, str],
    ) -> Found:
        wait_s = self._settings.deadline_s
        until = time.monotonic() + wait_s
        if not self._places.acquire(timeout=wait_s):
            return Found(reason="failed: too many searches at once")
        search = _Search()
        threading.Thread(
            target=self._run,
            args=(search, shelf, names, asked),
            name="ofa-retrieve",
            daemon=True,  # one that hangs must not keep the process
        ).start()
        search.done.wait(max(0.0, until - time.monotonic()))
        late = f"nothing within {wait_s:g} s"
        return search.found or search.without_vectors(late, _SLOW)

    def _run(
        self,
        search: _Search,
        shelf: Generations,
        names: Callable[[], Sequence[str]],
        asked: tuple[str, str],
    ) -> None:
        try:
            self._search(search, shelf, names(), asked)
        except Exception as exc:  # noqa: BLE001 - the thread's hand-over
            # The message may quote a question or a path: the class must do.
            log.warning("retrieval failed: %s", type(exc).__name__)
            failed = type(exc).__name__
            search.found = search.without_vectors(failed, failed)
        finally:
            self._places.release()
            search.done.set()

    def _search(
        self,
        search: _Search,
        shelf: Generations,
        names: Sequence[str],
        asked: tuple[str, str],
    ) -> None:
        opened = [(name, shelf.generation(name)) for name in names]
        generations = [generation for _, generation in opened if generation]
        if not generations:
            search.found = Found(reason="none: no index")
            return
        words = Words.of(asked[0], generations)
        if not words.any_known:
            search.found = Found(reason="none: no known word")
            return
        legs = words.legs(generations, asked[1])
        search.by_words = lambda why: self._by_words(
            legs, words, f"by words alone, {why}"
        )
        search.found = self._by_both(legs, words, asked)

    def _by_words(self, legs: Sequence[rank.Leg], words: Words, why: str) -> Found:
        hits = self._ranked(legs)
        if self._settings.floor is not None:
            best = max((words.share_in(hit.passage) for hit in hits[:5]), default=0.0)
            if best < WORDS_FLOOR:
                return Found(reason=f"none: below the floor, {why}")
        return Found(hits, f"hit: {why}" if hits else "none")

    def _by_both(
        self, legs: Sequence[rank.Leg], words: Words, asked: tuple[str, str]
    ) -> Found:
        embedder = self._embedder()
        if embedder is None:
            why = "by words alone, the embedding model is not loaded"
            return self._by_words(legs, words, why)
        model = embedder.fingerprint
        alike = [leg for leg in legs if leg.generation.manifest.fingerprint == model]
        if not alike:
            why = "by words alone, the index was made with another embedding model"
            return self._by_words(legs, words, why)
        text = f"{asked[1]} {words.mended}".strip()
        vector = self._vector(embedder, text)
        full = [
            leg.with_cosines(vector) if leg in alike else leg  # a mixed shelf
            for leg in legs
        ]
        fit = max(map(_beyond_chance, full)) / _SPREADS + _KNOWN_SHARE * words.known
        floor = self._settings.floor
        if floor is not None and fit < floor:
            return Found(reason=f"none: below the floor ({fit:.2f} of {floor:.2f})")
        hits = self._ranked(full)
        return Found(hits, "hit" if hits else "none")

    def _ranked(self, legs: Sequence[rank.Leg]) -> tuple[Hit, ...]:
        return rank.ranked(
            legs,
            dense_weight=self._settings.dense_weight,
            max_per_file=self._settings.max_per_file,
            max_hits=self._settings.max_hits,
        )

    def _vector(self, embedder: Embedding, text: str) -> NDArray[np.float32]:
        key = f"{embedder.fingerprint} {text}"
        with self._lock:
            known = self._vectors.get(key)
        if known is not None:
            return known
        vector = embedder.query(text)
        with self._lock:
            self._vectors[key] = vector
            while len(self._vectors) > _VECTORS_KEPT:
                self._vectors.popitem(last=False)
        return vector


class _Search:
    """What one search has come to so far; read by its caller when time is up."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.by_words: Callable[[str], Found] | None = None  # once words are scored
        self.done = threading.Event()

    def without_vectors(self, failure: str, why: str) -> Found:
        """
        Return what words alone find, and *why* it was them, else the *failure*.

        Ranked only now: nearly all searches end with vectors. Never raises.
        """
        try:
            found = self.by_words(why) if self.by_words else Found()
        except Exception as exc:  # noqa: BLE001 - a look-up never fails a chat
            log.warning("retrieval by words failed: %s", type(exc).__name__)
            found = Found()
        return found if found.hits else Found(reason=f"failed: {failure}")


def _beyond_chance(leg: rank.Leg) -> float:
    """Return how far a collection's best passage is beyond what chance finds in it."""
    if not leg.cosines.size:
        return 0.0
    return leg.generation.manifest.chance.beyond(float(leg.cosines.max()))


def _skipped(question: str) -> Found | None:
    if is_small_talk(question):
        return Found(reason="skipped: greeting")
    if is_continuation(question):
        return Found(reason="skipped: continuation")
    return None
