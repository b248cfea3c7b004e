"""Wide layers multiply in pieces, and nobody can tell but by the time it takes."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from ofa.engine.mlx import wide

WIDE, INNER = 40_000, 64  # 10 MB of weights: three pieces of two threads'


class Model(nn.Module):
    """A layer of each kind: wide ones, one that is narrow, one that is tall."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WIDE, INNER)
        self.up = nn.Linear(INNER, WIDE, bias=True)
        self.gate = nn.Linear(INNER, WIDE, bias=False)
        self.down = nn.Linear(WIDE, INNER, bias=False)
        self.narrow = nn.Linear(INNER, INNER)


def made():
    """Return two models of the same weights, all of them evaluated."""
    one, other = Model(), Model()
    other.update(one.parameters())
    mx.eval(one.parameters())
    return one, other


@pytest.mark.parametrize("rows", [(1,), (2,), (3, 1), (2, 4), (16,), (256,), (257,)])
def test_the_product_is_the_same(rows):
    """However many rows, batched or not: with a bias, without, and of an embedding."""
    mx.random.seed(7)
    cut, whole = made()
    assert wide.cut(cut, threads=2) == 3
    x = mx.random.normal((*rows, INNER))

    for one, other in (
        (cut.up, whole.up),
        (cut.gate, whole.gate),
        (cut.words.as_linear, whole.words.as_linear),
    ):
        assert one(x).shape == (*rows, WIDE)
        assert mx.allclose(one(x), other(x), atol=1e-5)


def test_a_layer_stays_what_it_is():
    """Weights keep their names, an embedding looks words up, nothing is copied."""
    model, _ = made()
    names = [name for name, _ in tree_flatten(model.parameters())]
    word = model.words(mx.array([5])).tolist()
    before = mx.get_active_memory()

    wide.cut(model, threads=2)
    x = mx.zeros((8, INNER))
    mx.eval(model.up(x), model.words.as_linear(x))
    mx.clear_cache()

    assert [name for name, _ in tree_flatten(model.parameters())] == names
    assert model.words(mx.array([5])).tolist() == word
    assert mx.get_active_memory() - before < WIDE * INNER  # a quarter of one layer


def test_only_wide_float32_layers_are_cut():
    """Other numbers go through no BLAS; with many threads a piece is as much larger."""
    model, _ = made()
    model.set_dtype(mx.bfloat16)
    assert wide.cut(model, threads=2) == 0

    model, _ = made()
    assert wide.cut(model, threads=64) == 0
    assert wide.cut(model, threads=2) == 3
    assert {type(model.narrow), type(model.down)} == {nn.Linear}
