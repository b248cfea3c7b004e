"""
Building collections: find, cut, embed what is new, keep in chromadb, export.

Knows the order of the steps; each step is a module of its own. Stopped at any point it
loses at most the batch it was embedding, and a server never sees half a state.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import OfaError
from ..files import reason
from . import chance
from .build_lock import only_builder
from .chunk import CHUNKER_VERSION, Chunk, chunk
from .document import Document
from .embed import Embedder
from .find import Found, find
from .generation import (
    IndexDamaged,
    Manifest,
    SourceNote,
    current_folder,
    open_generation,
    write_generation,
)
from .lexical import Lexical
from .passage import Passage
from .sources import Collection
from .store import Row, Store

BATCH = 256  # chunks embedded between two writes: what an interruption loses

STORE = "chroma"  # chromadb's folder, beside the collections

# Called with what is going on, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


class BuildFailed(OfaError):
    """The index could not be written; the message names the file or folder."""

    code = "build_failed"


@dataclass(frozen=True)
class Built:
    """What came of building one collection."""

    collection: str
    documents: int
    passages: int
    embedded: int = 0
    dropped: int = 0
    generation: str = ""  # empty: there was nothing to index, and nothing changed
    changed: bool = False
    missing: tuple[str, ...] = ()  # labels of places that are not there
    skipped: Mapping[str, int] = field(default_factory=dict)  # files by reason
    seconds: float = 0.0
    embedding_s: float = 0.0  # of them

    @property
    def pace(self) -> float:
        """How many passages were embedded in a second."""
        return self.embedded / self.embedding_s if self.embedding_s else 0.0


@dataclass(frozen=True)
class Workshop:
    """Where and with what collections are built; the folders are made if missing."""

    store: Path  # chromadb's folder
    shelf: Path  # a folder a collection, for servers
    embedder: Embedder
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    progress: Progress = lambda what, done, total: None
    private: bool = False
    open_to_all: bool = False  # a site's: others read it, none writes


def build(collections: Sequence[Collection], workshop: Workshop) -> list[Built]:
    """
    Bring each collection's generation up to what its places hold now.

    Raises `BuildRunning` while another process builds in the same folder, and
    `BuildFailed` when the disk fails; what was built until then stays.
    """
    try:
        with only_builder(workshop.shelf):
            return _build_all(collections, workshop)
    except OSError as exc:
        at = exc.filename or workshop.shelf
        raise BuildFailed(f"{at}: the index can't be written: {reason(exc)}") from exc


def _build_all(collections: Sequence[Collection], workshop: Workshop) -> list[Built]:
    found = [find(c, workshop.env, private=workshop.private) for c in collections]
    # Small ones first: a server that waits for its first index has some sooner.
    order = sorted(range(len(found)), key=lambda i: _letters(found[i]))
    built: dict[int, Built] = {}
    with Store(workshop.store, workshop.embedder.fingerprint) as store:
        for i in order:
            built[i] = _build_one(collections[i], found[i], workshop, store)
    return [built[i] for i in range(len(found))]


def _letters(found: Found) -> int:
    return sum(len(document.text) for document in found.documents)


def _build_one(
    collection: Collection, found: Found, workshop: Workshop, store: Store
) -> Built:
    started = time.monotonic()
    name = collection.name
    passages, rows = _cut(found.documents, workshop)
    if not rows:
        return _summary(name, found)
    kept = store.ids(name)
    fresh = [row for row in rows if row.id not in kept]
    began = time.monotonic()
    _embed(name, fresh, workshop, store)
    embedding_s = time.monotonic() - began
    gone = kept - {row.id for row in rows}
    store.drop(name, gone)
    store.drop_others(name)
    generation, changed = _export(collection, passages, rows, found, workshop, store)
    return _summary(
        name,
        found,
        passages=len(rows),
        embedded=len(fresh),
        dropped=len(gone),
        generation=generation,
        changed=changed,
        seconds=time.monotonic() - started,
        embedding_s=embedding_s,
    )


def _summary(name: str, found: Found, **more: Any) -> Built:  # noqa: ANN401 - of Built's own fields
    return Built(
        name,
        len(found.documents),
        missing=tuple(place.label for place in found.places if place.root is None),
        skipped=found.reasons(),
        **{"passages": 0, **more},
    )


def _cut(
    documents: Sequence[Document], workshop: Workshop
) -> tuple[list[Passage], list[Row]]:
    """Return the passages of all documents and the rows to keep of them, in step."""
    passages: list[Passage] = []
    rows: list[Row] = []
    known: set[str] = set()
    for done, document in enumerate(documents, 1):
        for piece in chunks(document, workshop.embedder):
            row = _row(document, piece, workshop.embedder.fingerprint)
            if row.id in known:
                continue
            known.add(row.id)
            rows.append(row)
            passages.append(_passage(document, piece))
        workshop.progress(f"{document.collection}: reading", done, len(documents))
    return passages, rows


def chunks(document: Document, embedder: Embedder) -> list[Chunk]:
    """Return the chunks of *document* as *embedder* can read them."""
    return chunk(document, count=embedder.count_tokens, window=embedder.window)


def _row(document: Document, piece: Chunk, fingerprint: str) -> Row:
    parts = (fingerprint, CHUNKER_VERSION, document.path, piece.index)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace"))
    return Row(
        digest.hexdigest()[:40], piece.index, document.path, piece.title, piece.section
    )


def _passage(document: Document, piece: Chunk) -> Passage:
    return Passage(
        collection=document.collection,
        path=document.path,
        title=piece.title,
        section=piece.section,
        text=piece.text,
        private=document.private,
        pinned=document.pinned,
        tier=document.tier,
    )


def _embed(name: str, rows: Sequence[Row], workshop: Workshop, store: Store) -> None:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        workshop.progress(f"{name}: embedding", done, len(rows))

    # In order of tokens, so that batches pad little: a fifth of the time. The longest
    # first: the time left that is told then gets shorter, not longer.
    count_tokens = workshop.embedder.count_tokens
    ordered = sorted(rows, key=lambda row: (-count_tokens(row.text), row.id))
    for part in _batches(ordered, BATCH):
        vectors = workshop.embedder.passages([row.text for row in part], count)
        store.add(name, part, vectors)


def _export(
    collection: Collection,
    passages: Sequence[Passage],
    rows: Sequence[Row],
    found: Found,
    workshop: Workshop,
    store: Store,
) -> tuple[str, bool]:
    """Write a new generation unless the current one says the same; return its name."""
    embedder, name = workshop.embedder, collection.name
    manifest = Manifest(
        collection=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        embedder=embedder.name,
        fingerprint=embedder.fingerprint,
        dimension=embedder.dimension,
        chunker=CHUNKER_VERSION,
        chromadb=store.version,
        passages=len(rows),
        content=_content(passages, rows, collection.glossary.text, chance.QUESTIONS),
        sources=_sources(found),
    )
    folder = workshop.shelf / name
    if same := _same(folder, manifest):
        return same, False
    workshop.progress(f"{name}: writing", 0, 1)
    vectors = store.vectors(name, [row.id for row in rows])
    written = write_generation(
        folder,
        replace(manifest, chance=chance.measure(vectors, embedder)),
        passages=passages,
        vectors=vectors,
        lexical=Lexical.build(row.text for row in rows),
        glossary=collection.glossary,
        open_to_all=workshop.open_to_all,
    )
    workshop.progress(f"{name}: writing", 1, 1)
    return written, True


def _sources(found: Found) -> tuple[SourceNote, ...]:
    """Return what there was of the places; one that is not there is none."""
    return tuple(
        SourceNote(place.label, place.count, place.sha256)
        for place in found.places
        if place.root
    )


def _same(folder: Path, manifest: Manifest) -> str:
    """Return the current generation's name if it holds what a new one would."""
    try:
        at = current_folder(folder)
        generation = open_generation(at) if at else None
    except IndexDamaged:
        return ""
    if generation is None or generation.manifest.content != manifest.content:
        return ""
    return generation.name


def _content(passages: Sequence[Passage], rows: Sequence[Row], *beside: object) -> str:
    """Return one sum over what a generation holds, *beside* its passages too."""
    total = hashlib.sha256(repr(beside).encode())
    for passage, row in zip(passages, rows, strict=True):
        # The row's id holds the embedder, the chunker, the path and the text.
        said = f"{row.id} {passage.pinned} {passage.private}"
        tier = f" {passage.tier}" if passage.tier > 1 else ""
        total.update(f"{said}{tier}\n".encode())
    return total.hexdigest()


def _batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
