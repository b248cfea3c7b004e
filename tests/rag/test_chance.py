"""What a cosine is worth in a collection: measured with questions off every topic."""

import numpy as np
import pytest

from ofa.rag.chance import QUESTIONS, Chance, measure

from .shelves import Letters


class Known:
    """An embedder whose questions lie at known angles to the first axis."""

    def __init__(self, cosines):
        self._cosines = iter(cosines)
        self.asked = []

    def query(self, text):
        """Return the next question's unit vector."""
        self.asked.append(text)
        cosine = next(self._cosines)
        return np.array([cosine, np.sqrt(1 - cosine**2), 0], dtype=np.float32)


def test_mean_and_spread_are_those_of_the_best_passage():
    """The nearest of several counts for each question, and no other."""
    cosines = np.linspace(0.1, 0.5, len(QUESTIONS))
    passages = np.array([[0, 0, 1], [1, 0, 0], [-1, 0, 0]], dtype=np.float32)

    found = measure(passages, Known(cosines))

    assert found.mean == pytest.approx(cosines.mean(), abs=1e-5)
    assert found.spread == pytest.approx(cosines.std(), abs=1e-5)


def test_every_question_is_asked_once_and_bare():
    """A hundred different questions, without blanks around them."""
    embedder = Known([0.2] * len(QUESTIONS))

    measure(np.eye(3, dtype=np.float32), embedder)

    assert len(set(embedder.asked)) == len(embedder.asked) == len(QUESTIONS) == 100
    assert all(text == text.strip() != "" for text in embedder.asked)


def test_passages_that_are_all_alike_have_a_spread():
    """Without one, any question would be endlessly far beyond chance."""
    passages = np.tile(np.array([[1, 0, 0]], dtype=np.float32), (5, 1))

    found = measure(passages, Known([0.3] * len(QUESTIONS)))

    assert found.mean == pytest.approx(0.3, abs=1e-5)
    assert 0 < found.spread < Chance().spread
    assert np.isfinite(found.beyond(0.9))


def test_no_passages_are_no_measurement():
    """Nothing is asked of nothing."""
    assert measure(np.zeros((0, 3), dtype=np.float32), Known([])) == Chance()


def test_beyond_counts_spreads_from_the_mean():
    """Chance itself is 0, and what is less likely still is below it."""
    chance = Chance(mean=0.3, spread=0.05)

    assert chance.beyond(0.3) == 0
    assert chance.beyond(0.4) == pytest.approx(2)
    assert chance.beyond(0.25) == pytest.approx(-1)


def test_more_passages_come_nearer_by_chance():
    """Why it is measured a collection, and not once for all."""
    embedder = Letters()
    texts = [f"{word} of the solver" for word in QUESTIONS[0].split()]
    few, many = embedder.passages(texts[:1]), embedder.passages(texts)

    assert measure(many, embedder).mean > measure(few, embedder).mean
