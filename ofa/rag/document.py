"""The word that finding, chunking and building share: a document."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A text to be indexed: *path* is relative to its place's root, with ``/``."""

    collection: str
    path: str
    text: str
    pinned: bool = False
    private: bool = False
    form: str = ""  # how *text* is laid out, as a suffix; empty: as the path's says
    tier: int = 1  # its place's: lower goes before higher where both fit a question
