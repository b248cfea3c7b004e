"""A model whose calls a test can watch, hold up or break."""

from __future__ import annotations

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
