"""
Two kinds of scores to one order: convex fusion, precedence, no doubles.

Knows arrays and passages; nothing of where questions come from. The same scores always
give the same order: ties go to the collection and the passage that come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from .generation import Generation
from .passage import Hit, Passage

Scores = NDArray[np.float32]

# Of each side's best, so many are compared; both lists are long enough to overlap.
POOL = 60

# What the question before counts on the lexical side, where this one leans on it.
PREVIOUS_WEIGHT = 0.5

# What the documents' names for what a question says count beside its own words.
GLOSSARY_WEIGHT = 0.5

# What the first collection's passages gain over the others', on a scale of 0 to 1: a
# site's own notes go before general ones where both fit the question. As much is lost
# with each tier of a place below the first.
PRECEDENCE = 0.1

# What a passage's document and folder count beside its own score of 1: a question's
# words often stand apart, in several pieces of a file or several files of a case.
FILE_WEIGHT, FOLDER_WEIGHT = 0.3, 0.3
_MOST = 1 + FILE_WEIGHT + FOLDER_WEIGHT
# Files whose every piece is compared, if only the whole says that they fit.
_WHOLE_FILES = 10


@dataclass(frozen=True, eq=False)
class Leg:
    """One collection's scores for one question; without vectors, no *cosines*."""

    generation: Generation
    words: Scores
    files: Scores  # for each passage, its document's
    folders: Scores
    cosines: Scores = field(default_factory=lambda: np.empty(0, dtype=np.float32))

    def with_cosines(self, vector: Scores) -> Leg:
        """Return a copy that has each passage's cosine to *vector*."""
        # On one thread: BLAS's others wait spinning, which on busy cores takes longer
        # than all of the product, and cost the answers that are being written.
        found = np.einsum("ij,j->i", self.generation.vectors, vector)
        return replace(self, cosines=found)


def ranked(
    legs: Sequence[Leg], *, dense_weight: float, max_per_file: int, max_hits: int
) -> tuple[Hit, ...]:
    """
    Return the best hits of all *legs*, which stand in their order of precedence.

    Pinned passages come first. A file comes at most *max_per_file* times, and so do
    files that hold the same text: a question may mean any of them.
    """
    scored = sorted(_fused(legs, dense_weight))
    hits = (_hit(legs[entry[2]], entry) for entry in scored)  # of what is looked at
    return tuple(islice(_thinned(hits, max_per_file), max_hits))


# What is not pinned, its score with precedence (negative), leg and row: the order. Then
# the score alone.
Entry = tuple[bool, float, int, int, float]


def _fused(legs: Sequence[Leg], dense_weight: float) -> Iterator[Entry]:
    pools = [_pool(leg) for leg in legs]
    dense = any(leg.cosines.size for leg in legs)
    weight = dense_weight if dense else 0.0
    most = [
        max(scores.max(initial=0) for scores in side) or 1.0
        for side in zip(
            *((leg.words, leg.files, leg.folders) for leg in legs), strict=True
        )
    ]
    low, high = _bounds(legs, pools)
    for place, (leg, pool) in enumerate(zip(legs, pools, strict=True)):
        bonus = PRECEDENCE if place == 0 and len(legs) > 1 else 0.0
        for row in map(int, pool):
            passage = leg.generation.passages[row]
            near = (_cosine(leg, row) - low) / (high - low) if leg.cosines.size else 0.0
            alike = float(leg.words[row]) / most[0]
            score = weight * near + (1 - weight) * alike
            score += FILE_WEIGHT * float(leg.files[row]) / most[1]
            score += FOLDER_WEIGHT * float(leg.folders[row]) / most[2]
            score /= _MOST
            first = bonus - PRECEDENCE * (passage.tier - 1)
            yield not passage.pinned, -(score + first), place, row, float(score)


def _hit(leg: Leg, entry: Entry) -> Hit:
    *_, row, score = entry
    passages = leg.generation.passages
    return Hit(passages[row], score, _cosine(leg, row), row, *_beside(passages, row))


def _cosine(leg: Leg, row: int) -> float:
    return float(leg.cosines[row]) if leg.cosines.size else 0.0


def _beside(
    passages: Sequence[Passage], row: int
) -> tuple[Passage | None, Passage | None]:
    """Return what stands before and behind a passage in its own document."""
    found = [
        passages[at]
        if 0 <= at < len(passages) and passages[at].path == passages[row].path
        else None
        for at in (row - 1, row + 1)
    ]
    return found[0], found[1]


def _pool(leg: Leg) -> NDArray[np.intp]:
    """Return the rows worth comparing: each side's best, and all pinned ones."""
    rows = {int(row) for row in _best(leg.words) if leg.words[row] > 0}
    rows |= {int(row) for row in _best(leg.cosines)}
    rows.update(leg.generation.pinned)
    rows.update(_of_best_files(leg))
    return np.array(sorted(rows), dtype=np.intp)


def _of_best_files(leg: Leg) -> list[int]:
    """Return the rows of the documents that fit best as a whole."""
    best = np.unique(leg.files[leg.files > 0])[-_WHOLE_FILES:]
    return np.flatnonzero(np.isin(leg.files, best)).tolist() if len(best) else []


def _best(scores: Scores) -> NDArray[np.intp]:
    """Return the rows of the `POOL` best scores; of equal ones the first."""
    if len(scores) <= POOL:
        return np.arange(len(scores))
    # Sorting all of 30,000 takes ten times as long as finding the last that counts.
    last = np.partition(scores, len(scores) - POOL)[len(scores) - POOL]
    better, equal = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
    return np.concatenate([better, equal[: POOL - len(better)]])


def _bounds(
    legs: Sequence[Leg], pools: Sequence[NDArray[np.intp]]
) -> tuple[float, float]:
    """Return the least and the greatest cosine of all pools, never equal."""
    cosines = [
        leg.cosines[pool]
        for leg, pool in zip(legs, pools, strict=True)
        if leg.cosines.size and pool.size
    ]
    if not cosines:
        return 0.0, 1.0
    low, high = min(c.min() for c in cosines), max(c.max() for c in cosines)
    return float(low), float(high) if high > low else float(low) + 1.0


def _thinned(hits: Iterator[Hit], max_per_file: int) -> Iterator[Hit]:
    texts: Counter[str] = Counter()
    files: Counter[tuple[str, str]] = Counter()
    for hit in hits:
        file = (hit.passage.collection, hit.passage.path)
        text = hit.passage.reading
        most = max(files[file], texts[text])
        if most >= max_per_file and not hit.passage.pinned:
            continue
        texts[text] += 1
        files[file] += 1
        yield hit
