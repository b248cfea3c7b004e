"""
One sequence's caches after some tokens, as small as they get, to go on from later.

Knows mlx-lm's two caches of keys and values by their public `state`; knows nothing
of which tokens they hold. Any other kind is refused rather than guessed at.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .lm import cache_classes

if TYPE_CHECKING:
    import mlx.core as mx

_AXES = 4  # batch, heads, tokens, width


@dataclass(frozen=True)
class _Layer:
    """What one layer remembers: all tokens, or the last *window* of them."""

    keys: mx.array
    values: mx.array
    window: int  # 0: all

    @property
    def nbytes(self) -> int:
        """Its bytes in memory."""
        return int(self.keys.nbytes + self.values.nbytes)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """
    An evaluated copy of one sequence's caches after *tokens*, cut to what is needed.

    Nothing ever writes into its arrays: MLX copies an array that has two holders
    before it changes it, and `restore` hands out holders of their own.
    """

    tokens: int
    _layers: tuple[_Layer, ...]

    @classmethod
    def of(cls, layers: Sequence[object], *, tokens: int | None = None) -> Snapshot:
        """
        Return a copy of *layers*, evaluated; to be called on their own thread.

        Raises `ValueError` for caches of an unknown kind or without anything in them,
        and if they hold another number of tokens than each other or than *tokens*.
        """
        planned = cls.planned(layers, tokens=tokens)
        planned.evaluate()
        return planned

    @classmethod
    def planned(
        cls, layers: Sequence[object], *, tokens: int | None = None
    ) -> Snapshot:
        """Return what `of` does before it takes memory, for room to be made first."""
        read = [_read_layer(layer) for layer in layers]
        counts = {count for count, _ in read} | ({tokens} - {None})
        if len(counts) != 1 or counts == {0}:
            raise ValueError(f"the caches hold {_listed(counts)} tokens")
        return cls(read[0][0], tuple(layer for _, layer in read))

    def evaluate(self) -> None:
        """Take the memory; from then on other threads may read the arrays too."""
        import mlx.core as mx

        mx.eval([(layer.keys, layer.values) for layer in self._layers])

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, mx.array], meta: Mapping[str, Any]
    ) -> Snapshot:
        """Return the snapshot that `arrays` and `meta` told; raise `ValueError` if
        they don't fit each other."""
        tokens, windows = _parse_meta(meta)
        wanted = {f"{n}.{part}" for n in range(len(windows)) for part in _PARTS}
        if not windows or set(arrays) != wanted:
            raise ValueError("not the arrays of a snapshot")
        layers = []
        for n, window in enumerate(windows):
            layer = _Layer(arrays[f"{n}.keys"], arrays[f"{n}.values"], window)
            _check_shapes(layer, min(tokens, window) if window else tokens)
            layers.append(layer)
        return cls(tokens, tuple(layers))

    @property
    def nbytes(self) -> int:
        """Its bytes in memory."""
        return sum(layer.nbytes for layer in self._layers)

    @property
    def trimmable(self) -> bool:
        """Whether it can be cut back: a full window has lost what was before it."""
        return all(
            not layer.window or self.tokens < layer.window for layer in self._layers
        )

    @property
    def meta(self) -> dict[str, Any]:
        """What `from_arrays` has to know beside the arrays, fit for JSON."""
        windows = [layer.window for layer in self._layers]
        return {"tokens": self.tokens, "windows": windows}

    def arrays(self) -> dict[str, mx.array]:
        """Return its arrays by name."""
        return {
            f"{n}.{part}": getattr(layer, part)
            for n, layer in enumerate(self._layers)
            for part in _PARTS
        }

    def restore(self, tokens: int | None = None) -> list[object]:
        """
        Return caches for a sequence to go on from, cut back to *tokens* if given.

        Raises `ValueError` if they can't be cut back so far.
        """
        wanted = self.tokens if tokens is None else tokens
        if not 0 < wanted <= self.tokens:
            raise ValueError(f"{wanted} of {self.tokens} tokens can't be restored")
        if wanted < self.tokens and not self.trimmable:
            raise ValueError("a full window can't be cut back")
        made = [self._make_cache(layer) for layer in self._layers]
        for cache in made:
            # trim() says what it did, which is nothing where it can't.
            if wanted < self.tokens:
                cache.trim(self.tokens - wanted)
            if cache.offset != wanted:  # pragma: no cover - a later mlx-lm's might
                raise ValueError(f"a cache went to {cache.offset}, not to {wanted}")
        return made

    def _make_cache(self, layer: _Layer) -> Any:  # noqa: ANN401 - mlx-lm's
        # Copies of the holders, not of what they hold: mlx-lm assigns into its arrays.
        keys, values = copy.copy(layer.keys), copy.copy(layer.values)
        plain, rotating = cache_classes()
        if not layer.window:
            return plain.from_state((keys, values, self.tokens))
        place = keys.shape[2]  # where the next token goes: behind the last one
        state = (keys, values, self.tokens, 0, layer.window, place)
        return rotating.from_state(state)


