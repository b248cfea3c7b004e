"""
Search by words: BM25 over identifier-aware tokens, and the repair of mistyped ones.

Knows words and ranks; nothing of passages or files beyond its own folder. The only
module that names bm25s and Stemmer. Scores are BM25's own, 0 where no word matches.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import typos, words
from .arrays import pack, unpack

# Occurrences of one text that are counted: a table of a million numbers must not
# decide how much memory a build takes.
MAX_WORDS_OF_TEXT = 4_000

_K1, _B = 1.2, 0.75  # the usual ones

# Spellings kept for the repair of typos, the most frequent first (about 20 MB).
MAX_VOCABULARY = 200_000

# Names that are known by their parts, the most frequent first (about 10 MB).
MAX_COMPOUNDS = 50_000

WORDS = "words.json"
# The parts of `Columns` that are files, and what their numbers are.
_KINDS = {"weights": "float32", "rows": "int32", "starts": "int64"}

# Plurals that the stemmer takes for Latin.
_PLURALS = {"cpus": "cpu", "gpus": "gpu", "tpus": "tpu", "menus": "menu"}

Asked = str | Mapping[str, float]  # a question, or its words as `weighed` has them

_local = threading.local()  # a Snowball stemmer is not to be shared between threads


def tokens(text: str) -> list[str]:
    """Return the search words of *text*: identifiers whole and split, prose stemmed."""
    return list(words.split(words.shapes(text), stem))


def weighed(texts: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return the search words of *texts*, each with what its texts' weights come to."""
    found: dict[str, float] = {}
    for weight, text in texts:
        for word in tokens(text):
            found[word] = found.get(word, 0.0) + weight
    return found


@dataclass(frozen=True)
class Columns:
    """The scores of all words in all texts, a sparse matrix by columns."""

    weights: NDArray[np.float32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int64]
    texts: int


class Groups:
    """Texts that belong together, pieces of a file or files of a folder: *of* says of
    each text which group it is in, from 0 without a gap."""

    def __init__(self, of: Sequence[int]) -> None:
        self.of = np.asarray(of, dtype=np.int64)
        sizes = np.bincount(self.of).astype(np.float32)
        # As BM25 does for a text's length, in texts: a word says less of a large group.
        self.damping = 1 - _B + _B * sizes / sizes.mean() if len(sizes) else sizes

    def __len__(self) -> int:
        return len(self.damping)


