"""
A file to its text: decoded, unpacked, or read by the format's own reader.

Knows suffixes, encodings and limits; nothing of places, and nothing of chunks. What
comes out has a *form*: the suffix by which it is taken apart, where that is not the
file's own.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from .chunk_markup import from_html
from .read_apart import KINDS, Apart
from .read_notebook import notebook
from .unread import Unread

MARKDOWN, PAGES = ".md", ".pages"

# By name, without reading. What is left is told apart by a NUL among the first bytes.
_BINARY = frozenset(
    """
    .7z .a .avi .bin .bmp .bz2 .class .dll .doc .dylib .eot .eps .exe .gif .h5 .hdf5
    .ico .inv .jar .jpeg .jpg .mov .mp3 .mp4 .nc .npy .npz .o .obj .ods .ogg .otf
    .pickle .pkl .png .ppt .pyc .qpy .rpm .deb .safetensors .so .stl .svg .tar .tgz .tif
    .tiff .ttf .vtk .vtu .webm .webp .whl .woff .woff2 .xls .xlsx .xz .zip .zst
    """.split()  # noqa: SIM905 - a list literal would be 50 lines
)
# Text that is no document: locks, maps from compilers, and what repeats itself.
_NOISE = frozenset(
    ".lock .map .log .orig~ .rej .bak .swp .css .js .ipynb_checkpoints".split()  # noqa: SIM905
)
# What generators of sites put beside the pages: lists of links, and copies of sources.
_GENERATED = re.compile(
    r"genindex(?:-\w+)?\.html?|py-modindex\.html?|search\.html?|robots\.txt"
    r"|sitemap.*\.xml(?:\.gz)?|searchindex\.\w+|objects\.inv"
    r"|(?:annotated|classes|files|functions|globals|hierarchy|namespaces)"
    r"(?:_\w+)?\.html"
)
# A listing of a folder in another order; a wiki's page as it was, or to be edited.
_OTHER_VIEW = re.compile(r"[?&@;](?:C=[NMSD](?:[;&]|%3B)O=[AD]|action=|oldid=|diff=)")
_QUERY = re.compile(r"[?@]\w[^/]*=.*\Z")
_LICENCE = re.compile(r"(?:LICEN[CS]E|COPYING)(?:[.-].*)?", re.I)
_VASP_LICENSED = re.compile(r"POTCAR.*")
_VASP_OUTPUT = re.compile(
    r"(?:OUTCAR|OSZICAR|CHG|CHGCAR|WAVECAR|WAVEDER|AECCAR\d|LOCPOT|ELFCAR|PARCHG|XDATCAR"
    r"|EIGENVAL|DOSCAR|PROCAR|IBZKPT|PCDAT|REPORT|TMPCAR|vasprun\.xml|vaspout\.h5)"
    r"(?:[.-]\w+)?"
)
_NAMES = (
    (_VASP_LICENSED, "a POTCAR, which VASP's licence keeps to its licensees"),
    (_VASP_OUTPUT, "VASP's output"),
    (_GENERATED, "generated beside a site's pages"),
    (_LICENCE, "a licence"),
)

_HTML = frozenset({".html", ".htm", ".xhtml"})
_HTML_START = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype html|html)", re.I | re.S
)
_REFERS = re.compile(r"\s*(?:\.\\\".*\n)*\.so \S+\s*")


@dataclass(frozen=True)
class Text:
    """A file's text, and the suffix by which it is taken apart; empty: its own."""

    text: str
    form: str = ""


def suffix_of(name: str) -> str:
    """Return what a name says of its file's format: no .gz, no ``?query``, lower."""
    plain = _QUERY.sub("", name).removesuffix(".gz")
    return PurePosixPath(plain).suffix.lower()


def refusal(name: str) -> str:
    """Return why a file of this name is not read, or empty."""
    if name.startswith("."):
        return "a hidden file"
    for pattern, why in _NAMES:
        if pattern.fullmatch(name.removesuffix(".gz")):
            return why
    suffix = suffix_of(name)
    if suffix in _BINARY:
        return f"{suffix} is not read"
    if suffix in _NOISE or name.endswith("~"):
        return "not a document"
    return "another view of a page" if _OTHER_VIEW.search(name) else ""


class Reader:
    """Reads files; what stands in a process of its own ends with `apart`."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart

    def read(self, path: Path, *, text_bytes: int, file_bytes: int) -> Text:
        """
        Return what a file says; raises `Unread` with the reason.

        *text_bytes* limits plain text, *file_bytes* formats that hold more than text.
        """
        suffix = suffix_of(path.name)
        if suffix in KINDS and path.suffix != ".gz":
            if path.stat().st_size > file_bytes:
                raise Unread(_larger(file_bytes))
            form = PAGES if suffix == ".pdf" else MARKDOWN
            return Text(self._told_apart(path, suffix), form)
        if suffix == ".ipynb":
            return Text(_told(notebook(_decoded(path, file_bytes))), MARKDOWN)
        text = _decoded(path, text_bytes)
        if suffix in _HTML or (suffix not in _KNOWN and _HTML_START.match(text)):
            return Text(_told(from_html(text)), MARKDOWN)
        if _REFERS.fullmatch(text):
            raise Unread("it only refers to another page")
        form = suffix if suffix != PurePosixPath(path.name).suffix.lower() else ""
        return Text(_told(text), form)

    def _told_apart(self, path: Path, suffix: str) -> str:
        try:
            return _told(self._apart.read(path, suffix))
        except Unread as exc:
            raise Unread(f"{suffix}: {exc}") from exc


# Where a page's source may begin as HTML without being a page.
_KNOWN = frozenset({".md", ".markdown", ".rst", ".py", ".txt", ".xml"})


def _told(text: str) -> str:
    if not text.strip():
        raise Unread("empty")
    return text


def _decoded(path: Path, limit_bytes: int) -> str:
    try:
        with _opened(path) as file:
            raw = file.read(limit_bytes + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise Unread("not readable") from exc
    if len(raw) > limit_bytes:
        raise Unread(_larger(limit_bytes))
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = raw.decode("utf-16", "replace")
    elif b"\0" in raw[:8192]:
        raise Unread("binary")
    else:
        text = raw.decode("utf-8-sig", "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    if text.count("\ufffd") * 10 > len(text):
        raise Unread("binary")
    return text


def _larger(limit_bytes: int) -> str:
    return f"larger than {limit_bytes // 1024} kB"


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")
