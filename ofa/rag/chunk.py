"""
A document to the chunks that are indexed: by structure, within a window.

Knows which format a file is of and what stands at a chunk's head; nothing of storage.
Pure functions: the same document gives the same chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from . import (
    chunk_code,
    chunk_cpp,
    chunk_data,
    chunk_foam,
    chunk_fortran,
    chunk_jobs,
    chunk_markup,
    chunk_pages,
    chunk_prose,
)
from .chunk_pack import Cost, Fits, Outline, pack
from .document import Document

# Raise it with every change of what comes out: chunks are kept by it.
CHUNKER_VERSION = "1"

# At most this share of the window is head; a path of ten folders is cut from the left.
_HEAD_SHARE = 0.3
_SECTION_TOKENS = 16  # kept free for a chain of headings

# What can be told by a file's name alone.
_BY_SUFFIX: Mapping[str, Callable[[str, Fits], Outline]] = {
    **dict.fromkeys(
        (".md", ".markdown", ".mdx", ".qmd", ".rmd"),
        lambda text, fits: chunk_prose.markdown(text),
    ),
    **dict.fromkeys(
        (".html", ".htm", ".xhtml"),
        lambda text, fits: chunk_prose.markdown(chunk_markup.from_html(text)),
    ),
    ".rst": lambda text, fits: chunk_prose.restructured(text),
    **dict.fromkeys((".py", ".pyi"), chunk_code.python),
    **dict.fromkeys((".yaml", ".yml"), lambda text, fits: chunk_code.yaml(text)),
    **dict.fromkeys(
        (".toml", ".ini", ".cfg", ".conf"), lambda text, fits: chunk_code.tables(text)
    ),
    ".pages": lambda text, fits: chunk_pages.pages(text),  # of a PDF
    ".json": chunk_data.as_json,
    **dict.fromkeys(
        (".f", ".for", ".ftn", ".f77", ".f90", ".f95", ".f03", ".f08", ".cuf"),
        chunk_fortran.fortran,
    ),
    **dict.fromkeys(
        (".h", ".hh", ".hpp", ".hxx", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".cu")
        + (".hip", ".inl", ".ipp", ".tpp"),
        chunk_cpp.cpp,
    ),
}
# Files that have one name everywhere.
_BY_NAME: tuple[tuple[Callable[[str], bool], Callable[[str, str], Outline]], ...] = (
    (chunk_jobs.is_configuration, lambda path, text: chunk_jobs.configuration(text)),
    (chunk_data.is_vasp, chunk_data.vasp),
)
_PLAIN = {".txt", ".text", ".man", ".cat"}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-.]+")


@dataclass(frozen=True)
class Chunk:
    """A piece of a document: *text* to show, and *head* that tells where it is from."""

    title: str
    section: str
    head: str
    text: str

    @property
    def index(self) -> str:
        """The text that is embedded and searched: what is shown, under its head."""
        return f"{self.head}\n{self.text}"


def chunk(
    document: Document, *, count: Callable[[str], int], window: int
) -> list[Chunk]:
    """
    Return the chunks of *document*, each of at most *window* tokens with its head.

    *count* tells a text's tokens, the model's own marks included.
    """
    marks = count("")
    room = window - marks

    def cost(text: str) -> int:
        return count(text) - marks

    most = int(room * _HEAD_SHARE)
    outline = _outline(document, lambda text: cost(text) <= room - most)
    shortest = _head(document, outline.title, "", cost, most)
    budget = room - min(most, cost(shortest) + _SECTION_TOKENS)
    title = outline.title or PurePosixPath(document.path).name
    found: list[Chunk] = []
    for piece in pack(outline.pieces, budget, cost):
        if not any(map(str.isalnum, piece.text)):
            continue  # a ruling line answers nothing
        section = " > ".join(piece.chain)
        left = min(most, room - cost(piece.text))
        head = _head(document, outline.title, section, cost, left)
        found.append(Chunk(title, section, head, piece.text.strip("\n")))
    return found


def _outline(document: Document, fits: Fits) -> Outline:
    path, text = document.path.removesuffix(".gz"), document.text
    suffix = document.form or PurePosixPath(path).suffix.lower()
    for is_one, taken in _BY_NAME:
        if is_one(path):
            return taken(path, text)
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix](text, fits)
    if chunk_markup.is_roff(text):
        return chunk_prose.markdown(chunk_markup.from_roff(text))
    if chunk_foam.is_foam(path, text):
        return chunk_foam.foam(text, fits)
    return _by_look(suffix, text)


def _by_look(suffix: str, text: str) -> Outline:
    if chunk_jobs.is_job(text):
        return chunk_jobs.job(text)
    if text.startswith("#!") or suffix not in {*_PLAIN, ""}:
        return chunk_code.code(text)
    if chunk_prose.looks_like_markdown(text):
        return chunk_prose.markdown(text)
    return chunk_prose.plain(text)


def _head(document: Document, title: str, section: str, cost: Cost, limit: int) -> str:
    """Return where a chunk is from; what is outermost goes first where it is long."""
    folders = list(PurePosixPath(document.path).parts)
    headings = [name for name in (title, *section.split(" > ")) if name]
    while folders:
        path = "/".join(folders)
        head = f"{document.collection}: {path} ({_words(path)})"
        head = ": ".join([head, *filter(None, [" > ".join(headings)])])
        if cost(head) <= limit:
            return head
        if len(folders) <= 2 and headings:
            headings = headings[1:]
        else:
            folders = folders[1:]
    name = document.path
    while name and cost(f"{document.collection}: {name}") > limit:
        name = name[len(name) // 2 + 1 :]
    return f"{document.collection}: {name}"


def _words(path: str) -> str:
    """Return the words inside a path's names: an embedder reads no camelCase."""
    names = [_CAMEL.sub(" ", part).strip() for part in path.split("/")]
    return " ".join(dict.fromkeys(" ".join(names).lower().split()))
