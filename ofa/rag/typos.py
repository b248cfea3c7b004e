"""
The known spelling nearest to a mistyped word.

Knows letters and edits (insert, drop, change, swap); nothing of documents. Compares a
word with thousands of spellings at once, a numpy operation per cell of the edit table.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHORTEST = 5  # letters; in shorter words two edits make any word of any other
LONGEST = 32
TWO_EDITS_FROM = 8
KEPT = 2  # spellings offered for one word


class Nearest:
    """Spellings, most frequent first, ready to be compared with a word."""

    def __init__(self, spellings: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._tables: dict[int, NDArray[np.uint32]] = {}
        self._by_length: dict[int, list[str]] = {}
        self._rank: dict[str, int] = {}
        for rank, word in enumerate(spellings):
            if SHORTEST - 1 <= len(word) <= LONGEST and _is_word(word):
                self._by_length.setdefault(len(word), []).append(word)
                self._rank[word] = rank

    def to(self, word: str) -> list[str]:
        """Return the nearest spellings, at most `KEPT`, nearest and commonest first."""
        if not SHORTEST <= len(word) <= LONGEST or not _is_word(word):
            return []
        # One edit in a short word, two in a longer one: "slurm" is not "swarm", and
        # every word of seven letters has strangers two edits away.
        allowed = 1 if len(word) < TWO_EDITS_FROM else 2
        ranked: list[tuple[int, int, str]] = []
        for length in range(len(word) - allowed, len(word) + allowed + 1):
            table = self._table(length)
            if table is None:
                continue
            distance = edits(word, table)
            for row in np.flatnonzero(distance <= allowed):
                found = self._by_length[length][row]
                if distance[row] == 1 or found[0] == word[0]:  # typos spare it
                    rank = self._rank[found]
                    ranked.append((int(distance[row]), rank, found))
        ranked.sort()
        return [found for edit, _, found in ranked[:KEPT] if edit == ranked[0][0]]

    def _table(self, length: int) -> NDArray[np.uint32] | None:
        found = self._by_length.get(length)
        if not found:
            return None
        with self._lock:
            if length not in self._tables:
                flat = np.frombuffer("".join(found).encode("utf-32-le"), dtype="<u4")
                self._tables[length] = flat.reshape(len(found), length)
            return self._tables[length]


def edits(word: str, table: NDArray[np.uint32]) -> NDArray[np.int16]:
    """
    Return the number of edits from *word* to each row of *table* (code points).

    Damerau and Levenshtein's distance in its common form: no letter is edited twice.
    """
    count, length = table.shape
    before = np.zeros((length + 1, count), dtype=np.int16)
    above = np.repeat(np.arange(length + 1, dtype=np.int16)[:, None], count, axis=1)
    letters = [ord(letter) for letter in word]
    columns = table.T
    for i, letter in enumerate(letters, 1):
        row = np.empty_like(above)
        row[0] = i
        for j in range(1, length + 1):
            change = above[j - 1] + (columns[j - 1] != letter)
            best = np.minimum(np.minimum(above[j], row[j - 1]) + 1, change)
            if i > 1 and j > 1:
                swapped = (columns[j - 1] == letters[i - 2]) & (
                    columns[j - 2] == letter
                )
                best = np.where(swapped, np.minimum(best, before[j - 2] + 1), best)
            row[j] = best
        before, above = above, row
    return above[length]


def _is_word(word: str) -> bool:
    return word.replace("_", "").replace("-", "").isalpha()
