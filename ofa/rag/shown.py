"""
From ranked hits to the passages that a model is shown, within a budget of tokens.

Knows hits, the pieces beside them and what tokens cost; nothing of scores or fences. A
chunk is as long as an embedder can read, and that is shorter than many answers: where
there is room left, a passage is shown with what stands before and behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .passage import Hit, Passage

# The share of a budget that pinned passages may take from those that were found.
_PINNED_SHARE = 0.5

Count = Callable[[str], int]


def select(
    hits: Sequence[Hit], *, count_tokens: Count, max_tokens: int, max_passages: int
) -> tuple[Passage, ...]:
    """
    Return the best passages that fit in *max_tokens*, whole ones only.

    Pinned ones stand first and may take half, so that an authoritative page is there
    and what was asked for is too. One that does not fit is left out, not cut. What is
    left of the budget goes to the neighbours of the best; those that meet become one.
    """
    pinned = [hit for hit in hits if hit.passage.pinned]
    rest = [hit for hit in hits if not hit.passage.pinned]
    share = _PINNED_SHARE if rest else 1.0
    budget = _Budget(count_tokens, max_tokens)
    first = budget.fill(pinned, int(max_tokens * share), int(max_passages * share))
    others = budget.fill(rest, max_tokens, max_passages - len(first))
    return _joined(_spread((*first, *others), budget))


def is_shown(hit: Hit, shown: Iterable[Passage]) -> bool:
    """Tell whether *hit* is among the passages *shown*, alone or joined to others."""
    wanted = hit.passage
    return any(
        (passage.collection, passage.path) == (wanted.collection, wanted.path)
        and wanted.text in passage.text
        for passage in shown
    )


class _Budget:
    """What may be spent, and what has been."""

    def __init__(self, count: Count, tokens: int) -> None:
        self._count = count
        self._left = tokens
        self._read: set[str] = set()

    def fill(self, hits: Sequence[Hit], tokens: int, most: int) -> list[Hit]:
        """
        Return the first of *hits* that fit into *tokens*, *most* of them.

        A text is shown once, whichever files hold it.
        """
        chosen: list[Hit] = []
        tokens = min(tokens, self._left)
        for hit in hits:
            if len(chosen) >= most:
                break
            passage = hit.passage
            if passage.reading in self._read:
                continue
            header = f"[9] {passage.collection}/{passage.path} > {passage.section}"
            cost = self._count(f"{header}\n{passage.text}\n\n")
            if cost <= tokens:
                chosen.append(hit)
                self._read.add(passage.reading)
                tokens -= cost
                self._left -= cost
        return chosen

    def takes(self, text: str) -> bool:
        """Spend what *text* costs, if there is so much left."""
        cost = self._count(f"{text}\n\n")
        if cost > self._left:
            return False
        self._left -= cost
        return True


@dataclass(frozen=True)
class _Part:
    """A piece of a document: *rank* is that of the hit which brought it along."""

    hit: Hit
    rank: int
    row: int  # its place among the collection's passages
    passage: Passage

    def goes_on_from(self, other: _Part) -> bool:
        """Whether it stands right behind *other* in the same document."""
        return _file(self.hit) == _file(other.hit) and self.row == other.row + 1


def _spread(hits: Sequence[Hit], budget: _Budget) -> Iterator[_Part]:
    """Yield the parts to show: each hit, and a neighbour on each side if it fits."""
    taken = {(_file(hit), hit.row) for hit in hits}
    for rank, hit in enumerate(hits):
        yield _Part(hit, rank, hit.row, hit.passage)
        for row, neighbour in ((hit.row + 1, hit.after), (hit.row - 1, hit.before)):
            if neighbour is None or (_file(hit), row) in taken:
                continue
            if budget.takes(neighbour.text):
                taken.add((_file(hit), row))
                yield _Part(hit, rank, row, neighbour)


def _joined(parts: Iterable[_Part]) -> tuple[Passage, ...]:
    """Return a passage for each run of *parts*; the run with the best hit is first."""
    runs: list[list[_Part]] = []
    for part in sorted(parts, key=lambda part: (_file(part.hit), part.row)):
        if runs and part.goes_on_from(runs[-1][-1]):
            runs[-1].append(part)
        else:
            runs.append([part])
    runs.sort(key=lambda run: min(part.rank for part in run))
    return tuple(map(_as_one, runs))


def _as_one(run: Sequence[_Part]) -> Passage:
    """Return *run* as one passage, called by its best hit."""
    best = min(run, key=lambda part: part.rank).hit.passage
    texts = [run[0].passage.text]
    for before, part in pairwise(run):
        texts.append(_headed(part.passage, before.passage.section))
    return replace(best, text="\n\n".join(texts))


def _headed(passage: Passage, section: str) -> str:
    """Return a passage's text, under its heading if that differs and isn't in it."""
    if passage.section in ("", section):
        return passage.text
    heading = passage.section.rpartition(" > ")[2]
    first = passage.text.lstrip().partition("\n")[0]
    return passage.text if heading in first else f"[{heading}]\n{passage.text}"


def _file(hit: Hit) -> tuple[str, str]:
    return hit.passage.collection, hit.passage.path
