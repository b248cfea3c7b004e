"""
Data that is read as settings: JSON, and VASP's input files.

Knows keys, and where numbers begin that say nothing to a reader.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .chunk_code import code
from .chunk_pack import Fits, Outline, Piece

_LONG_LIST = 20  # a longer one is data: its first entries show its form
_SHOWN = 5
_DEEPEST = 6
# "INCAR", "INCAR.relax", "POSCAR-bulk.vasp", but no page about them: "incar-tags.md".
_VASP = re.compile(
    r"(INCAR|KPOINTS|POSCAR|CONTCAR)(?!.*\.(?:md|rst|txt|html?|tex|py)$)(?:[._-].*)?",
    re.I,
)
_STRUCTURES = ("POSCAR", "CONTCAR")
_HEAD_LINES = 9  # of a structure: scale, lattice, species, counts, kind, one atom


def as_json(text: str, fits: Fits) -> Outline:
    """Take JSON apart: a section for each key; what is no JSON, at blank lines."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return code(text)
    return Outline("", tuple(_pieces(told, (), fits)))


def _pieces(told: Any, chain: tuple[str, ...], fits: Fits) -> list[Piece]:  # noqa: ANN401 - JSON
    shown = _shown(told)
    if fits(shown) or not told or len(chain) >= _DEEPEST:
        return [Piece(shown, chain)]
    found: list[Piece] = []
    if isinstance(told, dict):
        for key, value in told.items():
            line = _shown({key: value})
            if fits(line) or not isinstance(value, dict):
                found.append(Piece(line, chain))
            else:
                found += _pieces(value, (*chain, str(key)), fits)
    elif isinstance(told, list):
        for value in told[:_LONG_LIST]:
            found += _pieces(value, chain, fits)
    return found or [Piece(shown, chain)]


def _shown(told: Any) -> str:  # noqa: ANN401 - JSON
    return json.dumps(_cut(told, 0), indent=1, ensure_ascii=False)


def _cut(told: Any, depth: int) -> Any:  # noqa: ANN401 - JSON
    """Return *told* with its long lists cut to how they begin."""
    if depth > 50:
        return "..."
    if isinstance(told, dict):
        return {key: _cut(value, depth + 1) for key, value in told.items()}
    if isinstance(told, list):
        left = len(told) - _SHOWN
        kept = told if len(told) <= _LONG_LIST else told[:_SHOWN]
        cut = [_cut(value, depth + 1) for value in kept]
        return cut if len(told) <= _LONG_LIST else [*cut, f"({left} more left out)"]
    return told


def is_vasp(path: str) -> bool:
    """Tell whether a file is one of VASP's inputs, by its name."""
    return _VASP.fullmatch(path.rpartition("/")[2]) is not None


def vasp(path: str, text: str) -> Outline:
    """Take one of VASP's inputs apart; of a structure, what stands above its atoms."""
    found = _VASP.fullmatch(path.rpartition("/")[2])
    kind = found[1].upper() if found else ""
    if kind in _STRUCTURES:
        lines = text.rstrip().split("\n")
        if left := max(0, len(lines) - _HEAD_LINES):
            lines = [*lines[:_HEAD_LINES], f"({left} more lines of atoms left out)"]
        text = "\n".join(lines)
    return Outline(f"VASP {kind}", code(text).pieces)
