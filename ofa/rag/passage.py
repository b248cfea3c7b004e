"""What retrieval finds, in the words that index, search and fence share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """
    A piece of a document, as it is shown to the model and cited to people.

    *path* is the document's address relative to its source's root, with ``/``;
    *section* is its chain of headings, outermost first, joined by `` > ``.
    """

    collection: str
    path: str
    title: str
    section: str
    text: str
    private: bool = False  # of the user's own layer: fenced apart
    pinned: bool = False  # declared authoritative: goes first, always
    tier: int = 1  # its place's, 1 to 9: lower goes first where both fit a question

    @property
    def reading(self) -> str:
        """What makes two passages the same to a reader, whatever their layout."""
        return " ".join(self.text.split())


@dataclass(frozen=True)
class Hit:
    """A passage with the score that ranked it."""

    passage: Passage
    score: float  # fused, 0 to 1 within one question; for ranking
    cosine: float  # dense similarity, -1 to 1; the best one is a part of the gate's fit
    row: int = 0  # its place in the collection, where a document's pieces are in order
    before: Passage | None = None  # of the same document
    after: Passage | None = None
