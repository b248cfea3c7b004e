"""
Wide layers' products in pieces: the same numbers from a BLAS, sooner.

A product of few rows with many columns is what a step of several answers takes most of
its time for: eight rows through the 262,144 words of a Gemma's output layer. MKL makes
it at a third of its own speed for a narrow one. In pieces whose weights a core's cache
holds it took 149 ms instead of 250, and a starter's wide layers, for 128 tokens of a
prompt, two thirds of their time; one row or two are quicker whole (docs/decisions.md).

Imports mlx.nn, so load the BLAS first.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

_PIECE_BYTES = 2 << 20  # of weights, for each thread
_FEWEST, _MOST = 3, 256  # rows: one or two are a plain pass over the weights


def cut(model: nn.Module, threads: int) -> int:
    """
    Have *model*'s wide float32 layers multiply in pieces; return how many there are.

    *threads* is the BLAS's. Weights are neither copied nor renamed.
    """
    found = 0
    for module in model.modules():
        kind = _IN_PIECES.get(type(module))
        if kind and (pieces := _pieces(module.weight, threads)):
            module.__class__ = kind
            module._pieces = pieces  # underlined: no parameter
            found += 1
    return found


def _pieces(weight: mx.array, threads: int) -> list[mx.array]:
    """Return views of *weight*, transposed; none if it is not worth it."""
    columns, inner = weight.shape
    if weight.dtype != mx.float32 or columns < inner:
        return []
    step = max(1, _PIECE_BYTES * threads // (inner * weight.itemsize))
    if columns < 2 * step:
        return []
    return [weight[at : at + step].T for at in range(0, columns, step)]


def _suits(x: mx.array) -> bool:
    return _FEWEST <= x.size // x.shape[-1] <= _MOST


def _product(x: mx.array, pieces: list[mx.array]) -> mx.array:
    return mx.concatenate([x @ piece for piece in pieces], axis=-1)


class _Linear(nn.Linear):  # type: ignore[misc]  # mlx.nn has no types
    """A linear layer that multiplies in pieces."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return what `nn.Linear` does."""
        if not _suits(x):
            whole: mx.array = super().__call__(x)
            return whole
        made = _product(x, self._pieces)
        return made + self.bias if "bias" in self else made


class _Embedding(nn.Embedding):  # type: ignore[misc]
    """An embedding that is the output layer as well, and multiplies in pieces."""

    def as_linear(self, x: mx.array) -> mx.array:
        """Return what `nn.Embedding` does."""
        if not _suits(x):
            whole: mx.array = super().as_linear(x)
            return whole
        return _product(x, self._pieces)


_IN_PIECES: dict[type, Any] = {nn.Linear: _Linear, nn.Embedding: _Embedding}
