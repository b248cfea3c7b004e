"""
Products of few rows, which MKL is slow at: the same numbers, sooner.

For each token an answer's row is multiplied with all weights of the model, which takes
as long as they take to be read; several answers' rows come along. On AMD's processors
MKL needs two to four times that. Measured (docs/decisions.md), and done here:

* MKL multiplies one row on one thread, however many it has, and two on all of them. A
  row alone goes in twice, where that is quicker on the machine at hand.
* The product of three rows and more with an output layer's many columns is made in
  pieces whose weights stay in a core's cache.

Imports mlx.nn, so load the BLAS first.
"""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_LEAST_BYTES = 1 << 20  # of weights: below, what is gained goes into the detour
_QUICKER = 0.8  # two rows' time, to one's
# Two rows need all cores at once, so whatever runs beside makes them seem slow: tried
# until they are quicker, for half a second or so.
_TRIES = (4, 24)  # at least, at most
_SAMPLE_BYTES = 128 << 20  # of weights that are tried: some 10 ms a pass

_WIDE_BYTES = 64 << 20  # of weights: more than caches hold
_PIECE_BYTES = 2 << 20  # of weights, for each thread
_FEWEST, _MOST = 3, 256  # rows: two are a plain pass over the weights


def hasten(model: nn.Module, threads: int) -> int:
    """
    Have *model*'s float32 layers multiply few rows sooner; return how many do.

    *threads* is the BLAS's. Weights are neither copied nor renamed. Takes a few
    passes over one layer, to see what pays.
    """
    layers = [layer for layer in model.modules() if _is_large(layer)]
    doubles = threads > 1 and _doubling_pays([layer.weight for layer in layers])
    found = 0
    for layer in layers:
        pieces = _pieces(layer.weight, threads)
        if doubles or pieces:
            layer.__class__ = _HASTENED[type(layer)]
            layer._doubles, layer._pieces = doubles, pieces  # underlined: no parameters
            found += 1
    return found


def _is_large(layer: nn.Module) -> bool:
    if type(layer) not in _HASTENED:
        return False
    weight = layer.weight
    return bool(weight.dtype == mx.float32 and weight.nbytes >= _LEAST_BYTES)


def _doubling_pays(weights: list[mx.array]) -> bool:
    """Tell whether two rows are multiplied sooner than one, by turns."""
    if not weights:
        return False
    some, taken_bytes = [], 0
    # So many that they come from memory, as in an answer; no output layer if it can be.
    for weight in sorted(weights, key=lambda each: bool(each.nbytes >= _WIDE_BYTES)):
        if taken_bytes < _SAMPLE_BYTES:
            some.append(weight)
            taken_bytes += weight.nbytes
    taken: dict[int, list[float]] = {1: [], 2: []}
    least, most = _TRIES
    for done in range(1, most + 1):  # the first ones wake threads up
        for rows, times in taken.items():
            began = time.perf_counter()
            mx.eval([mx.ones((rows, weight.shape[1])) @ weight.T for weight in some])
            times.append(time.perf_counter() - began)
        if done >= least and min(taken[2]) < _QUICKER * min(taken[1]):
            return True
    return False


def _pieces(weight: mx.array, threads: int) -> list[mx.array]:
    """Return views of *weight*, transposed; none if it is not worth it."""
    columns, inner = weight.shape
    if columns < inner or weight.nbytes < _WIDE_BYTES:
        return []
    step = max(1, _PIECE_BYTES * threads // (inner * weight.itemsize))
    if columns < 2 * step:
        return []
    return [weight[at : at + step].T for at in range(0, columns, step)]


def _rows(x: mx.array) -> int:
    return x.size // x.shape[-1]


def _product(x: mx.array, pieces: list[mx.array]) -> mx.array:
    return mx.concatenate([x @ piece for piece in pieces], axis=-1)


class _Linear(nn.Linear):  # type: ignore[misc]  # mlx.nn has no types
    """A linear layer that multiplies few rows sooner."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return what `nn.Linear` does."""
        if self._pieces and _FEWEST <= _rows(x) <= _MOST:
            made = _product(x, self._pieces)
            return made + self.bias if "bias" in self else made
        return _doubled(super().__call__, x, doubles=self._doubles)


class _Embedding(nn.Embedding):  # type: ignore[misc]
    """An embedding that, as the output layer, multiplies few rows sooner."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return what `nn.Embedding` does."""
        if self._pieces and _FEWEST <= _rows(x) <= _MOST:
            return _product(x, self._pieces)
        return _doubled(super().as_linear, x, doubles=self._doubles)


def _doubled(multiply: Any, x: mx.array, *, doubles: bool) -> mx.array:  # noqa: ANN401 - a layer's method
    """Return what *multiply* makes of *x*, of one row by putting it in twice."""
    if doubles and _rows(x) == 1 and x.ndim > 1:
        return multiply(mx.concatenate([x, x], axis=-2))[..., :1, :]  # type: ignore[no-any-return]
    made: mx.array = multiply(x)
    return made


_HASTENED: dict[type, Any] = {nn.Linear: _Linear, nn.Embedding: _Embedding}
