"""
An exported index: one immutable folder a collection, checked before it is used.

    <collection>/current                      the name of the generation in use
    <collection>/gen-20260131T120000Z-1a2b3c/ manifest.json, passages.jsonl,
                                              vectors.f16.npy, glossary.txt, lexical/*

Knows files and checksums; nothing of documents, chunks or chromadb. A generation is
read whole into memory and never written to, so that any number of processes may serve
one, from a read-only folder too, and a folder that goes away hurts nobody.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OfaError
from ..files import make_folder, write_file
from . import chunk_foam
from .arrays import pack, unpack
from .chance import Chance
from .glossary import NONE, Glossary
from .lexical import Groups, Lexical
from .passage import Passage

SCHEMA = 3  # of the folder; another number is another version's, to be built again

CURRENT = "current"
_RETIRED = "none"
_MANIFEST, _PASSAGES, _VECTORS = "manifest.json", "passages.jsonl", "vectors.f16.npy"
_GLOSSARY = "glossary.txt"
_LEXICAL = "lexical"
_FILE = re.compile(r"(?:lexical/)?[a-z0-9]+(?:\.[a-z0-9]+)+")
_KINDS = {"private": bool, "pinned": bool, "tier": int}  # of what is no text
_MAX_MANIFEST_BYTES = 4 << 20

_MAX_FILE_BYTES = 4 << 30  # a million passages take half of it

# What a damaged file can make json, numpy and our own look-ups raise.
_DAMAGE = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(RecursionError, MemoryError),
)


class IndexDamaged(OfaError):
    """A generation can't be trusted; the message says why and what to do."""

    code = "index_damaged"


class _Wrong(ValueError):
    """What is wrong with a generation, in words for people."""


