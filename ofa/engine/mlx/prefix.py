"""
The prefix store: caches of prompts' beginnings, so that none is read twice.

Knows what is worth keeping within a number of bytes, and who may use it; nothing of
chats and of how caches are made.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .prefix_disk import DiskHeld, PrefixDisk, Stored
from .prefix_file import Kind
from .prefix_index import BLOCK, Chain, Ends, Found, Index, count, pack
from .snapshot import Snapshot

# Metal holds about half a million live buffers in all (mlx-lm #1672); an entry has two
# a layer, about 130 for the largest Gemma. 256 leave most of them to the model, and so
# many are worth keeping only of prompts that are quickly read again.
MAX_ENTRIES = 256

_MOST_TOLD = 20  # reasons, which may hold numbers

# Which longer entries make one of each kind dispensable. Not any for a history: people
# edit or ask anew from there, and a template may write the past differently from what
# was generated, so that only the history's end is ever met again.
_SUPERSEDED_BY: dict[Kind, frozenset[Kind]] = {
    "system": frozenset(),
    "history": frozenset({"history"}),
    "prompt": frozenset({"history", "prompt", "answer"}),
    "answer": frozenset({"history", "prompt", "answer"}),
}

__all__ = ["Held", "Hit", "Kind", "Match", "PrefixStore"]

log = logging.getLogger("ofa.engine.mlx")


@dataclass(frozen=True)
class Match:
    """How many tokens of a prompt would not be read again, and why not more."""

    tokens: int
    reason: str  # for people


@dataclass(frozen=True)
class Hit:
    """Caches to go on from, with a prompt's first *tokens* in them."""

    tokens: int
    layers: list[object]


@dataclass(frozen=True)
class Held:
    """What a store holds, and what it was good for since it was made."""

    entries: int
    nbytes: int
    limit_bytes: int
    hits: int
    misses: int
    reused_tokens: int
    kept: int
    refused: int
    evicted: int
    superseded: int  # dropped because a later entry serves in their place
    disk: DiskHeld | None  # None: there is no such tier


