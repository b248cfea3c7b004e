"""
What a build would do, told before it is done.

Knows finding and cutting; writes nothing. Cut are samples only: to cut all takes a good
part of the time that a build takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .build import Workshop, chunks
from .find import FoundPlace, find
from .generation import IndexDamaged, Manifest, current_folder, open_generation
from .sources import Collection

_SAMPLE = 60  # documents cut, of a collection
_TIMED = 48  # chunks embedded, to tell how fast this machine is


@dataclass(frozen=True)
class Planned:
    """What building one collection comes to; *chunks* and *fresh* are estimates."""

    collection: str
    places: tuple[FoundPlace, ...]
    skipped: Mapping[str, int]  # files by reason
    chunks: int = 0
    fresh: int = 0  # of them to be embedded: those of places that changed

    @property
    def documents(self) -> int:
        """How many there are at all places."""
        return sum(place.count for place in self.places)


def plan(
    collections: Sequence[Collection], workshop: Workshop
) -> tuple[list[Planned], float]:
    """Return what `build` would do, and about how many seconds it would take."""
    planned: list[Planned] = []
    sampled: list[str] = []
    for collection in collections:
        one, texts = _planned(collection, workshop)
        planned.append(one)
        sampled += texts
    fresh = sum(one.fresh for one in planned)
    return planned, fresh * _seconds_each(sampled, workshop) if fresh else 0.0


def _planned(collection: Collection, workshop: Workshop) -> tuple[Planned, list[str]]:
    found = find(collection, workshop.env, private=workshop.private)
    sizes = [len(document.text) for document in found.documents]
    sample = found.documents[:: max(1, len(sizes) // _SAMPLE)]
    cut = [piece for one in sample for piece in chunks(one, workshop.embedder)]
    texts = [piece.index for piece in cut]
    letters = sum(len(document.text) for document in sample)
    each = len(texts) / letters if letters else 0.0
    known = _known(workshop, collection.name)
    changed, at = 0, 0
    for place in found.places:
        if (place.label, place.sha256) not in known:
            changed += sum(sizes[at : at + place.count])
        at += place.count
    one = Planned(
        collection.name,
        tuple(found.places),
        found.reasons(),
        chunks=round(each * sum(sizes)),
        fresh=round(each * changed),
    )
    return one, texts


def _known(workshop: Workshop, name: str) -> set[tuple[str, str]]:
    """Return the places, by label and sum, that the current state holds already."""
    try:
        at = current_folder(workshop.shelf / name)
        manifest: Manifest | None = open_generation(at).manifest if at else None
    except IndexDamaged:
        manifest = None
    if manifest is None or manifest.fingerprint != workshop.embedder.fingerprint:
        return set()
    return {(note.label, note.sha256) for note in manifest.sources}


def _seconds_each(texts: Sequence[str], workshop: Workshop) -> float:
    timed = texts[:: max(1, len(texts) // _TIMED)][:_TIMED]
    if not timed:
        return 0.0
    workshop.embedder.passages(timed[:1])  # the weights are loaded with the first
    began = time.monotonic()
    workshop.embedder.passages(timed)
    return (time.monotonic() - began) / len(timed)
