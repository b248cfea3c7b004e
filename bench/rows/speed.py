"""Tokens a second over HTTP against mlx-lm's own loops, same BLAS, weights, prompts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .. import servers, wire
from ..children.lines import Child, child
from ..context import Run, alternating, question
from ..figures import Bound, Figure, Pair, at_least
from ..servers import CannotMeasure, Ofa, user


def single(run: Run) -> list[Figure]:
    """
    Measure one stream: decode rate from the first piece to the last.

    Short rounds and many: what else the machine does lasts for seconds, and falls on
    both sides of a round that is shorter.
    """
    tokens = run.pick(24, 16)
    flags = ["--model", str(run.model.folder), "--quiet"]
    raw_values = {"model": str(run.model.folder), "blas": True}
    place, same = run.place("single"), run.place("single-pages")
    with (
        servers.ofa(place, flags=flags) as server,
        child(place, "raw", raw_values) as raw,
        child(same, "raw", raw_values, huge_pages=True) as paged,
    ):
        rates: dict[str, list[float]] = {"ofa": [], "loop": [], "paged": []}
        prompts: set[tuple[str, int]] = set()
        for number, side in alternating([0, *run.rounds(20, 2)], *rates):
            run.say(f"single: round {number}, {side}")
            text = question(number)
            if side == "ofa":
                rate, prompt, wrote = _one(server, text, tokens)
            else:
                loop = raw if side == "loop" else paged
                asked = loop.ask("single", messages=run.messages(text), tokens=tokens)
                rate, prompt = asked["decode_per_s"], asked["prompt_tokens"]
                wrote = asked["tokens"]
            prompts.add((side, prompt))
            if number:
                rates[side].append(rate)
        how = f"{wrote} tokens, greedy, {raw.told['blas']}; {_same_prompts(prompts)}"
    return [
        _single("", Pair(rates["ofa"], rates["loop"]), how, at_least(0.97)),
        _single(", which has huge pages too", Pair(rates["ofa"], rates["paged"]), how),
    ]


def _single(which: str, pair: Pair, how: str, must: Bound | None = None) -> Figure:
    return Figure(
        f"single stream, ofa over HTTP ÷ stream_generate{which}",
        pair.ratio,
        must,
        note=f"decode tokens/s {pair.told()}, {how}; ratio {pair.spread}",
        details=pair.kept("decode_per_s"),
    )


def _one(server: Ofa, text: str, tokens: int) -> tuple[float, int, int]:
    heard = wire.ask(server.port, server.request([user(text)], tokens))
    if not heard.is_whole:
        raise CannotMeasure(f"no whole answer: status {heard.status} {heard.broken}")
    return heard.decode_per_s, int(heard.usage.get("prompt_tokens", 0)), heard.tokens


def _same_prompts(seen: set[tuple[str, int]]) -> str:
    lengths = {side: {n for who, n in seen if who == side} for side, _ in seen}
    first, *others = lengths.values()
    if all(other == first for other in others):
        return f"same prompts ({max(first)} tokens)"
    return f"PROMPTS DIFFER: {lengths}"


def batch8(run: Run) -> list[Figure]:
    """Measure eight streams at once: all rows writing, and from start to end."""
    tokens, streams = run.pick(64, 24), 8
    keys = {"engine.rows": streams, "server.running": streams}
    flags = ["--model", str(run.model.folder), "--quiet"]
    raw_values = {"model": str(run.model.folder), "blas": True}
    with (
        servers.ofa(run.place("batch8"), flags=flags, keys=keys) as server,
        child(run.place("batch8"), "raw", raw_values) as raw,
    ):
        together: dict[str, list[float]] = {"ours": [], "theirs": []}
        whole: dict[str, list[float]] = {"ours": [], "theirs": []}
        for number, side in alternating([0, *run.rounds(5, 1)], "ours", "theirs"):
            run.say(f"batch8: round {number}, {side}")
            texts = [question(number, stream) for stream in range(streams)]
            rates = (
                eight_over_http(server, texts, tokens)
                if side == "ours"
                else _eight_raw(raw, [run.messages(text) for text in texts], tokens)
            )
            if number:
                together[side].append(rates[0])
                whole[side].append(rates[1])
    pair = Pair(together["ours"], together["theirs"])
    ends = Pair(whole["ours"], whole["theirs"])
    return [
        Figure(
            "8 streams aggregate ÷ raw BatchGenerator",
            pair.ratio,
            at_least(0.95),
            note=f"tokens/s while all 8 write {pair.told()}, {tokens} tokens each, "
            f"same prompts, same BLAS; ratio {pair.spread}; prompts included, from the "
            f"first request to the last token, the ratio is {ends.ratio:.2f}",
            details={**pair.kept("together_per_s"), **ends.kept("whole_per_s")},
        )
    ]


def eight_over_http(
    server: Ofa, texts: Sequence[str], tokens: int
) -> tuple[float, float]:
    """Return tokens a second while all streams write, and over all of the time."""
    asked = [server.request([user(text)], tokens) for text in texts]
    heard = wire.ask_all(server.port, asked)
    for one in heard:
        if not one.is_whole:
            raise CannotMeasure(f"no whole answer: status {one.status} {one.broken}")
    return together_per_s(heard), whole_per_s(heard)


def together_per_s(heard: Sequence[wire.Heard]) -> float:
    """
    Return tokens a second of all streams from when the last of them began to write
    until the first of them ended.
    """
    start = max(one.pieces[0][0] for one in heard)
    end = min(one.pieces[-1][0] for one in heard)
    if end <= start:
        raise CannotMeasure("the streams never wrote all at once; ask for more tokens")
    written = 0.0
    for one in heard:
        # A piece may hold more than one token: bytes wait for a whole character.
        each = one.tokens / len(one.pieces)
        written += each * sum(start < at_s <= end for at_s, _ in one.pieces)
    return written / (end - start)


def whole_per_s(heard: Sequence[wire.Heard]) -> float:
    """Return tokens a second from the first request to the last piece."""
    began = min(one.began_s for one in heard)
    ended = max(one.pieces[-1][0] for one in heard)
    return sum(one.tokens for one in heard) / (ended - began)


def median_ttft_s(heard: Sequence[wire.Heard]) -> float:
    """Return the median of the streams' times to the first piece."""
    return statistics.median(one.ttft_s for one in heard)


def _eight_raw(raw: Child, chats: object, tokens: int) -> tuple[float, float]:
    asked = raw.ask("batch", chats=chats, tokens=tokens)
    return asked["together_per_s"], asked["wall_per_s"]
