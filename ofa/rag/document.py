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