_PARTS = ("keys", "values")


def _read_layer(layer: Any) -> tuple[int, _Layer]:  # noqa: ANN401 - of any library
    """Return how many tokens *layer* has seen, and what of them is needed."""
    plain, rotating = cache_classes()
    # Not isinstance: what a class derived from them keeps is not known.
    if type(layer) is plain:
        keys, values, offset = layer.state
        return offset, _cut(keys, values, order=slice(offset), need=offset, window=0)
    if type(layer) is rotating:
        return _read_window(layer)
    raise ValueError(f"a cache of an unknown kind: {type(layer).__name__}")


def _read_window(layer: Any) -> tuple[int, _Layer]:  # noqa: ANN401 - mlx-lm's
    import mlx.core as mx

    keys, values, offset, keep, window, place = layer.state
    if keep or window < 1:
        raise ValueError("a window that keeps its first tokens")
    if keys is not None and place < keys.shape[2] and place < offset:
        # The ring has come round: the oldest token is the next to be overwritten.
        keys, values = (mx.roll(part, -place, 2) for part in (keys, values))
        place = keys.shape[2]
    need = min(offset, window)
    order = slice(max(0, place - need), place)
    return offset, _cut(keys, values, order=order, need=need, window=window)


def _cut(
    keys: mx.array | None,
    values: mx.array | None,
    *,
    order: slice,
    need: int,
    window: int,
) -> _Layer:
    """Return the tokens at *order*, which must be *need*, in memory of their own."""
    import mlx.core as mx

    if keys is None or values is None:
        raise ValueError("a cache with nothing in it")
    # mx.contiguous copies unless it would save less than 16 KiB: a small piece never
    # holds on to a large buffer.
    kept = [mx.contiguous(part[..., order, :]) for part in (keys, values)]
    layer = _Layer(kept[0], kept[1], window)
    _check_shapes(layer, need)
    return layer


def _check_shapes(layer: _Layer, tokens: int) -> None:
    keys, values = layer.keys.shape, layer.values.shape
    fit = len(keys) == len(values) == _AXES and keys[:3] == values[:3]
    if not fit or keys[0] != 1 or keys[2] != tokens:
        raise ValueError(f"a layer of shape {keys} for {tokens} tokens")


def _parse_meta(meta: Mapping[str, Any]) -> tuple[int, list[int]]:
    tokens, windows = meta.get("tokens"), meta.get("windows")
    if not isinstance(tokens, int) or not isinstance(windows, list):
        raise ValueError("not the facts of a snapshot")
    if tokens < 1 or not all(isinstance(w, int) and w >= 0 for w in windows):
        raise ValueError("not the counts of a snapshot")
    return tokens, windows


def _listed(counts: set[Any]) -> str:
    return " and ".join(str(count) for count in sorted(counts)) or "no"
