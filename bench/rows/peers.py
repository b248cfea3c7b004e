"""Against `mlx_lm.server`: tokens a second and time to the first token, over HTTP."""

from __future__ import annotations

from .. import servers, wire
from ..context import Run, alternating, question
from ..figures import Bound, Figure, Pair, at_least, at_most, number
from ..servers import CannotMeasure, Ofa, Peer, user
from .speed import median_ttft_s, whole_per_s

STREAMS = (1, 4, 8)


def same_blas(run: Run) -> list[Figure]:
    """Measure beside a `mlx_lm.server` that has the same BLAS loaded."""
    return _measure(run, blas=True, must=at_least(1.0), rounds=5)


def as_installed(run: Run) -> list[Figure]:
    """Measure beside a `mlx_lm.server` as pip leaves it."""
    return _measure(run, blas=False, must=at_least(4.0), rounds=2)


def _measure(run: Run, *, blas: bool, must: Bound, rounds: int) -> list[Figure]:
    name = "server" if blas else "installed"
    keys = {"engine.rows": max(STREAMS), "server.running": max(STREAMS)}
    flags = ["--model", str(run.model.folder), "--quiet"]
    with (
        servers.ofa(run.place(name), flags=flags, keys=keys) as ofa,
        servers.mlx_lm_server(
            run.place(name), run.model.folder, template=run.model.template, blas=blas
        ) as peer,
    ):
        figures = []
        for streams in STREAMS:
            rates, firsts, prompts = _rounds(run, name, ofa, peer, streams, rounds)
            figures += _figures(streams, rates, firsts, must, blas=blas)
            if len(prompts) > 1:
                raise CannotMeasure(f"prompts differ, in tokens: {sorted(prompts)}")
    return figures


def _rounds(
    run: Run, name: str, ofa: Ofa, peer: Peer, streams: int, rounds: int
) -> tuple[Pair, Pair, set[int]]:
    """Return both sides' tokens a second and TTFT, and the prompts' lengths."""
    tokens = run.pick(48, 16) if name == "server" else run.pick(24, 8)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    firsts: dict[str, list[float]] = {"ours": [], "theirs": []}
    prompts: dict[tuple[int, int], set[int]] = {}
    for count, side in alternating([0, *run.rounds(rounds, 1)], "ours", "theirs"):
        run.say(f"{name}: {streams} streams, round {count}, {side}")
        texts = [question(count + 10 * streams, n) for n in range(streams)]
        if side == "ours":
            asked = [ofa.request([user(text)], tokens) for text in texts]
        else:
            asked = [peer.request(run.messages(text), tokens) for text in texts]
        heard = wire.ask_all((ofa if side == "ours" else peer).port, asked)
        for n, one in enumerate(heard):
            if not one.pieces:
                raise CannotMeasure(f"{side}: no answer, status {one.status}")
            told = int(one.usage.get("prompt_tokens", 0))
            prompts.setdefault((count, n), set()).add(told)
        if count:
            rates[side].append(whole_per_s(heard))
            firsts[side].append(median_ttft_s(heard))
    differing = next((s for s in prompts.values() if len(s) > 1), set())
    return (
        Pair(rates["ours"], rates["theirs"]),
        Pair(firsts["ours"], firsts["theirs"]),
        differing,
    )


def _figures(
    streams: int, rates: Pair, firsts: Pair, must: Bound, *, blas: bool
) -> list[Figure]:
    how = "same BLAS" if blas else "as installed"
    who = f"{streams} stream{'s' * (streams > 1)}"
    details = {**rates.kept("tokens_per_s"), **firsts.kept("ttft_s")}
    rate = Figure(
        f"{who} ÷ mlx_lm.server, {how}",
        rates.ratio,
        must,
        note=f"tokens/s from the first request to the last token {rates.told()}, "
        f"greedy, same prompts; ratio {rates.spread}",
        details=details,
    )
    first = Figure(
        f"{who}: TTFT ÷ mlx_lm.server's, {how}",
        firsts.ratio,
        at_most(1.0),
        note=f"median TTFT {firsts.told('s')}; both keep the system text's prefix, "
        f"questions are new; ratio {number(firsts.ratio)}, {firsts.spread}",
    )
    return [rate, first]