@dataclass(frozen=True)
class SourceNote:
    """Where documents came from: a place's label, how many, and one sum over all."""

    label: str
    count: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a generation was made of and with; *files* maps names to their sha256."""

    collection: str
    created: str  # UTC, ISO 8601
    embedder: str
    fingerprint: str
    dimension: int
    chunker: str
    chromadb: str
    passages: int
    content: str = ""  # one sum over all passages: an equal one needs no new generation
    sources: tuple[SourceNote, ...] = ()
    chance: Chance = field(default_factory=Chance)  # what a cosine is worth here
    schema: int = SCHEMA
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Generation:
    """One collection, ready to be searched: row i of each part is passage i."""

    name: str  # of its folder
    manifest: Manifest
    passages: Sequence[Passage]
    vectors: NDArray[np.float32]  # unit rows
    lexical: Lexical
    glossary: Glossary = NONE

    @property
    def collection(self) -> str:
        """The name of the collection that this is a state of."""
        return self.manifest.collection

    @cached_property
    def files(self) -> Groups:
        """Which passages are of one document."""
        return _grouped(passage.path for passage in self.passages)

    @cached_property
    def folders(self) -> Groups:
        """Which passages are of one folder; of an OpenFOAM case all are one."""
        return _grouped(chunk_foam.case_of(passage.path) for passage in self.passages)

    @cached_property
    def pinned(self) -> tuple[int, ...]:
        """The rows that go first whatever is asked."""
        return tuple(row for row, one in enumerate(self.passages) if one.pinned)


def _grouped(names: Iterable[str]) -> Groups:
    numbers: dict[str, int] = {}
    return Groups([numbers.setdefault(name, len(numbers)) for name in names])


def write_generation(  # noqa: PLR0913 - the parts of one state
    folder: Path,
    manifest: Manifest,
    *,
    passages: Sequence[Passage],
    vectors: NDArray[np.float32],
    lexical: Lexical,
    glossary: Glossary = NONE,
    open_to_all: bool = False,
) -> str:
    """
    Make a new generation in the collection's *folder* and make it the current one.

    Returns its name; *open_to_all* lets every user of the system read it. Written
    aside, flushed, then renamed: a reader sees the old state or the new one, whenever
    this stops. The one before the new one is kept, for processes that are just reading
    it; older ones are removed.
    """
    if not len(passages) == len(vectors) == len(lexical) == manifest.passages:
        raise ValueError("passages, vectors and lexical index differ in length")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector holds a number that is none")
    make_folder(folder)
    _sweep(folder, "tmp-")
    temporary = folder / f"tmp-{secrets.token_hex(6)}"
    temporary.mkdir(mode=0o700)
    _fill(temporary, manifest, passages, vectors, lexical, glossary)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"gen-{stamp}-{secrets.token_hex(3)}"
    before = _before(folder)
    if open_to_all:
        _open_to_all(folder, temporary)
    temporary.rename(folder / name)
    write_file(folder / CURRENT, f"{name}\n".encode())  # syncs the folder as well
    if open_to_all:
        (folder / CURRENT).chmod(0o644)
    _sweep(folder, "gen-", keep=(name, before))
    return name


def open_generation(folder: Path) -> Generation:
    """Read and check the generation in *folder*; raises only `IndexDamaged`."""
    try:
        manifest = _read_manifest(folder)
        files = _read_files(folder, manifest.files)
        passages = _passages(files[_PASSAGES], manifest.collection)
        vectors = unpack(files[_VECTORS], "float16", 2).astype(np.float32)
        lexical = Lexical.parse(
            {Path(name).name: files[name] for name in files if "/" in name}
        )
        glossary = Glossary.parse(files.get(_GLOSSARY, b"").decode())
    except _DAMAGE as exc:
        raise _damaged(folder, _reason(exc)) from exc
    shape = (manifest.passages, manifest.dimension)
    if vectors.shape != shape or not len(passages) == len(lexical) == shape[0]:
        raise _damaged(folder, "its parts differ in length")
    if not _are_units(vectors):
        raise _damaged(folder, f"{_VECTORS} holds what is no direction")
    return Generation(folder.name, manifest, passages, vectors, lexical, glossary)


def current_folder(folder: Path) -> Path | None:
    """Return a collection's current generation's folder, or None without one."""
    name = _pointed(folder)
    return folder / name if name not in ("", _RETIRED) else None


def retire(folder: Path) -> None:
    """
    Take a collection out of service for good, and its generations off the disk.

    The pointer stays, and says so: a running server takes a folder that is merely gone
    for one that will be back, and goes on with what it has.
    """
    if folder.is_dir():
        write_file(folder / CURRENT, f"{_RETIRED}\n".encode())
        _sweep(folder, "gen-")


def is_retired(folder: Path) -> bool:
    """Tell whether `retire` was the last that happened to a collection."""
    return _pointed(folder) == _RETIRED


def has_generations(folder: Path) -> bool:
    """Tell whether *folder* holds any, whatever its pointer says."""
    try:
        return any(path.name.startswith("gen-") for path in folder.iterdir())
    except OSError:
        return False


def _pointed(folder: Path) -> str:
    """Return the name that the pointer holds; empty without one, raises if damaged."""
    try:
        name = _read(folder / CURRENT, 200).decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except _DAMAGE as exc:
        raise _damaged(folder / CURRENT, _reason(exc)) from exc
    if name != _RETIRED and not re.fullmatch("gen-[0-9A-Za-z-]+", name):
        raise _damaged(folder / CURRENT, "it names no generation")
    return name


def _open_to_all(collection: Path, generation: Path) -> None:
    """Let others read a generation that is not yet the current one."""
    for path in (collection.parent, collection, generation, generation / _LEXICAL):
        path.chmod(0o755)
    for path in generation.rglob("*.*"):
        path.chmod(0o644)


def _before(folder: Path) -> str:
    try:
        return _pointed(folder)
    except IndexDamaged:
        return ""  # a damaged pointer is about to be replaced


def _fill(
    folder: Path,
    manifest: Manifest,
    passages: Sequence[Passage],
    vectors: NDArray[np.float32],
    lexical: Lexical,
    glossary: Glossary,
) -> None:
    lines = (json.dumps(_line(passage), ensure_ascii=False) for passage in passages)
    files = {
        _PASSAGES: "".join(f"{line}\n" for line in lines).encode(),
        _VECTORS: pack(vectors.astype(np.float16)),
        **({_GLOSSARY: glossary.text.encode()} if glossary.text else {}),
        **{f"{_LEXICAL}/{name}": part for name, part in lexical.dump().items()},
    }
    (folder / _LEXICAL).mkdir(mode=0o700)
    for name, content in files.items():
        write_file(folder / name, content)
    sums = {name: hashlib.sha256(part).hexdigest() for name, part in files.items()}
    about = asdict(replace(manifest, files=sums))
    sealed = {"manifest": about, "sha256": _seal(about)}
    write_file(folder / _MANIFEST, json.dumps(sealed, indent=1).encode())


def _line(passage: Passage) -> dict[str, Any]:
    line = asdict(passage)
    del line["collection"]  # the manifest's
    if passage.tier == 1:
        del line["tier"]  # as nearly all are
    return line


def _passages(lines: bytes, collection: str) -> tuple[Passage, ...]:
    return tuple(
        _passage(collection, json.loads(line))
        for line in lines.decode().split("\n")
        if line
    )


def _passage(collection: str, line: dict[str, Any]) -> Passage:
    for name, value in line.items():
        if type(value) is not _KINDS.get(name, str):
            raise _Wrong(f"{_PASSAGES} holds a {name} that is none")
    return Passage(collection=collection, **line)


def _are_units(vectors: NDArray[np.float32]) -> bool:
    """Return whether no row is longer than one, nor holds what is no number."""
    # A cosine beyond 1 would go before every other, and NaN makes all order chance.
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return bool((squares < 1.02).all())


def _seal(about: dict[str, Any]) -> str:
    """Return a checksum of what the manifest says, however it is laid out."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> Manifest:
    sealed = json.loads(_read(folder / _MANIFEST, _MAX_MANIFEST_BYTES))
    about = sealed["manifest"]
    if about["schema"] != SCHEMA:
        raise _Wrong(f"it is of version {about['schema']!r}, not {SCHEMA}")
    if sealed["sha256"] != _seal(about):
        raise _Wrong("manifest.json is not what was written")
    notes = tuple(SourceNote(**note) for note in about.pop("sources"))
    chance = Chance(**about.pop("chance"))
    figures = (chance.mean, chance.spread)
    if not all(type(x) is float and math.isfinite(x) for x in figures):
        raise _Wrong("manifest.json holds a measurement that is none")
    if chance.spread <= 0:
        raise _Wrong("manifest.json holds a spread that is none")
    manifest = Manifest(**about, sources=notes, chance=chance)
    texts = (manifest.collection, manifest.created, manifest.embedder)
    if not all(isinstance(text, str) for text in (*texts, manifest.fingerprint)):
        raise _Wrong("manifest.json holds a name that is none")
    return manifest


