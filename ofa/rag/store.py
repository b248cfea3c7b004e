"""
Where collections are kept between builds: chromadb, with vectors made elsewhere.

Knows chromadb and its traps; nothing of documents. The only module that names it. What
it holds is a cache: a folder that can't be read is moved aside and filled again.

The traps (of 1.5.9): its own embedding function downloads a model; its default distance
is not cosine; a damaged folder can end the process, so that a child looks first; SQLite
needs locks that some network file systems have not.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OfaError
from ..files import make_folder

log = logging.getLogger("ofa.rag")

_BATCH = 2_000  # rows in one call; chromadb's own limit is 5,461
_PROBE_LIMIT_S = 300

# Reads all that a build would read. Run with -P: the folder one stands in is not to
# shadow a module.
_PROBE = """
import sys
try:
    import chromadb
    from chromadb.config import Settings
except ImportError:
    sys.exit(0)  # no fault of the folder's
client = chromadb.PersistentClient(sys.argv[1], Settings(anonymized_telemetry=False))
for found in client.list_collections():
    kept = client.get_collection(found.name, embedding_function=None)
    rows = kept.get(include=["embeddings"])
    assert len(rows["ids"]) == len(rows["embeddings"]) == kept.count()
"""


class StoreFailed(OfaError):
    """chromadb could not read or write; the message names the folder."""

    code = "store_failed"


@dataclass(frozen=True)
class Row:
    """What is kept of a chunk: its *id* is a hash of all that its vector depends on."""

    id: str
    text: str
    path: str
    title: str
    section: str


class Store:
    """
    Collections of rows and vectors in *folder*; for one process at a time.

    *fingerprint* is the embedder's. A collection holds vectors of one model: chromadb
    fixes their dimension with the first, and another model's mean something else.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self._model = fingerprint[:12]
        self._temporary: Path | None = None
        self._client = self._open()

    @property
    def version(self) -> str:
        """chromadb's version, which a generation notes."""
        return version()

    @property
    def problem(self) -> str:
        """Why nothing is kept for the next build, or empty."""
        if self._temporary is None:
            return ""
        return f"{self.folder}: chromadb can't keep files here; the next build is slow"

    def ids(self, collection: str) -> set[str]:
        """Return the ids of all rows of *collection*."""
        return set(
            self._call("read", lambda: self._held(collection).get(include=[])["ids"])
        )

    def add(
        self, collection: str, rows: Sequence[Row], vectors: NDArray[np.float32]
    ) -> None:
        """Keep *rows* with their vectors; those with known ids are replaced."""
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            made = {
                "ids": [row.id for row in part],
                "embeddings": vectors[start : start + _BATCH],
                "documents": [row.text for row in part],
                "metadatas": [
                    {"path": row.path, "title": row.title, "section": row.section}
                    for row in part
                ],
            }
            self._call("write", lambda made=made: self._held(collection).upsert(**made))

    def drop(self, collection: str, ids: Iterable[str]) -> None:
        """Forget the rows with *ids*."""
        gone = list(ids)
        for start in range(0, len(gone), _BATCH):
            part = gone[start : start + _BATCH]
            self._call("write", lambda p=part: self._held(collection).delete(ids=p))

    def vectors(self, collection: str, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of *ids*, in their order; all must be there."""
        rows = self._call(
            "read", lambda: self._held(collection).get(include=["embeddings"])
        )
        at = {id_: row for row, id_ in enumerate(rows["ids"])}
        try:
            order = [at[id_] for id_ in ids]
        except KeyError as exc:
            raise self._failed("read", exc) from exc
        found = np.asarray(rows["embeddings"], dtype=np.float32)
        return found[order] if order else np.zeros((0, 0), dtype=np.float32)

    def drop_others(self, collection: str) -> None:
        """Forget what is kept of *collection* by other models."""
        for found in self._call("read", lambda: self._client.list_collections()):
            name = found.name
            if name.rpartition(".")[0] == collection and name != self._name(collection):
                self._call("write", lambda n=name: self._client.delete_collection(n))

    def close(self) -> None:
        """Let go of the files; safe to call twice."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self) -> Any:  # noqa: ANN401 - chromadb is untyped
        try:
            make_folder(self.folder)
            _check_locks(self.folder)
            if any(self.folder.iterdir()) and not _sound(self.folder):
                _move_aside(self.folder)
                make_folder(self.folder)
            return _client(self.folder)
        except _failures() as exc:
            log.warning(
                "%s: chromadb can't use this folder (%s); it works in a temporary one",
                self.folder,
                type(exc).__name__,
            )
        self._temporary = Path(tempfile.mkdtemp(prefix="ofa-chroma-"))
        try:
            _check_locks(self._temporary)
            return _client(self._temporary)
        except _failures() as exc:
            raise self._failed("open", exc) from exc

    def _held(self, collection: str) -> Any:  # noqa: ANN401 - chromadb is untyped
        return self._client.get_or_create_collection(
            self._name(collection),
            embedding_function=None,
            configuration={"hnsw": {"space": "cosine"}},
        )

    def _name(self, collection: str) -> str:
        return f"{collection}.{self._model}"

    def _call(self, deed: str, call: Any) -> Any:  # noqa: ANN401 - chromadb is untyped
        try:
            return call()
        except _failures() as exc:
            raise self._failed(deed, exc) from exc

    def _failed(self, deed: str, exc: Exception) -> StoreFailed:
        return StoreFailed(
            f"{self.folder}: chromadb could not {deed} ({type(exc).__name__}); is the "
            "disk full? else remove this folder: it is a cache, and is made again"
        )


def version() -> str:
    """Return chromadb's version without importing it."""
    from importlib.metadata import version as of

    return of("chromadb")


def _client(folder: Path) -> Any:  # noqa: ANN401 - chromadb is untyped
    _quiet()
    import chromadb
    from chromadb.config import Settings

    settings = Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(folder), settings=settings)
    client.heartbeat()
    return client


def _check_locks(folder: Path) -> None:
    """
    Raise `OSError` on a file system without locks.

    There chromadb says nothing and tries for ever (SQLite's "locking protocol").
    """
    import fcntl

    probe = folder / f".lock-{secrets.token_hex(4)}"
    try:
        with probe.open("wb") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        probe.unlink(missing_ok=True)


def _quiet() -> None:
    for key, value in (("ANONYMIZED_TELEMETRY", "False"), ("DO_NOT_TRACK", "1")):
        os.environ.setdefault(key, value)


def _failures() -> tuple[type[Exception], ...]:
    from chromadb.errors import ChromaError

    return (ChromaError, OSError, ValueError, KeyError, RuntimeError)


def _sound(folder: Path) -> bool:
    """Tell whether all of *folder* can be read, by letting a child do it."""
    _quiet()
    command = [sys.executable, "-P", "-c", _PROBE, str(folder)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _move_aside(folder: Path) -> None:
    for old in folder.parent.glob(f"{folder.name}.damaged-*"):
        shutil.rmtree(old, ignore_errors=True)  # the last one is enough to look at
    aside = folder.with_name(f"{folder.name}.damaged-{secrets.token_hex(3)}")
    log.warning("%s: damaged, moved to %s and made again", folder, aside.name)
    try:
        folder.rename(aside)
    except OSError as exc:
        raise StoreFailed(f"{folder}: neither usable nor movable; remove it") from exc
