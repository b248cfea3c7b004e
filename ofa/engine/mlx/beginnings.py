"""Beginnings of prompts, read before anybody asks, each time a model was loaded."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from queue import SimpleQueue

from ...chat import Chat
from .model import Model


class Beginnings:
    """
    Has the system texts of chats read by *models*, by their names, when there is time.

    On a thread of its own: putting prompts together is no work for the engine's. What
    was read goes with the weights, so it is read again when they come back.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._chats: Mapping[str, Sequence[Chat]] = {}
        self._arrived: SimpleQueue[str | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        for name, model in models.items():
            model.weights.arrived = partial(self._arrived.put, name)

    def want(self, chats: Sequence[Chat]) -> None:
        """Read the system texts of *chats* from now on, and not those of before."""
        self._chats = {
            name: [chat for chat in chats if chat.weights == name]
            for name in self._models
        }
        with self._lock:
            if self._thread is None:  # who arrived before now waits to be read
                self._thread = threading.Thread(
                    target=self._run, name="ofa-warm", daemon=True
                )
                self._thread.start()
                return
        for name, model in self._models.items():
            if model.weights.state == "resident":
                self._arrived.put(name)

    def close(self) -> None:
        """End the thread."""
        self._arrived.put(None)

    def _run(self) -> None:
        while (name := self._arrived.get()) is not None:
            self._models[name].read_ahead(self._chats.get(name, ()))
