"""
Documents on disk: which files of a place are some, and their text.

Knows folders, links and limits; nothing of formats (`read` does) and chunks. What is
left out is counted by reason, so that "why is my page not found" has an answer.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from . import chunk_foam
from .document import Document
from .read import MARKDOWN, Reader, refusal
from .read_apart import Apart
from .repeated import without_repeated
from .sources import Collection, Place
from .unread import Unread

MAX_FILES = 50_000  # of one place: a root that was set to / by mistake

_SKIPPED_FOLDERS = re.compile(
    r"\..*|__pycache__|node_modules|_?build|_static|CMakeFiles|cmake-build-.*|platforms"
    r"|lnInclude|polyMesh|processors?\d+.*|postProcessing|dynamicCode|site-packages"
    r"|_sources|_modules|_images"  # what Sphinx puts beside its pages, copies and code
)


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
    collection: Collection,
    env: Mapping[str, str],
    *,
    private: bool = False,
    apart: Apart | None = None,
) -> Found:
    """
    Return the documents of *collection* in a fixed order, copies left out.

    *apart* reads what takes a process of its own; without one, one is made for this.
    """
    found = Found()
    known: set[bytes] = set()
    with apart or Apart() as reading:
        for place in collection.places:
            search = _Search(collection.name, place, Reader(reading), found, known)
            search.run(place.root(env))
    if private:
        found.documents = [replace(d, private=True) for d in found.documents]
    return found


@dataclass
class _Search:
    """One place's documents, added to what is found; *known* are texts by their sum."""

    name: str
    place: Place
    reader: Reader
    found: Found
    known: set[bytes]

    def run(self, root: Path | None) -> None:
        """Add the documents below *root*."""
        taken: list[tuple[str, Document]] = []
        for path in _files(root, self.place, self.found) if root else ():
            inner = path.relative_to(root).as_posix() if root else ""
            try:
                taken.append((inner, self._document(path, inner)))
            except Unread as exc:
                self.found.skipped.append((inner, str(exc)))
        total = hashlib.sha256()
        count = 0
        pages = {i: document.text for i, document in taken if _is_page(i, document)}
        stripped = without_repeated([*pages.values()])
        bare = dict(zip(pages, stripped, strict=True))
        for inner, document in taken:
            text = bare.get(inner, document.text)
            # A case's dictionary is the answer to a question for that case, whichever
            # other cases have the same one; what is shown twice is left out later.
            case = chunk_foam.case_of(inner) if chunk_foam.in_case(inner) else ""
            content = f"{case}\0{text}" if case else text
            digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
            if digest in self.known or not text.strip():
                why = "a copy of another file" if text.strip() else "empty"
                self.found.skipped.append((inner, why))
                continue
            self.known.add(digest)
            count += 1
            total.update(inner.encode("utf-8", "surrogateescape") + b"\0" + digest)
            self.found.documents.append(replace(document, text=text))
        self.found.places.append(
            FoundPlace(self.place.label, root, count, total.hexdigest())
        )

    def _document(self, path: Path, inner: str) -> Document:
        try:
            read = self.reader.read(
                path,
                text_bytes=self.place.max_file_kb * 1024,
                file_bytes=self.place.max_document_mb << 20,
            )
        except OSError as exc:
            raise Unread("not readable") from exc
        return Document(
            self.name,
            "/".join(filter(None, (self.place.under, _printable(inner)))),
            read.text,
            pinned=_matches(inner, self.place.pinned),
            form=read.form,
            tier=self.place.tier,
        )


def _is_page(inner: str, document: Document) -> bool:
    """Tell whether a document was a page of a site: those repeat their navigation."""
    return document.form == MARKDOWN and not inner.endswith(_DOCUMENTS)


_DOCUMENTS = (".ipynb", ".docx", ".pptx", ".odt", ".odp")


class _Shares:
    """How many files each folder gave, those below it included."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._own: Counter[str] = Counter()
        self._below: Counter[str] = Counter()

    def refusal(self, inner: str) -> str:
        """Return why a folder of *inner* gives no more, or count the file."""
        folders = inner.split("/")[:-1]
        above = ["/".join(folders[:n]) for n in range(1, len(folders) + 1)]
        if self._own["/".join(folders)] >= self._place.max_files_per_folder:
            return "more files than allowed in its folder"
        if any(self._below[at] >= self._place.max_files_below for at in above):
            return "more files than allowed below one folder"
        self._own["/".join(folders)] += 1
        self._below.update(above)
        return ""


def _files(root: Path, place: Place, found: Found) -> Iterator[Path]:
    """Yield the files of a place that may be documents, in order of their paths."""
    total = 0
    shares = _Shares(place)
    # Links to folders are not followed: they lead in circles, or to what is here.
    for at, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not _SKIPPED_FOLDERS.fullmatch(f))
        for name in sorted(names):
            path = Path(at) / name
            inner = path.relative_to(root).as_posix()
            if not _matches(inner, place.globs) or _matches(inner, place.exclude):
                continue
            reason = refusal(name) or _refusal(path, root) or shares.refusal(inner)
            if reason:
                found.skipped.append((inner, reason))
                continue
            if total >= MAX_FILES:
                found.skipped.append((inner, "and all after it: too many files"))
                return
            total += 1
            yield path


def _refusal(path: Path, root: Path) -> str:
    """Return why a file is none of ours, as far as its inode tells."""
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            return "a link that leads outside"
        kind = path.stat().st_mode
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return "not readable"
    return "" if stat.S_ISREG(kind) else "not a regular file"


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
