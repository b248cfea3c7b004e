"""
The text of a PDF taken apart: by page, so that an answer can name one.

Knows what `read_pdf` writes: a title, then the pages, each behind a form feed.
"""

from __future__ import annotations

import re

from .chunk_pack import Outline, Piece


def pages(text: str) -> Outline:
    """Take pages apart at their blank lines; the section is the page, ``p. 12``."""
    title, *found = text.split("\f")
    pieces = [
        Piece(block.strip("\n"), (f"p. {number}",))
        for number, page in enumerate(found, 1)
        for block in re.split(r"\n(?:[ \t]*\n)+", page)
        if block.strip()
    ]
    return Outline(title.strip(), tuple(pieces))
