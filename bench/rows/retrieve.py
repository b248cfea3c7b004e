"""One look-up among 30,000 passages, and what they take in memory."""

from __future__ import annotations

import statistics

from .. import passages
from ..children.lines import Child, child
from ..context import Run, alternating
from ..figures import Figure, Pair, at_most, number, share

COUNT = 30_000
_WARM_UP = 5
_MIB = 1 << 20


def retrieve(run: Run) -> list[Figure]:
    """Ask ofa's serving path and the usual stack the same new questions, by turns."""
    count, asked = run.pick(COUNT, 2000), run.pick(120, 10)
    folder = run.place("retrieve")
    values = {"folder": str(folder), "count": count}
    with child(folder, "retrieval", values) as builder:
        run.say(f"retrieve: {count} passages")
        builder.ask("build")
    # Another process: what building took is not what serving takes.
    with (
        child(folder, "retrieval", values, huge_pages=True) as ours,
        child(folder, "chroma", values) as naive,
    ):
        naive.ask("build")
        opened = ours.ask("open")
        pair, embedding = _times(run, ours, naive, asked, count)
        grown = ours.ask("memory")["bytes"] - opened["before_bytes"]
    return _figures(pair, embedding, grown / _MIB, opened["opened_s"], count)


def _times(
    run: Run, ours: Child, naive: Child, asked: int, count: int
) -> tuple[Pair, Pair]:
    took: dict[int, list[float]] = {id(ours): [], id(naive): []}
    alone: dict[int, list[float]] = {id(ours): [], id(naive): []}
    texts = passages.questions(asked + _WARM_UP, count)
    for n, side in alternating(range(len(texts)), ours, naive):
        told = side.ask("search", question=texts[n])
        if n >= _WARM_UP:
            took[id(side)].append(1000 * told["took_s"])
            alone[id(side)].append(1000 * told["embedding_s"])
        if side is ours and n % 40 == 0:
            run.say(f"retrieve: question {n}")
    sides = id(ours), id(naive)
    return Pair(*(took[side] for side in sides)), Pair(*(alone[side] for side in sides))


def _figures(
    pair: Pair, embedding: Pair, grown_mib: float, opened_s: float, count: int
) -> list[Figure]:
    rest = [a - b for a, b in zip(pair.ours, embedding.ours, strict=True)]
    embedded = statistics.median(embedding.ours)
    of = f"{count:,} passages"
    return [
        Figure(
            f"a look-up among {of}, median",
            statistics.median(pair.ours),
            at_most(40),
            "ms",
            f"chat to fenced chat, {len(pair.ours)} new questions; the question's "
            f"vector takes {number(embedded, 'ms')} of it, all else "
            f"{number(statistics.median(rest), 'ms')}",
            {**pair.kept("ms"), **embedding.kept("embedding_ms")},
        ),
        Figure(
            f"a look-up among {of}, 95 of 100",
            share(pair.ours, 0.95),
            at_most(150),
            "ms",
            f"the slowest took {number(max(pair.ours), 'ms')}",
        ),
        Figure(
            f"memory of {of}, over the embedder's",
            grown_mib,
            at_most(600),
            "MiB",
            f"resident after the questions, less before it was opened; opening took "
            f"{number(opened_s, 's')}",
        ),
        Figure(
            "the same look-up ÷ sentence-transformers and a chromadb query",
            pair.ratio,
            note=f"{pair.told('ms')}, medians, by turns; {pair.spread}; the peer's "
            f"vector takes {number(statistics.median(embedding.peers), 'ms')}",
        ),
    ]