class Lexical:
    """
    An index over texts, answering how well each matches a question's words.

    A column a word: *starts* says where a word's entries begin, *rows* which texts
    hold it, *weights* what it adds to their scores (BM25, worked out beforehand).
    """

    def __init__(
        self,
        columns: Columns,
        ids: Mapping[str, int],
        spellings: list[str],
        compounds: Mapping[str, Sequence[str]],
    ) -> None:
        self._columns = columns
        self._ids = ids
        self._compounds = compounds
        self.vocabulary = tuple(spellings)  # most frequent first
        self._spellings = frozenset(spellings)

    def __len__(self) -> int:
        return self._columns.texts

    @classmethod
    def build(cls, texts: Iterable[str]) -> Lexical:
        """Index *texts*, numbered as they come."""
        ids: dict[str, int] = {}
        rows: list[list[int]] = []
        seen: Counter[str] = Counter()
        divided: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for text in texts:
            written = words.shapes(text)
            found = islice(words.split(written, stem), MAX_WORDS_OF_TEXT)
            rows.append([ids.setdefault(word, len(ids)) for word in found])
            seen.update(set(words.surface(written)))
            divided.update(set(words.compounds(written)))
        # The rarest first: of two ways to divide a name the commoner one stays.
        names = sorted(divided, key=lambda one: (divided[one], one))[-MAX_COMPOUNDS:]
        common = sorted(seen, key=lambda word: (-seen[word], word))
        return cls(_columns(rows, ids), ids, common[:MAX_VOCABULARY], dict(names))

    def dump(self) -> dict[str, bytes]:
        """Return the index as the contents of files, by name."""
        known = {
            "texts": len(self),
            "ids": list(self._ids),  # in the order of their columns
            "spellings": self.vocabulary,
            "compounds": self._compounds,
        }
        files = {WORDS: json.dumps(known, ensure_ascii=False).encode()}
        for name in _KINDS:
            files[f"{name}.npy"] = pack(getattr(self._columns, name))
        return files

    def save(self, folder: Path) -> None:
        """Write the index into *folder*, which is made if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.dump().items():
            (folder / name).write_bytes(content)

    @classmethod
    def load(cls, folder: Path) -> Lexical:
        """Read an index that `save` wrote; nothing is written."""
        return cls.parse({path.name: path.read_bytes() for path in folder.iterdir()})

    @classmethod
    def parse(cls, files: Mapping[str, bytes]) -> Lexical:
        """
        Make an index of what `dump` returned.

        From memory, not mapped: a mapped file that another node removes under NFS ends
        the process with SIGBUS, and what was checksummed is what is used. Raises
        `ValueError` for parts that do not go together: found at a question, they would
        cost the answers from other collections, too.
        """
        known = json.loads(files[WORDS])
        weights, rows, starts = (
            unpack(files[f"{name}.npy"], kind, 1) for name, kind in _KINDS.items()
        )
        columns = Columns(weights, rows, starts, known["texts"])
        lists = known["ids"], known["spellings"], *known["compounds"].values()
        if not (_are_words(*lists) and _is_sound(columns, known["ids"])):
            raise ValueError("the parts of the lexical index do not go together")
        ids = {word: number for number, word in enumerate(known["ids"])}
        return cls(columns, ids, known["spellings"], known["compounds"])

    def scores(self, asked: Asked) -> NDArray[np.float32]:
        """Return each text's score, to be compared within one question only."""
        total = np.zeros(len(self), dtype=np.float32)
        for weight, rows, weights in self._matches(asked):
            total[rows] += weight * weights
        return total

    def group_scores(self, asked: Asked, groups: Groups) -> NDArray[np.float32]:
        """
        Return for each text how well its group matches, whichever texts say what.

        BM25 once more, over groups: a word's occurrences are what its texts' scores
        come to, so that nothing is indexed twice.
        """
        total = np.zeros(len(groups), dtype=np.float32)
        for weight, rows, weights in self._matches(asked):
            held = weights / _rarity(len(rows), len(self))
            inside = np.bincount(groups.of[rows], held, minlength=len(groups))
            rarity = weight * _rarity(int(np.count_nonzero(inside)), len(groups))
            total += (rarity * inside / (inside + groups.damping)).astype(np.float32)
        found: NDArray[np.float32] = total[groups.of]
        return found

    def _matches(
        self, asked: Asked
    ) -> Iterator[tuple[float, NDArray[np.int32], NDArray[np.float32]]]:
        """Yield for each word its weight, which texts hold it, and their scores."""
        columns = self._columns
        words_of = weighed([(1.0, asked)]) if isinstance(asked, str) else asked
        for word, weight in words_of.items():
            if (number := self._ids.get(word)) is not None:
                part = slice(columns.starts[number], columns.starts[number + 1])
                yield weight, columns.rows[part], columns.weights[part]

    def has_word(self, word: str) -> bool:
        """Tell whether some text holds *word*, in this or another ending."""
        low = word.lower()
        if low in self._spellings or low in self._ids:
            return True
        return low.isalpha() and stem(low) in self._ids  # an identifier has no endings

    def parts(self, text: str) -> list[str]:
        """Return what the names are made of that *text* has in small letters only."""
        names = words.undivided(words.shapes(text))
        found = (self._compounds.get(word, ()) for word in names)
        return list(chain.from_iterable(found))

    def nearest(self, word: str) -> list[str]:
        """
        Return the spellings that *word*, which no text has, may be a typo of.

        None where it is too short to tell, or a new name: those cost nothing unmatched.
        """
        return self._nearest.to(word)

    @cached_property
    def _nearest(self) -> typos.Nearest:
        return typos.Nearest(self.vocabulary)


def _is_sound(columns: Columns, ids: Sequence[str]) -> bool:
    """Return whether each word of *ids* has a column, all inside of the matrix."""
    if not isinstance(columns.texts, int):
        return False
    starts, rows = columns.starts, columns.rows
    return bool(
        len(starts) > len(ids)
        and starts[0] == 0
        and starts[-1] == len(rows) == len(columns.weights)
        and (np.diff(starts) >= 0).all()
        and (not len(rows) or 0 <= rows.min() <= rows.max() < columns.texts)
        and np.isfinite(columns.weights).all()
    )


def _are_words(*lists: object) -> bool:
    return all(
        isinstance(found, list) and all(isinstance(word, str) for word in found)
        for found in lists
    )


def _rarity(having: int, of: int) -> float:
    """Return a word's inverse document frequency as bm25s' "lucene" method has it."""
    return math.log(1 + (of - having + 0.5) / (having + 0.5))


def _columns(rows: list[list[int]], ids: Mapping[str, int]) -> Columns:
    if not ids:
        empty = np.zeros(0, dtype=np.int32)
        return Columns(
            empty.astype(np.float32), empty, np.zeros(1, np.int64), len(rows)
        )
    import bm25s

    # A text without a word still counts as one; bm25s wants an id there, so it gets
    # one that no question has.
    nothing = len(ids)
    index = bm25s.BM25(k1=_K1, b=_B, method="lucene", backend="numpy")
    index.index(
        ([row or [nothing] for row in rows], {**ids, "": nothing}), show_progress=False
    )
    made = index.scores
    return Columns(made["data"], made["indices"], made["indptr"], len(rows))


def stem(word: str) -> str:
    """Return the stem of a lower-case English word, as `tokens` has it."""
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        import Stemmer

        stemmer = _local.stemmer = Stemmer.Stemmer("english")
    stemmed: str = stemmer.stemWord(_PLURALS.get(word, word))
    return stemmed
