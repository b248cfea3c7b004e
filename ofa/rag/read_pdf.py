"""
PDF to text, page by page.

Knows pypdf and what pages repeat; nothing of sizes or time, which `read_apart` limits.
The only module that names pypdf: pure Python, so that a broken file ends in an
exception and not in the process. A page of pictures has no text here: nothing is
recognised from images.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Any

from .unread import Unread

# A page's mark, which `chunk_pages` takes apart again.
PAGE = "\f"

_HYPHEN = re.compile(r"(?<=[a-z])[-\u00ad\u2010]\n(?=[a-z])")
_DIGITS = re.compile(r"\d+")
_EDGE = 2  # lines at a page's head and foot that may be the same on each
_FEWEST = 4  # pages before "the same on each" means anything


def pdf(path: str) -> str:
    """Return the title and each page of the PDF at *path*; raises `Unread`."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # a line per broken object
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unread("encrypted")
        title = str((reader.metadata and reader.metadata.title) or "").strip()
        pages = [_page(page) for page in reader.pages]
    except pypdf.errors.DependencyError as exc:
        raise Unread("encrypted") from exc
    except (pypdf.errors.PyPdfError, *_BROKEN) as exc:
        raise Unread("damaged") from exc
    if not any(page.strip() for page in pages):
        raise Unread("pictures of pages without text")
    return PAGE.join([" ".join(title.split()), *_without_edges(pages)])


# What a broken file makes pypdf run into, beside its own errors.
_BROKEN = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
    OSError,
    RecursionError,
)


def _page(page: Any) -> str:  # noqa: ANN401 - pypdf's, named in one function only
    text = page.extract_text().replace(PAGE, "\n").replace("\r", "\n")
    lines = [line.rstrip() for line in text.split("\n")]
    return _HYPHEN.sub("", "\n".join(lines)).strip("\n")


def _without_edges(pages: list[str]) -> list[str]:
    """Return *pages* without the lines at head and foot that most of them share."""
    if len(pages) < _FEWEST:
        return pages
    counts = Counter(key for page in pages for key in set(_edges(page.split("\n"))))
    shared = {key for key, count in counts.items() if count * 2 > len(pages)}
    return [_cut(page.split("\n"), shared) for page in pages]


def _edges(lines: list[str]) -> list[str]:
    return [_key(line) for line in (*lines[:_EDGE], *lines[-_EDGE:])]


def _cut(lines: list[str], shared: set[str]) -> str:
    last = len(lines) - _EDGE
    kept = [
        line
        for at, line in enumerate(lines)
        if not ((at < _EDGE or at >= last) and _key(line) in shared)
    ]
    return "\n".join(kept)


def _key(line: str) -> str:
    """Return what is the same of a running head: all but the page's number."""
    return _DIGITS.sub("0", line.strip())
