"""
The package of an office file: a zip file of XML parts, read within limits.

Knows zip and XML and how they are made to hurt; nothing of documents. Nothing is
unpacked to disk, and a document type declaration, which no such file may have and which
could multiply text without end, is refused.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from functools import lru_cache
from typing import Protocol
from xml.parsers import expat

from .unread import Unread

_MOST_BYTES = 64 << 20  # of all parts of one file, unpacked
_MOST_PARTS = 5_000  # a presentation of 1,000 slides has some 3,000
_NUMBER = re.compile(r"\d+")

# Which prefix an element's namespace is known by here; the transitional and the strict.
_OOXML = ("http://schemas.openxmlformats.org/", "http://purl.oclc.org/ooxml/")
_SPACES = {
    f"{start}{path}": prefix
    for start, year in zip(_OOXML, ("2006/", ""), strict=True)
    for path, prefix in (
        (f"wordprocessingml/{year}main", "w"),
        (f"presentationml/{year}main", "p"),
        (f"drawingml/{year}main", "a"),
        (f"officeDocument/{year}relationships", "r"),
    )
} | {
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
    "urn:oasis:names:tc:opendocument:xmlns:office:1.0": "office",
    "urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text",
    "urn:oasis:names:tc:opendocument:xmlns:table:1.0": "table",
    "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0": "draw",
    "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0": "manifest",
}


class Walker(Protocol):
    """What a part's elements are sent to."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take an element's beginning."""

    def end(self, name: str) -> None:
        """Take an element's end."""

    def data(self, text: str) -> None:
        """Take text."""


class Package:
    """A zip file whose parts are read within limits."""

    def __init__(self, path: str) -> None:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - as zipfile has it
                if file.read(8) == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
                    raise Unread("encrypted, or of an old format")
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as exc:
            raise Unread("damaged") from exc
        self._names = set(self._zip.namelist())
        self._left = _MOST_BYTES
        if len(self._names) > _MOST_PARTS:
            raise Unread("more parts than a document has")

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *exc: object) -> None:
        self._zip.close()

    def has(self, name: str) -> bool:
        """Tell whether there is a part of this name."""
        return name in self._names

    def named(self, pattern: str) -> list[str]:
        """Return the names that fit *pattern*, by their numbers."""
        found = [name for name in self._names if re.fullmatch(pattern, name)]
        return sorted(found, key=lambda name: [int(n) for n in _NUMBER.findall(name)])

    def parse(self, name: str, walk: Walker) -> None:
        """Send the part's elements to *walk*."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _refuse
        parser.StartElementHandler = lambda name, told: walk.start(
            _known(name), {_known(key): value for key, value in told.items()}
        )
        parser.EndElementHandler = lambda name: walk.end(_known(name))
        parser.CharacterDataHandler = walk.data
        try:
            with self._zip.open(name) as part:
                while block := part.read(1 << 16):
                    self._left -= len(block)
                    if self._left < 0:
                        raise Unread("too large when unpacked")
                    parser.Parse(block, False)
            parser.Parse(b"", True)
        except (expat.ExpatError, zipfile.BadZipFile, zlib.error, KeyError) as exc:
            raise Unread("damaged") from exc
        except (OSError, EOFError, RuntimeError, NotImplementedError) as exc:
            # RuntimeError: zipfile's own word for a part that needs a password.
            raise Unread("damaged or encrypted") from exc


@lru_cache(maxsize=1024)
def _known(name: str) -> str:
    """Return an element's name by the prefix that this module has for its space."""
    space, _, local = name.rpartition(" ")
    return f"{_SPACES[space]}:{local}" if space in _SPACES else local


def _refuse(*told: object) -> None:
    raise Unread("it declares a document type, which no such file may")
