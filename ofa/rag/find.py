"""
Documents on disk: which files of a place are some, and their text.

Knows folders, links, encodings and limits; nothing of chunks. What is left out is
counted by reason, so that "why is my page not found" has an answer.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from .document import Document
from .sources import Collection, Place

MAX_FILES = 50_000  # of one place: a root that was set to / by mistake

_SKIPPED_FOLDERS = re.compile(
    r"\..*|__pycache__|node_modules|_?build|_static|CMakeFiles|cmake-build-.*|platforms"
    r"|lnInclude|polyMesh|processors?\d+.*|postProcessing|dynamicCode|site-packages"
)

# By name, without reading. What is left is told apart by a NUL among the first bytes.
_BINARY = frozenset(
    """
    .7z .a .avi .bin .bmp .bz2 .class .dll .doc .docx .dylib .eps .exe .gif .h5 .hdf5
    .ico .jar .jpeg .jpg .mov .mp4 .nc .npy .npz .o .obj .odt .pdf .pickle .pkl .png
    .ppt .pptx .pyc .qpy .safetensors .so .stl .svg .tar .tgz .tif .tiff .vtk .vtu
    .whl .woff .woff2 .xls .xlsx .xz .zip .zst
    """.split()  # noqa: SIM905 - a list literal would be 50 lines
)
# Text that is no document: locks, maps from compilers, and what repeats itself.
_NOISE = frozenset(".lock .map .log .orig~ .rej .bak .swp".split())  # noqa: SIM905


@dataclass
class Found:
    """What the places of a collection hold, and what was left out."""

    documents: list[Document] = field(default_factory=list)
    places: list[FoundPlace] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # path, reason

    def reasons(self) -> Mapping[str, int]:
        """Return how many files were left out, by reason, the commonest first."""
        return dict(Counter(reason for _, reason in self.skipped).most_common())


@dataclass(frozen=True)
class FoundPlace:
    """One place: where it is (None: not there), how many documents, a sum of them."""

    label: str
    root: Path | None
    count: int
    sha256: str


def find(
    collection: Collection, env: Mapping[str, str], *, private: bool = False
) -> Found:
    """Return the documents of *collection* in a fixed order, copies left out."""
    found = Found()
    known: set[bytes] = set()
    for place in collection.places:
        _find_in(collection.name, place, env, found, known)
    if private:
        found.documents = [
            Document(d.collection, d.path, d.text, d.pinned, private=True)
            for d in found.documents
        ]
    return found


def _find_in(
    name: str, place: Place, env: Mapping[str, str], found: Found, known: set[bytes]
) -> None:
    root = place.root(env)
    total = hashlib.sha256()
    before = len(found.documents)
    for path in _files(root, place, found) if root else ():
        inner = path.relative_to(root).as_posix() if root else ""
        text, reason = _read(path, place.max_file_kb * 1024)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if not reason and digest in known:
            reason = "a copy of another file"
        if reason:
            found.skipped.append((inner, reason))
            continue
        known.add(digest)
        total.update(inner.encode("utf-8", "surrogateescape") + b"\0" + digest)
        shown = "/".join(filter(None, (place.under, _printable(inner))))
        pinned = _matches(inner, place.pinned)
        found.documents.append(Document(name, shown, text, pinned))
    count = len(found.documents) - before
    found.places.append(FoundPlace(place.label, root, count, total.hexdigest()))


def _files(root: Path, place: Place, found: Found) -> Iterator[Path]:
    """Yield the files of a place that may be documents, in order of their paths."""
    total = 0
    # Links to folders are not followed: they lead in circles, or to what is here.
    for at, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not _SKIPPED_FOLDERS.fullmatch(f))
        taken = 0
        for name in sorted(names):
            path = Path(at) / name
            inner = path.relative_to(root).as_posix()
            if not _matches(inner, place.globs) or _matches(inner, place.exclude):
                continue
            reason = _refusal(path, root)
            if not reason and taken >= place.max_files_per_folder:
                reason = "more files than allowed in its folder"
            if reason:
                found.skipped.append((inner, reason))
                continue
            if total >= MAX_FILES:
                found.skipped.append((inner, "and all after it: too many files"))
                return
            taken += 1
            total += 1
            yield path


def _refusal(path: Path, root: Path) -> str:
    """Return why a file is none of ours, as far as its name and inode tell."""
    stem = path.with_suffix("") if path.suffix == ".gz" else path
    if path.name.startswith("."):
        return "a hidden file"
    if stem.suffix.lower() in _BINARY:
        return f"{stem.suffix.lower()} is not read"
    if stem.suffix.lower() in _NOISE or path.name.endswith("~"):
        return "not a document"
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            return "a link that leads outside"
        kind = path.stat().st_mode
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return "not readable"
    return "" if stat.S_ISREG(kind) else "not a regular file"


def _read(path: Path, limit_bytes: int) -> tuple[str, str]:
    """Return a file's text and no reason, or no text and the reason."""
    try:
        with _opened(path) as file:
            raw = file.read(limit_bytes + 1)
    except (OSError, EOFError, zlib.error):
        return "", "not readable"
    if len(raw) > limit_bytes:
        return "", f"larger than {limit_bytes // 1024} kB"
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = raw.decode("utf-16", "replace")
    elif b"\0" in raw[:8192]:
        return "", "binary"
    else:
        text = raw.decode("utf-8-sig", "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    if text.count("\ufffd") * 10 > len(text):
        return "", "binary"
    return (text, "") if text.strip() else ("", "empty")


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def _matches(inner: str, globs: tuple[str, ...]) -> bool:
    return any(_pattern(glob).fullmatch(inner) for glob in globs)


@lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    """Return the expression of a glob in which ``**/`` is any number of folders."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    meant = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meant.get(p, re.escape(p)) for p in pieces), re.DOTALL)


def _printable(inner: str) -> str:
    """Return a path that can be shown and sent: no controls, no broken characters."""
    whole = inner.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\ufffd" for c in whole)
