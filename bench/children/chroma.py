"""The usual stack: chromadb's nearest neighbours of the last message's vector."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import passages
from .lines import Asked, given, serve

_BATCH = 5000  # chromadb takes at most 5,461 rows at once
_SHOWN = 6


class Naive:
    """A persistent collection of the same passages with the same vectors."""

    def __init__(self, folder: Path, count: int) -> None:
        from sentence_transformers import SentenceTransformer

        from ofa.rag.embed import packaged_model

        self._folder, self._count = folder, count
        self._model = SentenceTransformer(str(packaged_model()), device="cpu")
        self._held: Any = None

    def build(self, asked: Asked) -> Mapping[str, Any]:
        """Fill the collection."""
        import chromadb
        import numpy as np
        from chromadb.config import Settings

        client = chromadb.PersistentClient(
            str(self._folder / "naive"), Settings(anonymized_telemetry=False)
        )
        self._held = client.create_collection(
            "hpc",
            embedding_function=None,
            configuration={"hnsw": {"space": "cosine"}},
        )
        vectors = np.load(self._folder / "vectors.npy")
        texts = [one.text for one in passages.many(self._count)]
        for start in range(0, self._count, _BATCH):
            rows = slice(start, min(start + _BATCH, self._count))
            self._held.add(
                ids=[str(row) for row in range(rows.start, rows.stop)],
                embeddings=vectors[rows],
                documents=texts[rows],
            )
        return {}

    def search(self, asked: Asked) -> Mapping[str, Any]:
        """Embed one question and query; return the time of both, and of the first."""
        began = time.perf_counter()
        vector = self._model.encode([asked["question"]], show_progress_bar=False)
        embedded = time.perf_counter()
        self._held.query(query_embeddings=vector, n_results=_SHOWN)
        done = time.perf_counter()
        return {"took_s": done - began, "embedding_s": embedded - began}


def main() -> None:
    """Serve the bench."""
    values = given()
    made = Naive(Path(values["folder"]), values["count"])
    serve({}, {"build": made.build, "search": made.search})


if __name__ == "__main__":
    main()
