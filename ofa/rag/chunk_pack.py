"""
Pieces of a document to chunks of a size: what belongs together stays together.

Knows sizes and sections; nothing of formats. A piece is the smallest thing a format
wants whole (a paragraph, a block of code, a definition); it is cut only if it is larger
than a chunk, and then between lines where that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

Cost = Callable[[str], int]
Fits = Callable[[str], bool]

# A section smaller than this share of a chunk is joined with the one after it: three
# lines alone say too little to be found, and take a place from something better.
_SMALL = 0.3

_FENCES = ("```", "~~~")


@dataclass(frozen=True)
class Piece:
    """Whole lines of a document under a chain of headings, outermost first."""

    text: str
    chain: tuple[str, ...] = ()
    joined: bool = False  # with the piece before it, whenever both fit: code's lead-in


@dataclass(frozen=True)
class Outline:
    """A document taken apart: what it is called, and its pieces in order."""

    title: str
    pieces: tuple[Piece, ...]


def pack(pieces: Sequence[Piece], budget: int, cost: Cost) -> Iterator[Piece]:
    """Yield *pieces* joined, in order, to chunks that cost at most *budget*."""
    held: Piece | None = None
    spent = 0
    for piece in _bound(_glued(pieces, budget, cost), budget, cost):
        price = cost(piece.text)
        if held and spent + price <= budget and _may_join(held, piece, spent / budget):
            held = _join(held, piece)
            spent += price
            continue
        if held:
            yield held
        held, spent = piece, price
    if held:
        yield held


def split_long(text: str, budget: int, cost: Cost) -> Iterator[str]:
    """Yield *text* in parts of at most *budget*, cut at blank lines, lines or words."""
    held: list[str] = []
    spent = 0
    for line in _short_lines(text, budget, cost):
        price = cost(line)
        if held and spent + price > budget:
            keep = _break(held)
            yield "\n".join(held[:keep])
            held = held[keep:]
            spent = sum(map(cost, held))
        held.append(line)
        spent += price
    if any(line.strip() for line in held):
        yield "\n".join(held)


def _glued(pieces: Sequence[Piece], budget: int, cost: Cost) -> Iterator[Piece]:
    held: Piece | None = None
    for piece in pieces:
        if not piece.text.strip():
            continue
        if held and piece.joined and cost(held.text) + cost(piece.text) <= budget:
            held = replace(held, text=f"{held.text}\n\n{piece.text}")
            continue
        if held:
            yield held
        held = piece
    if held:
        yield held


def _bound(pieces: Iterator[Piece], budget: int, cost: Cost) -> Iterator[Piece]:
    for piece in pieces:
        if cost(piece.text) <= budget:
            yield piece
            continue
        for part in _parts(piece.text, budget, cost):
            if part.strip():
                yield replace(piece, text=part)


def _parts(text: str, budget: int, cost: Cost) -> Iterator[str]:
    """Yield the parts of a long piece; each part of fenced code is fenced again."""
    first, _, rest = text.partition("\n")
    if not first.startswith(_FENCES) or "\n" not in rest:
        yield from split_long(text, budget, cost)
        return
    body = rest.rpartition("\n")[0]
    mark = first[:3]
    for part in split_long(body, max(1, budget - cost(first) - cost(mark)), cost):
        yield f"{first}\n{part}\n{mark}"


def _may_join(held: Piece, piece: Piece, full: float) -> bool:
    if held.chain == piece.chain:
        return True
    # A new section starts its own chunk, unless what is held is next to nothing.
    return full < _SMALL and held.chain[:1] == piece.chain[:1]


def _join(held: Piece, piece: Piece) -> Piece:
    chain = held.chain
    if piece.chain != chain:
        # Only a heading so far: then the chunk is about what follows it.
        alone = "\n" not in held.text.strip()
        deeper = piece.chain[: len(chain)] == chain
        chain = piece.chain if alone and deeper else _common(chain, piece.chain)
    return Piece(f"{held.text}\n\n{piece.text}", chain)


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return one[:same]


def _break(lines: list[str]) -> int:
    """Return after how many lines to cut: at a blank one of the second half, or all."""
    for at in range(len(lines) - 1, len(lines) // 2, -1):
        if not lines[at].strip():
            return at + 1
    return len(lines)


def _short_lines(text: str, budget: int, cost: Cost) -> Iterator[str]:
    for line in text.split("\n"):
        if cost(line) <= budget or len(line) < 2:
            yield line
        else:
            yield from _halves(line, budget, cost)


def _halves(line: str, budget: int, cost: Cost) -> Iterator[str]:
    middle = len(line) // 2
    at = line.rfind(" ", 1, middle)
    at = at if at > middle // 2 else middle
    for half in (line[:at], line[at:]):
        if cost(half) <= budget or len(half) < 2:
            yield half
        else:
            yield from _halves(half, budget, cost)
