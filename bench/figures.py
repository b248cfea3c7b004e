"""
What was measured, what it must reach, and the table of both.

Knows arithmetic and Markdown; nothing of servers or models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bound:
    """The side of *value* on which a figure has to be."""

    sign: str  # "≤" or "≥"
    value: float

    def holds(self, measured: float) -> bool:
        """Return whether *measured* is on the right side, the bound included."""
        return measured <= self.value if self.sign == "≤" else measured >= self.value


def at_most(value: float) -> Bound:
    """Return the bound of a figure that must be small."""
    return Bound("≤", value)


def at_least(value: float) -> Bound:
    """Return the bound of a figure that must be large."""
    return Bound("≥", value)


@dataclass(frozen=True)
class Figure:
    """
    One line of the table.

    *measured* is None for what could not be measured, which is never met. Without a
    *must* it is shown for its own sake. *note* tells what was compared, and the
    spread; *details* are kept in the JSON only.
    """

    name: str
    measured: float | None
    must: Bound | None = None
    unit: str = ""
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    row: str = ""  # of the registry; set by the command, like
    ofa: str = ""  # version and commit that it was measured of

    @property
    def met(self) -> bool | None:
        """Whether it reaches what it must; None where nothing is asked."""
        if self.measured is None:
            return False
        return None if self.must is None else self.must.holds(self.measured)

    @property
    def verdict(self) -> str:
        """What the last column says."""
        return {None: "–", True: "yes", False: "**no**"}[self.met]


def number(value: float | None, unit: str = "") -> str:
    """Return *value* as people read it: three significant digits, whole counts whole.

    >>> number(0.98765), number(4058.0), number(None)
    ('0.988', '4,058', '–')
    """
    if value is None:
        return "–"
    if abs(value) >= 100 or float(value).is_integer():
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".rstrip()


@dataclass(frozen=True)
class Pair:
    """Ours and the peer's readings of one quantity, a pair a round."""

    ours: Sequence[float]
    peers: Sequence[float]

    @property
    def ratio(self) -> float:
        """Ours over the peer's, of the medians."""
        return statistics.median(self.ours) / statistics.median(self.peers)

    @property
    def difference(self) -> float:
        """Ours less the peer's, of the medians."""
        return statistics.median(self.ours) - statistics.median(self.peers)

    @property
    def spread(self) -> str:
        """The least and the greatest ratio of a round."""
        ratios = sorted(a / b for a, b in zip(self.ours, self.peers, strict=True))
        return f"{number(ratios[0])} to {number(ratios[-1])} over {len(ratios)} rounds"

    def told(self, unit: str = "") -> str:
        """Return both medians, for a note."""
        ours, peers = statistics.median(self.ours), statistics.median(self.peers)
        return f"{number(ours)} against {number(peers)} {unit}".rstrip()

    def kept(self, name: str) -> dict[str, list[float]]:
        """Return all readings, for the JSON."""
        return {
            f"{name}_ours": [round(value, 6) for value in self.ours],
            f"{name}_peer": [round(value, 6) for value in self.peers],
        }


def share(values: Iterable[float], part: float) -> float:
    """Return the value that *part* of *values* do not pass.

    >>> share([1, 2, 3, 4], 0.5), share([1, 2, 3, 4], 1.0)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def table(figures: Sequence[Figure]) -> str:
    """Return *figures* as a Markdown table, columns aligned for a terminal too."""
    rows = [("figure", "measured", "must reach", "met")]
    rows += [
        (
            figure.name,
            number(figure.measured, figure.unit),
            _bound(figure),
            figure.verdict,
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [_line(row, widths) for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def notes(figures: Sequence[Figure]) -> str:
    """Return what was compared, a line a figure that has something to say."""
    told = (f"- {figure.name}: {figure.note}" for figure in figures if figure.note)
    return "\n".join(told)


def _bound(figure: Figure) -> str:
    if figure.must is None:
        return "–"
    return f"{figure.must.sign} {number(figure.must.value, figure.unit)}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"