def _read_files(folder: Path, sums: Mapping[str, str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, expected in sums.items():
        if not _FILE.fullmatch(name):
            raise _Wrong("manifest.json names a file of no generation")
        found[name] = _read(folder / name, _MAX_FILE_BYTES)
        if hashlib.sha256(found[name]).hexdigest() != expected:
            raise _Wrong(f"{name} is not what was written")
    return found


def _read(path: Path, limit_bytes: int) -> bytes:
    """Return what the regular file *path* holds; never waits for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise _Wrong(f"{path.name} is not a regular file")
        if seen.st_size > limit_bytes:
            raise _Wrong(f"{path.name} is too large")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _damaged(folder: Path, reason: str) -> IndexDamaged:
    return IndexDamaged(f"{folder}: {reason}; run `ofa index build` to make it anew")


def _reason(exc: Exception) -> str:
    if isinstance(exc, _Wrong):
        return str(exc)
    if isinstance(exc, FileNotFoundError):
        return f"{Path(str(exc.filename)).name} is missing"
    if isinstance(exc, OSError):
        return f"not readable ({exc.strerror})"
    return f"damaged ({type(exc).__name__})"


def _sweep(folder: Path, prefix: str, keep: tuple[str, ...] = ()) -> None:
    for path in folder.iterdir():
        if path.name.startswith(prefix) and path.name not in keep:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
