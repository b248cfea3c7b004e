"""
Fortran taken apart: by subroutine, function and type, under their module.

Knows how program units begin and end, in free and in fixed form; nothing of what they
compute. A remark above a unit goes with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .chunk_code import code, is_licence
from .chunk_pack import Fits, Outline, Piece
from .chunk_parts import parts

_UNIT = re.compile(
    r"\s*(?:(?:pure|elemental|impure|recursive|module|non_recursive"
    r"|attributes\([^)]*\)|(?:integer|real|complex|logical|character|type|class"
    r"|double\s+precision)\s*(?:\([^)]*\)|\*\s*\d+)?)\s+)*"
    r"(?P<kind>module(?!\s+procedure)|submodule\s*\([^)]*\)|program|subroutine|function"
    r"|block\s*data)\s+(?P<name>\w+)\s*(?:[(!;]|$|result|bind)",
    re.I,
)
_TYPE = re.compile(
    r"\s*type(?:\s*,[^:!]*)?\s*(?:::)?\s*(?P<name>[a-z]\w*)\s*(?:!|$)", re.I
)
_INTERFACE = re.compile(r"\s*(?:abstract\s+)?interface\b(?P<name>[^!\n]*)", re.I)
_END = re.compile(
    r"\s*end\s*(?:(?P<kind>module|submodule|program|subroutine|function|type|interface"
    r"|block\s*data)\b.*|)\s*(?:!.*)?$",
    re.I,
)
_CONTAINS = re.compile(r"\s*contains\s*(?:!.*)?$", re.I)
_REMARK = re.compile(r"\s*!|[cC*](?:\s|[-*=!]|$)")
_HOLDERS = ("module", "submodule", "program")
_SIGNATURE_LINES = 8


@dataclass
class _Open:
    """A unit whose end has not come yet."""

    kind: str
    name: str
    line: int


def fortran(text: str, fits: Fits) -> Outline:
    """Take Fortran apart; a file whose units do not end, at its blank lines."""
    lines = text.split("\n")
    cuts = _cuts(lines)
    if cuts is None:
        return code(text)
    pieces: list[Piece] = []
    ends = [start for start, _ in cuts[1:]] + [len(lines)]
    for (start, chain), end in zip(cuts, ends, strict=True):
        whole = "\n".join(lines[start:end]).strip("\n")
        if _says_nothing(whole) or (not pieces and is_licence(whole)):
            continue
        pieces += [Piece(p, chain) for p in parts(whole, _signature(whole), fits)]
    return _titled(pieces)


def _says_nothing(whole: str) -> bool:
    """Tell whether a part is but the ``contains`` or the ``end`` of another."""
    said = [line for line in whole.split("\n") if line.strip()]
    return all(_CONTAINS.match(line) or _END.match(line) for line in said)


def _titled(pieces: list[Piece]) -> Outline:
    """Return an outline with a file's only module as its title, not in each chain."""
    tops = {piece.chain[0] for piece in pieces if piece.chain}
    if len(tops) != 1:
        return Outline("", tuple(pieces))
    return Outline(tops.pop(), tuple(Piece(p.text, p.chain[1:]) for p in pieces))


def _cuts(lines: list[str]) -> list[tuple[int, tuple[str, ...]]] | None:
    """Return where parts begin, and under which names; None if units do not match."""
    opened: list[_Open] = []
    cuts: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    for at, line in enumerate(lines):
        if _REMARK.match(line):
            continue
        if _END.match(line):
            if not _closed(opened, line):
                continue  # of an if or a do, written "end" with its word: not matched
            cuts.append((at + 1, tuple(unit.name for unit in opened if unit.name)))
        elif unit := _begun(line, opened):
            opened.append(_Open(*unit, at))
            names = tuple(one.name for one in opened if one.name)
            cuts.append((_above(lines, at), names))
        elif _CONTAINS.match(line) and opened and opened[-1].kind in _HOLDERS:
            cuts.append((at + 1, (opened[-1].name,)))
    return None if opened else _merged(cuts)


def _begun(line: str, opened: list[_Open]) -> tuple[str, str] | None:
    """Return the kind and name of a unit that begins on *line* and is a part."""
    if found := _UNIT.match(line):
        kind = found["kind"].split("(")[0].strip().lower()
        return kind, found["name"]
    if found := _INTERFACE.match(line):
        return "interface", found["name"].strip()
    inside = opened and opened[-1].kind in _HOLDERS
    if inside and (found := _TYPE.match(line)) and found["name"].lower() != "is":
        return "type", found["name"]
    return None


def _closed(opened: list[_Open], line: str) -> bool:
    """Take the unit that *line* ends off *opened*; tell whether it was a part."""
    found = _END.match(line)
    kind = " ".join((found["kind"] or "").lower().split()) if found else ""
    if not opened or (kind and kind != opened[-1].kind):
        return False
    opened.pop()
    return True


def _above(lines: list[str], at: int) -> int:
    """Return where the remark that stands right above line *at* begins."""
    while at and _REMARK.match(lines[at - 1]):
        at -= 1
    return at


def _merged(
    cuts: list[tuple[int, tuple[str, ...]]],
) -> list[tuple[int, tuple[str, ...]]]:
    """Return the cuts by their lines, the last of each line."""
    return sorted(dict(cuts).items())


def _signature(whole: str) -> str:
    """Return a part's first statement, continued lines included, for the next ones."""
    lines = [line for line in whole.split("\n") if not _REMARK.match(line)]
    found: list[str] = []
    for line in lines[:_SIGNATURE_LINES]:
        found.append(line.rstrip())
        if line.strip() and not line.rstrip().endswith("&"):
            break
    return "\n".join(line for line in found if line) + "  ! continued"
