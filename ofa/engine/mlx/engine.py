"""
The engine on MLX: local models behind the `Engine` seam.

Everything that costs no MLX runs on the caller's threads: rendering and tokenising
in `reply`, text in the reply's iterator. The scheduler's thread only turns token ids
into more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...chat import Chat
from ...errors import ConfigError, NotReady, ShuttingDown
from ..base import Limits, Reply, Status, refuse_unable
from . import lm
from .beginnings import Beginnings
from .blas import load_blas
from .loading import Loading
from .model import Model, Named, Settings, refuse_images
from .ready import Ready
from .rows import Row
from .scheduler import Scheduler
from .weights import Weights

__all__ = ["MlxEngine", "Named", "Settings"]

_FAULTS, _FAULTS_S = 3, 60.0  # so many failed steps so close together are no accident


class MlxEngine:
    """
    Answers with *model*, a folder or a hub id, loaded in the background.

    *others* are loaded when a chat asks for them by name; one at a time is resident.
    Raises `ConfigError` at once for a broken folder. *load* takes the place of loading
    *model*.
    """

    def __init__(
        self,
        model: str | Path,
        settings: Settings | None = None,
        *,
        description: str = "",
        others: Sequence[Named] = (),
        load: lm.Loader | None = None,
    ) -> None:
        self._settings = settings = settings or Settings()
        first = Named("", str(model), description)
        self._models = {
            named.name: Model(
                named,
                settings,
                submit=self._submit,
                load=None if named.name else load,
            )
            for named in (first, *others)
        }
        self._first = self._models[""]
        self._beginnings = Beginnings(self._models)
        self._scheduler = Scheduler(
            [known.weights for known in self._models.values()],
            rows=settings.rows,
            prefill_step=settings.prefill_step,
            lazy=settings.lazy,
            unload_s=settings.unload_s,
        )

    @property
    def ready(self) -> Ready | None:
        """What is known of the first model once it was loaded."""
        return self._first.weights.ready

    def reply(self, chat: Chat) -> Reply:
        """
        Check and tokenise *chat*; see `Engine.reply`.

        While the model loads, the reply is one that waits as long as the settings say,
        and checks then.
        """
        model = self._models[chat.weights]
        refuse_unable(chat, model.limits())
        refuse_images(chat)
        ask = partial(self._ask, model, chat)
        if model.weights.ready is not None or model.weights.settled.is_set():
            return ask()
        self._scheduler.call(model.weights)
        return Loading(model.weights.settled, self._settings.load_wait_s, ask)

    def limits(self, weights: str = "") -> Limits:
        """Return what the model can take; before it is loaded, what its files say."""
        return self._models[weights].limits()

    def status(self) -> Status:
        """Return whether the first model is known and the engine's thread moves."""
        weights = self._first.weights
        if broken := self._broken():
            return Status(False, broken, broken=True)
        if weights.failure:
            final = isinstance(weights.failure, ConfigError)
            return Status(False, str(weights.failure), final)
        if not self._scheduler.is_open:
            return Status(False, "the engine is stopped")
        if not (self.ready or self._settings.lazy):
            return Status(False, "loading the model")
        return Status(True, details=self._details())

    def wait(self, limit_s: float | None = None) -> Status:
        """Wait for the model, up to *limit_s*; raise `ConfigError` if it won't load."""
        weights = self._first.weights
        weights.settled.wait(limit_s)
        if isinstance(weights.failure, ConfigError):
            raise weights.failure
        return self.status()

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Read the system texts of *beginnings* for everyone, when there is time: each
        time that their model was loaded, but none is loaded for that."""
        self._beginnings.want(beginnings)

    def count_tokens(self, text: str) -> int:
        """Return the length of *text* in tokens; an estimate until it is loaded."""
        if self.ready:
            return self.ready.vocabulary.count(text)
        return (len(text.encode("utf-8", "replace")) + 1) // 2

    def close(self) -> None:
        """End all replies with an error, and the threads; safe to call twice."""
        self._beginnings.close()
        self._scheduler.close()

    def _ask(self, model: Model, chat: Chat) -> Reply:
        ready = self._found(model.weights)
        self._scheduler.expect()
        return model.reply(chat, ready)

    def _submit(self, weights: Weights, row: Row) -> None:
        self._scheduler.submit(weights, row)

    def _found(self, weights: Weights) -> Ready:
        """Return what is known of a model; where it is not there, have it loaded."""
        if weights.ready is None:
            self._scheduler.call(weights)
            reason = str(weights.failure or self.status().reason or "loading the model")
            raise NotReady(f"{reason}; try again in a while")
        if not self._scheduler.is_open:
            raise ShuttingDown("the engine is stopped; ask again in a minute")
        return weights.ready

    def _broken(self) -> str:
        """Return what only a new process can mend; empty if nothing."""
        if self._scheduler.died:
            return "the engine's thread ended"
        for model in self._models.values():
            if took_s := model.weights.overdue_s(self._settings.load_wait_s):
                return f"{model.title} has been loading again for {took_s:.0f} s"
        stall_s = self._settings.stall_s
        if self._scheduler.stalled_s() > stall_s:
            return f"a step of the engine has not come back for {stall_s:g} s"
        if self._scheduler.faults(_FAULTS_S) >= _FAULTS:
            return f"{_FAULTS} steps failed within {_FAULTS_S:.0f} s"
        return ""

    def _details(self) -> dict[str, str]:
        told = {"blas": str(load_blas()), "running": str(self._scheduler.running)}
        for name, model in self._models.items():
            prefix = f"{name}." if name else ""
            told |= {f"{prefix}{key}": value for key, value in model.details().items()}
        return told
