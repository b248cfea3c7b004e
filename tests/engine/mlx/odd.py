"""A model whose calls a test can watch, hold up or break, and an engine at rest."""

from __future__ import annotations

import time
from dataclasses import replace

from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Settings


class Odd:
    """A model that does as *act* says before each call; used as a model otherwise."""

    def __init__(self, model, act):
        self._model = model
        self._act = act

    def __call__(self, tokens, cache=None):
        """Run the model."""
        self._act(tokens)
        return self._model(tokens, cache=cache)

    def __getattr__(self, name):
        return getattr(self._model, name)


def odd_engine(folder, act, **more):
    """Return an engine whose model calls *act* with the tokens of each step."""

    def load():
        loaded = lm.load(str(folder))
        return lm.Loaded(
            Odd(loaded.model, act),
            loaded.tokenizer,
            loaded.config,
            loaded.ends,
            loaded.numbers,
        )

    return MlxEngine(folder, Settings(**more), load=load)


def bytes_over(ready, batch):
    """Return by how many bytes live caches are over what was counted for the rows of
    *batch*, kept ones over theirs, or all over all there is; called within a step."""
    shape = replace(ready.room.shape, scratch_per_pair=0)
    lengths = [run.row.length for run in batch._running.values()]
    live = batch._generator.prompt_cache_nbytes
    held = ready.store.held()
    return max(
        live - shape.batch_bytes(lengths, ready.room.chunk),
        held.nbytes - held.limit_bytes,
        held.nbytes + ready.room.shape.batch_bytes(lengths, ready.room.chunk)
        - ready.room.total,
    )  # fmt: skip


def idle(engine, limit_s=10.0):
    """Wait until nothing is read ahead any more."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        resident = engine._scheduler._resident
        if resident and not resident[1].busy and engine._scheduler._inbox.empty():
            return True
        time.sleep(0.01)
    return False
