"""
How well retrieval answers a benchmark: which files, which passages, and when none.

Knows questions, relevant files and what was found for them; nothing of how. The metrics
are the usual ones of the field over files, each file at its best passage's rank: recall
at 5, the mean reciprocal rank and nDCG (binary gains) at 10. "Evidence" asks more: the
words that answer stand in one of the passages that the model would be shown.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..chat import Chat, Message
from ..errors import ConfigError

OFF_TOPIC = "offtopic"  # the kind of questions that have no answer in any document
TOP = 5  # files of recall, passages of evidence
DEEP = 10  # files of MRR and nDCG


@dataclass(frozen=True)
class Asked:
    """A question of a benchmark, and what answers it; no file for an off-topic one."""

    id: str
    mode: str
    question: str
    history: tuple[Message, ...] = ()
    relevant: frozenset[str] = frozenset()  # collection/path
    evidence: Mapping[str, re.Pattern[str]] = field(default_factory=dict)  # by file
    kind: str = ""
    split: str = ""

    @property
    def chat(self) -> Chat:
        """The chat that a client would send."""
        return Chat(self.mode, (*self.history, Message("user", self.question)))


@dataclass(frozen=True)
class Result:
    """A passage that was found: its file (collection/path), rank score and text."""

    file: str
    score: float
    text: str


@dataclass(frozen=True)
class Outcome:
    """What came of a question: all that was found, and what the model would see."""

    asked: Asked
    found: tuple[Result, ...] = ()  # best first
    shown: tuple[Result, ...] = ()
    tokens: int = 0  # of what is shown
    seconds: float = 0.0
    reason: str = ""

    @property
    def files(self) -> list[str]:
        """Return the files found, each once, by their best passage."""
        return list(dict.fromkeys(result.file for result in self.found))


@dataclass(frozen=True)
class Scores:
    """Means over the questions of one group; NaN where there are none of a sort."""

    answerable: int
    off_topic: int
    recall: float
    mrr: float
    ndcg: float
    evidence: float  # of the answerable: the answering words are shown
    missed: float  # of the answerable: nothing is shown
    false: float  # of the off-topic: something is
    tokens: float  # shown a question, where something is
    p50_s: float
    p95_s: float


def load_bench(path: Path, split: str = "") -> list[Asked]:
    """
    Return the questions of *path*, JSON lines, or those of one *split*.

    Raises `ConfigError` naming the line and the field that is wrong.
    """
    asked = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = _asked(json.loads(line))
        except (re.error, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(f"{path}:{number}: {_said(error)}") from None
        if split in ("", one.split):
            asked.append(one)
    if not asked:
        what = f"no question of the split {split!r}" if split else "no question"
        raise ConfigError(f"{path}: {what} in it")
    return asked


def _asked(line: Mapping[str, Any]) -> Asked:
    history = tuple(
        Message(turn["role"], str(turn["content"])) for turn in line.get("history", ())
    )
    patterns = line.get("evidence", {}).items()
    return Asked(
        id=str(line["id"]),
        mode=str(line["mode"]),
        question=str(line["question"]),
        history=history,
        relevant=frozenset(line.get("relevant", ())),
        evidence={file: re.compile(pattern) for file, pattern in patterns},
        kind=str(line.get("kind", "")),
        split=str(line.get("split", "")),
    )


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]}: is missing"
    if isinstance(error, re.error):
        return f"evidence: {error}"
    return f"no question: {error}"


def grouped(
    outcomes: Sequence[Outcome], by: Callable[[Asked], str]
) -> dict[str, Scores]:
    """Return the scores of each group of *outcomes*, by its name."""
    names = sorted({by(outcome.asked) for outcome in outcomes})
    return {
        name: scores(one for one in outcomes if by(one.asked) == name) for name in names
    }


def scores(outcomes: Iterable[Outcome]) -> Scores:
    """Return the scores of *outcomes* together."""
    outcomes = list(outcomes)
    able = [one for one in outcomes if one.asked.kind != OFF_TOPIC]
    off = [one for one in outcomes if one.asked.kind == OFF_TOPIC]
    times = sorted(one.seconds for one in outcomes)
    return Scores(
        answerable=len(able),
        off_topic=len(off),
        recall=_mean(map(_recall, able)),
        mrr=_mean(map(_reciprocal_rank, able)),
        ndcg=_mean(map(_ndcg, able)),
        evidence=_mean(float(_has_evidence(one)) for one in able),
        missed=_mean(float(not one.shown) for one in able),
        false=_mean(float(bool(one.shown)) for one in off),
        tokens=_mean(float(one.tokens) for one in outcomes if one.shown),
        p50_s=_quantile(times, 0.5),
        p95_s=_quantile(times, 0.95),
    )


def run_line(outcome: Outcome) -> dict[str, Any]:
    """Return *outcome* as a line of a run file: id, results best first, injected."""
    results = [
        {"path": one.file, "score": round(one.score, 6), "text": one.text}
        for one in outcome.found
    ]
    return {
        "id": outcome.asked.id,
        "results": results,
        "inject": bool(outcome.shown),
    }


def _recall(outcome: Outcome) -> float:
    wanted = outcome.asked.relevant
    found = wanted.intersection(outcome.files[:TOP])
    return len(found) / min(TOP, len(wanted)) if wanted else 0.0


def _ranks(outcome: Outcome) -> list[int]:
    """Return the ranks, from 1, at which the first files are relevant."""
    files = enumerate(outcome.files[:DEEP], 1)
    return [rank for rank, file in files if file in outcome.asked.relevant]


def _reciprocal_rank(outcome: Outcome) -> float:
    return next((1 / rank for rank in _ranks(outcome)), 0.0)


def _ndcg(outcome: Outcome) -> float:
    best = range(1, 1 + min(DEEP, len(outcome.asked.relevant)))
    ideal = sum(_gain(rank) for rank in best)
    return sum(_gain(rank) for rank in _ranks(outcome)) / ideal if ideal else 0.0


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def _has_evidence(outcome: Outcome) -> bool:
    patterns = outcome.asked.evidence
    return any(
        one.file in patterns and patterns[one.file].search(one.text)
        for one in outcome.shown[:TOP]
    )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return statistics.fmean(values) if values else math.nan


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the *ordered* ones lie (nearest rank)."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
