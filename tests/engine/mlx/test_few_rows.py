"""Few rows are multiplied sooner, and nobody can tell but by the time it takes."""

import time

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from ofa.engine.mlx import few_rows

WIDE, INNER = 8_000, 64  # 2 MB of weights: four pieces of two threads'


class Model(nn.Module):
    """A layer of each kind: wide ones, one that is tall, one that is small."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WIDE, INNER)
        self.up = nn.Linear(INNER, WIDE, bias=True)
        self.gate = nn.Linear(INNER, WIDE, bias=False)
        self.down = nn.Linear(WIDE, INNER, bias=False)
        self.small = nn.Linear(INNER, INNER)


def made():
    """Return two models of the same weights, all of them evaluated."""
    one, other = Model(), Model()
    other.update(one.parameters())
    mx.eval(one.parameters())
    return one, other


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Take for an output layer what has 2 MB of weights, and cut it accordingly."""
    monkeypatch.setattr(few_rows, "_WIDE_BYTES", 1 << 20)
    monkeypatch.setattr(few_rows, "_PIECE_BYTES", 1 << 18)


@pytest.fixture(params=[True, False], ids=["doubled", "whole"])
def doubles(request, monkeypatch):
    """Let doubling pay, or not, whatever this machine says."""
    monkeypatch.setattr(few_rows, "_doubling_pays", lambda weights: request.param)
    return request.param


@pytest.mark.parametrize(
    "rows", [(1,), (1, 1), (2,), (3, 1), (2, 4), (16,), (256,), (257,)]
)
def test_the_product_is_the_same(rows, doubles):
    """However many rows, batched or not: with a bias, without, and of an embedding."""
    mx.random.seed(7)
    hastened, plain = made()
    assert few_rows.hasten(hastened, threads=2) == 3 + doubles
    x, long = mx.random.normal((*rows, INNER)), mx.random.normal((*rows, WIDE))

    for one, other, columns, given in (
        (hastened.up, plain.up, WIDE, x),
        (hastened.gate, plain.gate, WIDE, x),
        (hastened.words.as_linear, plain.words.as_linear, WIDE, x),
        (hastened.down, plain.down, INNER, long),
    ):
        assert one(given).shape == (*rows, columns)
        assert mx.allclose(one(given), other(given), atol=1e-4)


def test_one_vector_is_multiplied_as_well(doubles):
    """Without a dimension for rows there is nothing to double."""
    hastened, plain = made()
    few_rows.hasten(hastened, threads=2)
    x = mx.random.normal((INNER,))

    assert mx.allclose(hastened.up(x), plain.up(x), atol=1e-5)


def test_a_row_goes_in_twice_where_that_pays(doubles, monkeypatch):
    """Only a row alone: two are two already."""
    model, _ = made()
    few_rows.hasten(model, threads=2)
    seen = []
    plain = nn.Linear.__call__
    monkeypatch.setattr(
        nn.Linear, "__call__", lambda self, x: seen.append(x.shape) or plain(self, x)
    )

    model.up(mx.zeros((1, 1, INNER)))
    model.up(mx.zeros((2, 1, INNER)))

    assert seen == [(1, 2, INNER) if doubles else (1, 1, INNER), (2, 1, INNER)]


def test_whether_it_pays_is_seen_on_this_machine(monkeypatch):
    """The sooner of the two is taken; it takes what a few passes do."""
    _, plain = made()
    slow_rows = 1
    evaluate = mx.eval

    def slowly(products):
        evaluate(products)
        time.sleep(0.02 * (products[0].shape[0] == slow_rows))

    monkeypatch.setattr(few_rows.mx, "eval", slowly)
    assert few_rows._doubling_pays([plain.up.weight])
    slow_rows = 2
    assert not few_rows._doubling_pays([plain.up.weight])
    assert not few_rows._doubling_pays([])


def test_what_runs_beside_for_a_moment_decides_nothing(monkeypatch):
    """Two rows need all cores: a process that took one made each token a third slower
    for as long as the server ran."""
    _, plain = made()
    evaluate, passes = mx.eval, []

    def slowly(products):
        evaluate(products)
        passes.append(products[0].shape[0])
        busy = passes.count(2) < 12
        time.sleep(0.02 if passes[-1] == 1 else 0.03 * busy)

    monkeypatch.setattr(few_rows.mx, "eval", slowly)

    assert few_rows._doubling_pays([plain.up.weight])
    assert passes.count(2) == 12


def test_a_layer_stays_what_it_is(doubles):
    """Weights keep their names, an embedding looks words up, nothing is copied."""
    model, _ = made()
    names = [name for name, _ in tree_flatten(model.parameters())]
    word = model.words(mx.array([5])).tolist()
    before = mx.get_active_memory()

    few_rows.hasten(model, threads=2)
    x = mx.zeros((8, INNER))
    mx.eval(model.up(x), model.up(x[:1]), model.words.as_linear(x))
    mx.clear_cache()

    assert [name for name, _ in tree_flatten(model.parameters())] == names
    assert model.words(mx.array([5])).tolist() == word
    assert mx.get_active_memory() - before < WIDE * INNER  # a quarter of one layer


def test_only_large_float32_layers_are_changed(doubles):
    """Other numbers go through no BLAS; with many threads a piece is as much larger."""
    model, _ = made()
    model.set_dtype(mx.bfloat16)
    assert few_rows.hasten(model, threads=2) == 0

    model, _ = made()
    assert few_rows.hasten(model, threads=64) == 4 * doubles
    assert type(model.small) is nn.Linear


def test_one_thread_doubles_nothing(doubles):
    """What doubling brings is the other threads."""
    model, _ = made()
    few_rows.hasten(model, threads=1)

    assert type(model.down) is nn.Linear
