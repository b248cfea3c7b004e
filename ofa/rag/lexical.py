"""
Search by words: BM25 over identifier-aware tokens, and the repair of mistyped ones.

Knows words and ranks; nothing of passages or files beyond its own folder. The only
module that names bm25s and Stemmer. Scores are BM25's own, 0 where no word matches.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import typos, words

# Occurrences of one text that are counted: a table of a million numbers must not
# decide how much memory a build takes.
MAX_WORDS_OF_TEXT = 4_000

# Spellings kept for the repair of typos, the most frequent first (about 20 MB).
MAX_VOCABULARY = 200_000

_VOCABULARY = "words.json"

# Plurals that the stemmer takes for Latin.
_PLURALS = {"cpus": "cpu", "gpus": "gpu", "tpus": "tpu", "menus": "menu"}

_local = threading.local()  # a Snowball stemmer is not to be shared between threads


def tokens(text: str) -> list[str]:
    """Return the search words of *text*: identifiers whole and split, prose stemmed."""
    return list(words.split(text, _stem))


class Lexical:
    """An index over texts, answering how well each matches a question's words."""

    def __init__(self, index: Any, vocabulary: Sequence[str]) -> None:  # noqa: ANN401 - a bm25s.BM25, which is untyped
        self._index = index
        self.vocabulary: tuple[str, ...] = tuple(vocabulary)  # most frequent first
        self._spellings = frozenset(self.vocabulary)
        self._ids: dict[str, int] = index.vocab_dict

    def __len__(self) -> int:
        return int(self._index.scores["num_docs"])

    @classmethod
    def build(cls, texts: Iterable[str]) -> Lexical:
        """Index *texts*, numbered as they come."""
        import bm25s

        ids: dict[str, int] = {}
        rows: list[list[int]] = []
        seen: Counter[str] = Counter()
        for text in texts:
            found = tokens(text)[:MAX_WORDS_OF_TEXT]
            rows.append([ids.setdefault(word, len(ids)) for word in found])
            seen.update(set(words.surface(text)))
        ids.setdefault("", len(ids))  # of texts without a word, and of none at all
        index = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend="numpy")
        index.index((rows or [[ids[""]]], ids), show_progress=False)
        index.scores["num_docs"] = len(rows)
        common = sorted(seen, key=lambda word: (-seen[word], word))
        return cls(index, common[:MAX_VOCABULARY])

    def save(self, folder: Path) -> None:
        """Write the index into *folder*, which is made if it is missing."""
        self._index.save(folder, show_progress=False)
        text = json.dumps(self.vocabulary, ensure_ascii=False)
        (folder / _VOCABULARY).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Lexical:
        """
        Read an index that `save` wrote; the folder is not written to.

        Read into memory rather than mapped: a mapped file that another node removes
        under NFS ends the process with SIGBUS, and no exception says so.
        """
        import bm25s

        index = bm25s.BM25.load(folder, show_progress=False, mmap=False)
        return cls(index, json.loads((folder / _VOCABULARY).read_text("utf-8")))

    def scores(self, question: str) -> NDArray[np.float32]:
        """Return each text's score, to be compared within one question only."""
        known = [self._ids[word] for word in tokens(question) if word in self._ids]
        total = np.zeros(len(self), dtype=np.float32)
        data, rows, starts = (
            self._index.scores[key] for key in ("data", "indices", "indptr")
        )
        for word in known:
            # bm25s keeps a column a word; its own summing loops over entries in Python.
            column = slice(starts[word], starts[word + 1])
            total[rows[column]] += data[column]
        return total

    def has_word(self, word: str) -> bool:
        """Tell whether some text holds *word*, in this or another ending."""
        low = word.lower()
        return low in self._spellings or low in self._ids or _stem(low) in self._ids

    def expand(self, question: str) -> str:
        """
        Return *question* with the nearest known spellings of its unknown words added.

        The words typed stay: a new name is not a typo, and costs nothing unmatched.
        """
        added: list[str] = []
        for word in dict.fromkeys(words.surface(question)):
            if len(word) >= typos.SHORTEST and not self.has_word(word):
                added += self._nearest.to(word)
        return " ".join([question, *dict.fromkeys(added)])

    @cached_property
    def _nearest(self) -> typos.Nearest:
        return typos.Nearest(self.vocabulary)


def _stem(word: str) -> str:
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        import Stemmer

        stemmer = _local.stemmer = Stemmer.Stemmer("english")
    stemmed: str = stemmer.stemWord(_PLURALS.get(word, word))
    return stemmed
