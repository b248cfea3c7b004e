"""
Finding what is kept of a prompt's beginning: chained hashes, then the tokens.

Knows tokens and whose they are; nothing of what is kept for them. Each owner has
shelves of their own, so a search tells nothing about anybody else's prompts, not
even by how long it takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

EVERYBODY = ""  # the owner whose entries serve all
BLOCK = 64  # tokens a link
_WORD = 4  # bytes a token
_LINK = 16  # bytes of hash a link: only to find entries, the tokens decide
# How `common` strides, in bytes: a slice is compared by memcmp, so large ones first.
_STRIDES = (16384, 256, _WORD)


class Kept(Protocol):
    """What an index must know of an entry, which never changes."""

    @property
    def owner(self) -> str:
        """Whose it is."""

    @property
    def packed(self) -> bytes:
        """Its tokens."""

    @property
    def trimmable(self) -> bool:
        """Whether it serves prompts that begin with only a part of its tokens."""


Entry = TypeVar("Entry", bound=Kept)


def pack(ids: Sequence[int]) -> bytes:
    """Return *ids* as bytes, which compare a thousand times as fast."""
    return array("I", ids).tobytes()


def count(packed: bytes) -> int:
    """Return how many tokens *packed* holds."""
    return len(packed) // _WORD


def width(tokens: int) -> int:
    """Return how many bytes `pack` makes of so many tokens."""
    return tokens * _WORD


def common(one: bytes, other: bytes) -> int:
    """Return how many tokens both begin with."""
    size = min(len(one), len(other))
    at = 0
    for stride in _STRIDES:
        while at + stride <= size and one[at : at + stride] == other[at : at + stride]:
            at += stride
    return at // _WORD


class Chain:
    """The links of a prompt's whole blocks, each made when it is first asked for."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self._links = [b""]

    def __iter__(self) -> Iterator[bytes]:
        """Yield the link of no block, of one, of two and so on."""
        size = BLOCK * _WORD
        for blocks in range(len(self.packed) // size + 1):
            if blocks == len(self._links):
                block = self.packed[(blocks - 1) * size : blocks * size]
                self._links.append(self.link(self._links[-1], block))
            yield self._links[blocks]

    @staticmethod
    def link(before: bytes, block: bytes) -> bytes:
        """Return what stands for *block* and all that came *before* it."""
        return blake2b(block, key=before, digest_size=_LINK).digest()


@dataclass(frozen=True)
class Found(Generic[Entry]):
    """The entry that serves the most of a prompt, if any does."""

    entry: Entry | None = None
    tokens: int = 0  # that it serves
    # If none does: the most that any has in common with it, and whether there is any.
    shared: int = 0
    known: bool = False


@dataclass
class _Node(Generic[Entry]):
    """The entries whose tokens run through the same blocks; dicts keep their order."""

    passing: dict[Entry, None] = field(default_factory=dict)
    trimmable: dict[Entry, None] = field(default_factory=dict)
    ending: dict[Entry, None] = field(default_factory=dict)  # in the next block


class Index(Generic[Entry]):
    """Entries by their tokens; its caller sees to it that one thread is in it."""

    def __init__(self, chain: Callable[[bytes], Chain] = Chain) -> None:
        self._chain = chain
        self._shelves: dict[str, dict[bytes, _Node[Entry]]] = {}
        self._links: dict[Entry, tuple[bytes, ...]] = {}

    def add(self, entry: Entry) -> None:
        """Take *entry* in."""
        links = tuple(self._chain(entry.packed))
        self._links[entry] = links
        shelf = self._shelves.setdefault(entry.owner, {})
        for link in links:
            node = shelf.setdefault(link, _Node())
            node.passing[entry] = None
            if entry.trimmable:
                node.trimmable[entry] = None
        shelf[links[-1]].ending[entry] = None

    def discard(self, entry: Entry) -> None:
        """Forget *entry* if it is here."""
        links = self._links.pop(entry, ())
        shelf = self._shelves.get(entry.owner, {})
        for link in links:
            node = shelf[link]
            for entries in (node.passing, node.trimmable, node.ending):
                entries.pop(entry, None)
            if not node.passing:
                del shelf[link]
        if not shelf:
            self._shelves.pop(entry.owner, None)

    def find(self, chain: Chain, owner: str) -> Found[Entry]:
        """Return what serves the most tokens of a prompt, of all but its last."""
        walks = [self._walk(chain, name) for name in _visible(owner)]
        limit = count(chain.packed) - 1
        served = [
            offer
            for nodes in walks
            for offer in (
                *_exact(nodes, chain.packed, limit),
                *_trimmed(nodes, chain.packed, limit),
            )
        ]
        if served:
            tokens, entry = max(served, key=lambda offer: offer[0])
            return Found(entry, tokens)
        shared = max(_shared(nodes, chain.packed) for nodes in walks)
        return Found(shared=shared, known=any(walks))

    def holders(self, chain: Chain, owner: str) -> list[Entry]:
        """Return the entries that begin with all of a prompt, or are just it."""
        wanted = sum(1 for _ in chain)
        walks = (self._walk(chain, name) for name in _visible(owner))
        return [
            entry
            for nodes in walks
            if len(nodes) == wanted
            for entry in nodes[-1].passing
            if entry.packed.startswith(chain.packed)
        ]

    def beginnings(self, chain: Chain, owner: str) -> list[Entry]:
        """Return the entries of *owner* alone that are a real part of a prompt."""
        return [
            entry
            for node in self._walk(chain, owner)
            for entry in node.ending
            if len(entry.packed) < len(chain.packed)
            and chain.packed.startswith(entry.packed)
        ]

    def _walk(self, chain: Chain, owner: str) -> list[_Node[Entry]]:
        """Return the nodes that a prompt runs through, as far as there are any."""
        shelf = self._shelves.get(owner)
        nodes: list[_Node[Entry]] = []
        if shelf is None:
            return nodes
        for link in chain:
            node = shelf.get(link)
            if node is None:
                break
            nodes.append(node)
        return nodes


class Ends:
    """Where entries ended that are there no more, the last *most* of them."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._links: dict[tuple[str, bytes], None] = {}

    def add(self, entry: Kept) -> None:
        """Remember *entry*, unless it is too short to be told from others."""
        *_, last = Chain(entry.packed)
        if last:
            self._links.pop((entry.owner, last), None)
            self._links[entry.owner, last] = None
        if len(self._links) > self._most:
            del self._links[next(iter(self._links))]

    def longest(self, chain: Chain, owner: str) -> int:
        """Return how many tokens of a prompt the longest of them held, in blocks."""
        if not self._links:
            return 0
        owners = _visible(owner)
        return max(
            blocks * BLOCK
            for blocks, link in enumerate(chain)
            if not blocks or any((name, link) in self._links for name in owners)
        )


def _visible(owner: str) -> tuple[str, ...]:
    return (owner, EVERYBODY) if owner != EVERYBODY else (EVERYBODY,)


def _exact(
    nodes: list[_Node[Entry]], packed: bytes, limit: int
) -> Iterator[tuple[int, Entry]]:
    """Yield the longest entry all of whose tokens the prompt begins with."""
    for node in reversed(nodes):
        fits = [
            (count(entry.packed), entry)
            for entry in node.ending
            if count(entry.packed) <= limit and packed.startswith(entry.packed)
        ]
        if fits:
            yield max(fits, key=lambda offer: offer[0])
            return


def _trimmed(
    nodes: list[_Node[Entry]], packed: bytes, limit: int
) -> Iterator[tuple[int, Entry]]:
    """Yield the entry that serves most when it is cut back."""
    for node in reversed(nodes):
        if node.trimmable:
            fits = [
                (min(common(entry.packed, packed), limit), entry)
                for entry in node.trimmable
            ]
            best = max(fits, key=lambda offer: offer[0])
            if best[0] > 0:
                yield best
            return


def _shared(nodes: list[_Node[Entry]], packed: bytes) -> int:
    if not nodes:
        return 0
    return max(common(entry.packed, packed) for entry in nodes[-1].passing)
