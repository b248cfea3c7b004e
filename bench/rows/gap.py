"""The gap in a running answer while a long prompt joins, against one prefill chunk."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..children.lines import child
from ..context import Run
from ..figures import Figure, at_most, number
from ..servers import CannotMeasure, user
from ..texts import words

JOINER_WORDS = 1360  # with punctuation about 1,500 tokens
_RUNNING = "Write down everything you know about the weather, at great length."
_RUNNING_TOKENS = 600

Step = Sequence[float]  # seconds, tokens prefilled, tokens written


@dataclass(frozen=True)
class _Joined:
    """One round: the worst gap, and the chunk that the engine chose."""

    worst_s: float
    chunk_s: float
    chunk_tokens: int
    ttft_s: float
    prefilled: int


def gap(run: Run) -> list[Figure]:
    """Let a prompt never seen before join a running answer, round after round."""
    values = {"model": str(run.model.folder)}
    seen = []
    with child(run.place("gap"), "inproc", values, huge_pages=True) as engine:
        for count in [0, *run.rounds(5, 2)]:
            run.say(f"gap: round {count}")
            told = engine.ask(
                "join",
                running=[user(f"Note {count}. {_RUNNING}")],
                tokens=_RUNNING_TOKENS,
                joiner=[user(f"Log {count}. {words(JOINER_WORDS, count)}")],
            )
            if not told["outlasted"]:
                raise CannotMeasure("the running answer ended before the other began")
            if count:
                seen.append(_joined(told))
    return [_figure(seen)]


def _joined(told: Mapping[str, Any]) -> _Joined:
    chunks = [(s, n) for s, n, wrote in told["steps"] if n and wrote]
    if not chunks:
        raise CannotMeasure("no step was seen that read a prompt beside an answer")
    size = Counter(n for _, n in chunks).most_common(1)[0][0]
    plain = [s for s, n, wrote in told["before"] if wrote and not n]
    # A step with a chunk writes a token too: what that takes alone is taken off.
    alone = statistics.median(plain) if plain else 0.0
    took = statistics.median(s for s, n in chunks if n == size) - alone
    return _Joined(
        max(told["gaps"]), took, size, told["joiner_ttft_s"], told["joiner_prefilled"]
    )


def _figure(seen: Sequence[_Joined]) -> Figure:
    worst = statistics.median(one.worst_s for one in seen)
    chunk = statistics.median(one.chunk_s for one in seen)
    ratios = sorted(one.worst_s / one.chunk_s for one in seen)
    sizes = sorted({one.chunk_tokens for one in seen})
    return Figure(
        "worst gap between tokens while a 1,500-token prompt joins ÷ one chunk",
        worst / chunk,
        at_most(1.5),
        note=f"{number(worst, 's')} against {number(chunk, 's')}, medians of "
        f"{len(seen)} rounds; ratio {number(ratios[0])} to {number(ratios[-1])}; "
        f"chunks of {sizes} tokens as the engine chose them, a chunk's time "
        f"without the token written beside it; {seen[-1].prefilled} tokens joined, "
        f"their first token after {number(seen[-1].ttft_s, 's')}",
        details={"worst_s": [one.worst_s for one in seen]},
    )
