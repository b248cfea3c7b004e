"""Which rows are compared at all: each side's best, and those that are pinned."""

from dataclasses import replace

import numpy as np
import pytest

from ofa.rag.generation import Generation, Manifest
from ofa.rag.lexical import Lexical
from ofa.rag.passage import Passage
from ofa.rag.rank import POOL, Leg, ranked


def leg(words, *, pinned=()):
    """Return a leg whose passages have these scores, without vectors."""
    passages = [
        Passage("hpc", f"{n}.md", "", "", f"text {n}", pinned=n in pinned)
        for n in range(len(words))
    ]
    about = Manifest("hpc", "", "", "", 1, "", "", len(words))
    vectors = np.ones((len(words), 1), dtype=np.float32)
    generation = Generation("g", about, passages, vectors, Lexical.build([]))
    scores = np.asarray(words, dtype=np.float32)
    return Leg(generation, scores, np.zeros_like(scores), np.zeros_like(scores))


def found(legs, most=POOL):
    """Return the rows of the hits."""
    hits = ranked([legs], dense_weight=0.3, max_per_file=3, max_hits=most)
    return [hit.row for hit in hits]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows", [POOL - 1, POOL, POOL + 1, 3000])
def test_the_pool_is_what_sorting_all_would_give(rows, seed):
    """Of equal scores the first rows count, as with a stable sort."""
    rng = np.random.default_rng(seed)
    few = rng.choice([1, 2, 3.5, 4], size=rows)
    scores = few if seed % 2 else rng.random(rows) + 0.1

    expected = np.argsort(-scores, kind="stable")[:POOL]

    assert found(leg(scores)) == expected.tolist()


def test_pinned_rows_come_first_however_they_score():
    """A pinned passage is there among thousands of better ones."""
    scores = np.linspace(2, 1, 500)

    assert found(leg(scores, pinned=(499, 250)), most=3) == [250, 499, 0]


def test_of_equal_passages_the_one_in_the_fitting_file_is_first():
    """And of those the one in the fitting folder: what stands around it tells."""
    alike = leg([1.0, 1.0, 1.0])
    whole = replace(
        alike,
        files=np.array([0, 1, 1], dtype=np.float32),
        folders=np.array([0, 0, 1], dtype=np.float32),
    )

    assert found(alike) == [0, 1, 2]
    assert found(whole) == [2, 1, 0]


def test_all_pieces_of_a_fitting_file_are_compared():
    """Also one that by itself is behind thousands of others."""
    scores = np.linspace(2, 1, 500).astype(np.float32)
    files = np.zeros(500, dtype=np.float32)
    files[499] = 5

    hits = found(replace(leg(scores), files=files), most=500)

    assert 499 in hits
    assert 498 not in hits
