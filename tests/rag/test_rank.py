"""Which rows are compared at all: each side's best, and those that are pinned."""

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
    return Leg(generation, np.asarray(words, dtype=np.float32))


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