@dataclass(eq=False)
class _Entry:
    owner: str
    packed: bytes
    snapshot: Snapshot
    kind: Kind
    saved_s: float
    priority: float = 0.0
    used: int = 0
    superseded: bool = False

    @property
    def trimmable(self) -> bool:
        return self.snapshot.trimmable

    @property
    def nbytes(self) -> int:
        return self.snapshot.nbytes

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Its place in the queue to the exit; the least one goes first."""
        return not self.superseded, self.priority, self.used


class PrefixStore:
    """
    Snapshots within *limit_bytes*, those that save the most time per byte.

    `match` and `held` may be called on any thread; `take` and `put` on the engine's.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        most: int = MAX_ENTRIES,
        disk: PrefixDisk | None = None,
    ) -> None:
        self._most = most
        self._disk = disk
        self._lock = threading.Lock()
        self._limit_bytes = limit_bytes
        self._index: Index[_Entry] = Index()
        self._entries: dict[_Entry, None] = {}
        self._nbytes = 0
        self._age = 0.0  # what the last one evicted was worth: newcomers start there
        self._uses = 0
        self._counts = dict.fromkeys(
            ("hits", "misses", "reused_tokens", "kept", "refused", "evicted"), 0
        )
        self._superseded = 0
        self._gone = Ends()
        self._told: set[str] = set()

    @property
    def limit_bytes(self) -> int:
        """What all entries together may take; lowering it evicts at once."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        with self._lock:
            self._limit_bytes = limit_bytes
            self._make_room(0, 0)

    def match(self, ids: Sequence[int], owner: str) -> Match:
        """Return how many tokens `take` would find kept for *owner* now."""
        chain = Chain(pack(ids))
        found, stored = self._find(chain, owner)
        if stored.entry is not None:
            return Match(stored.tokens, _reason(stored, len(ids)) + " from disk")
        reason = _reason(found, len(ids))
        with self._lock:
            gone = self._gone.longest(chain, owner)
        if gone > found.tokens:
            reason += f"; {gone} that were kept had to make room"
        return Match(found.tokens, reason)

    def take(self, ids: Sequence[int], owner: str) -> Hit | None:
        """Return caches with as much of *ids* in them as there is, but for the last."""
        chain = Chain(pack(ids))
        while True:
            found, stored = self._find(chain, owner)
            hit: Hit | None = None
            if stored.entry is not None:
                hit = self._take_stored(stored.entry, stored.tokens)
            elif found.entry is not None:
                hit = self._take_kept(found.entry, found.tokens)
            if hit is not None or (found.entry is None and stored.entry is None):
                self._count_take(hit)
                return hit
            # What was found turned out useless and is gone: there may be another.

    def put(
        self,
        ids: Sequence[int],
        owner: str,
        layers: Sequence[object],
        *,
        kind: Kind,
        saved_s: float,
    ) -> bool:
        """
        Keep a copy of *layers*, which hold *ids*; return whether it is kept.

        *saved_s* says how long it takes to read *ids* again. Not kept are those too
        large, of a kind unknown, and those that serve no more than what there is.
        """
        chain = Chain(pack(ids))
        with self._lock:
            if self._limit_bytes <= 0 or self._refresh_same(chain, owner, kind):
                return False
        try:
            snapshot = Snapshot.planned(layers, tokens=len(ids))
        except ValueError as error:
            self._refuse(str(error))
            return False
        entry = _Entry(owner, chain.packed, snapshot, kind, saved_s)
        if not self._keep(entry, chain):
            return False
        self._evaluate(entry)
        if self._disk is not None:
            self._disk.offer(
                snapshot, chain.packed, owner=owner, kind=kind, saved_s=saved_s
            )
        return True

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            for entry in tuple(self._entries):
                self._drop(entry)

    def close(self, wait_s: float = 5.0) -> None:
        """Let the disk, if there is one, finish writing what is worth it."""
        if self._disk is not None:
            self._disk.close(wait_s)

    def held(self) -> Held:
        """Return what is held now, and the counts since the start."""
        with self._lock:
            return Held(
                entries=len(self._entries),
                nbytes=self._nbytes,
                limit_bytes=self._limit_bytes,
                superseded=self._superseded,
                disk=self._disk.held() if self._disk is not None else None,
                **self._counts,
            )

    def _find(self, chain: Chain, owner: str) -> tuple[Found[_Entry], Found[Stored]]:
        """Return what memory has, and what the disk has if that is worth reading."""
        with self._lock:
            found = self._index.find(chain, owner)
        if self._disk is None:
            return found, Found()
        stored = self._disk.find(chain, owner)
        return found, stored if stored.tokens >= found.tokens + BLOCK else Found()

    def _take_kept(self, entry: _Entry, tokens: int) -> Hit | None:
        try:
            layers = entry.snapshot.restore(tokens)
        except ValueError as error:
            log.warning("a kept prefix can't be used: %s", error)
            with self._lock:
                self._drop(entry)
            return None
        with self._lock:
            self._refresh(entry, tokens)
        return Hit(tokens, layers)

    def _take_stored(self, stored: Stored, tokens: int) -> Hit | None:
        """Read a file, and keep in memory what was in it."""
        facts = stored.head.facts
        with self._lock:
            if facts.payload_bytes <= self._limit_bytes:
                self._make_room(facts.payload_bytes, 1)
        snapshot = self._disk.load(stored) if self._disk is not None else None
        if snapshot is None:
            return None
        entry = _Entry(facts.owner, stored.packed, snapshot, facts.kind, facts.saved_s)
        self._keep(entry, Chain(entry.packed))
        return Hit(tokens, snapshot.restore(tokens))

    def _count_take(self, hit: Hit | None) -> None:
        with self._lock:
            self._counts["hits" if hit else "misses"] += 1
            self._counts["reused_tokens"] += hit.tokens if hit else 0

    def _evaluate(self, entry: _Entry) -> None:
        """Take the memory that room was made for; nobody else restores meanwhile."""
        try:
            entry.snapshot.evaluate()
        except BaseException:
            with self._lock:
                self._drop(entry)
            raise

    def _keep(self, entry: _Entry, chain: Chain) -> bool:
        with self._lock:
            if entry.nbytes > self._limit_bytes:
                self._counts["refused"] += 1
                return False
            self._supersede(entry, chain)
            self._make_room(entry.nbytes, 1)
            self._add(entry)
        return True

    def _refresh(self, entry: _Entry, tokens: int) -> None:
        """Let *entry* stay as a newcomer would that saves as much (GreedyDual-Size)."""
        self._uses += 1
        entry.used = self._uses
        share = tokens / count(entry.packed)
        worth = self._age + share * entry.saved_s / entry.nbytes
        entry.priority = max(entry.priority, worth)
        if share == 1:
            entry.superseded = False  # somebody went back to it

    def _refresh_same(self, chain: Chain, owner: str, kind: Kind) -> bool:
        """Return whether what is kept serves all that a new entry would; refresh it."""
        for entry in self._index.holders(chain, owner):
            same = len(entry.packed) == len(chain.packed)
            if same or (entry.trimmable and kind != "system"):
                self._refresh(entry, count(chain.packed))
                return True
        return False

    def _supersede(self, entry: _Entry, chain: Chain) -> None:
        for older in self._index.beginnings(chain, entry.owner):
            if older.kind == "system":
                continue
            if entry.trimmable:
                self._superseded += 1
                self._drop(older)
            elif entry.kind in _SUPERSEDED_BY[older.kind]:
                older.superseded = True

    def _make_room(self, nbytes: int, entries: int) -> None:
        while self._entries and (
            self._nbytes + nbytes > self._limit_bytes
            or len(self._entries) + entries > self._most
        ):
            victim = min(self._entries, key=lambda entry: entry.rank)
            if victim.superseded:
                self._superseded += 1
            else:
                self._counts["evicted"] += 1
                self._age = max(self._age, victim.priority)
            self._gone.add(victim)
            self._drop(victim)

    def _add(self, entry: _Entry) -> None:
        self._refresh(entry, count(entry.packed))
        self._entries[entry] = None
        self._index.add(entry)
        self._nbytes += entry.nbytes
        self._counts["kept"] += 1

    def _drop(self, entry: _Entry) -> None:
        if entry in self._entries:
            del self._entries[entry]
            self._index.discard(entry)
            self._nbytes -= entry.nbytes

    def _refuse(self, why: str) -> None:
        """Say *why* once: a model whose caches are unknown would fill the log."""
        with self._lock:
            self._counts["refused"] += 1
            new = why not in self._told and len(self._told) < _MOST_TOLD
            if new:
                self._told.add(why)
        if new:
            log.info("a prefix is not kept: %s", why)


def _reason(found: Found[Any], asked: int) -> str:
    if found.tokens:
        return f"{found.tokens} of {asked} tokens"
    if not found.known:
        return "nothing is kept yet"
    if not found.shared:
        return "nothing that is kept begins like this"
    if found.shared == asked:
        return (
            "what is kept leaves nothing of this prompt to read, and can't be cut back"
        )
    return (
        f"the conversation differs from token {found.shared + 1} on, and what is kept "
        "can't be cut back to there"
    )
