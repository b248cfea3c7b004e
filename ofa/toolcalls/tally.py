"""What happened to the calls of one answer, in words for a header and a log line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_MOST_CHARS = 200
_MOST_NAMES = 8  # of one kind


@dataclass
class Tally:
    """Counts by word; the words are ours, or cleaned before they are told."""

    repaired: Counter[str] = field(default_factory=Counter)  # what was mended in calls
    rescued: Counter[str] = field(default_factory=Counter)  # by foreign format
    failed: int = 0  # calls that could not be used
    asked_again: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # "extra", "cut"
    fenced: Counter[str] = field(default_factory=Counter)  # blocks that look like tools

    def told(self) -> str:
        """Return it as one line of bounded ASCII; empty if there is nothing to tell."""
        parts = [
            _part("repaired", self.repaired),
            _part("rescued", self.rescued),
            _part("failed", Counter({"call": self.failed})),
            _part("asked again", Counter({"once": self.asked_again})),
            _part("dropped", self.dropped),
            _part("fenced", self.fenced),
        ]
        return "; ".join(part for part in parts if part)[:_MOST_CHARS]


def _part(title: str, counts: Counter[str]) -> str:
    names = [
        f"{_clean(name)} x{count}" if count > 1 else _clean(name)
        for name, count in sorted(counts.items())[:_MOST_NAMES]
        if count > 0
    ]
    return f"{title}: {', '.join(names)}" if names else ""


def _clean(name: str) -> str:
    """Return *name* without what a header or a list of names can't hold."""
    kept = (c if c.isascii() and (c.isalnum() or c in " -_.") else "?" for c in name)
    return "".join(kept)[:24]
