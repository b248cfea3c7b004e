"""A warm prefix against a cold one: how much sooner the first token comes."""

from __future__ import annotations

from dataclasses import dataclass

from .. import proc, servers, wire
from ..context import Run
from ..figures import Figure, Pair, at_most
from ..servers import CannotMeasure, Ofa
from ..texts import words

PREFIX_TOKENS = 1500  # of the history that is warm or cold; system text comes on top
_DISK_KEYS = {"engine.prefix_disk": True, "engine.prefix_disk_gib": 4}
_TOKENS = 4


@dataclass
class _Readings:
    """TTFT warm and cold, and what the server said it took from its store."""

    warm: list[float]
    cold: list[float]
    cached: tuple[int, int] = (0, 0)  # of the last cold and warm prompt
    prompt: int = 0

    def figure(self, name: str, bound: float, how: str) -> Figure:
        """Return the figure of these readings."""
        pair = Pair(self.warm, self.cold)
        return Figure(
            name,
            pair.ratio,
            at_most(bound),
            note=f"TTFT {pair.told('s')} (warm against cold), prompt {self.prompt} "
            f"tokens, of them cached warm {self.cached[1]}, cold {self.cached[0]} (the "
            f"mode's system text); {how}; ratio {pair.spread}",
            details={**pair.kept("ttft_s")},
        )


def memory(run: Run) -> list[Figure]:
    """Measure with one server: a history never seen, then it with another question."""
    readings = _Readings([], [])
    flags = ["--model", str(run.model.folder), "--quiet"]
    with servers.ofa(run.place("prefix"), flags=flags) as server:
        for number in [0, *run.rounds(5, 2)]:
            run.say(f"prefix: round {number}")
            cold = _ask(server, number, "What was said first?")
            proc.wait_idle(server.pid, 10)  # a store may still be at work
            warm = _ask(server, number, "And what was said last of all?")
            if number:
                _note(readings, cold, warm)
    return [
        readings.figure(
            f"warm ÷ cold TTFT, {PREFIX_TOKENS:,}-token prefix, from memory",
            0.05,
            "the same history with another last question",
        )
    ]


def disk(run: Run) -> list[Figure]:
    """Measure with a server restarted between the two."""
    readings = _Readings([], [])
    place = run.place("disk")
    flags = ["--model", str(run.model.folder), "--quiet"]
    before: tuple[int, wire.Heard] | None = None
    for number in [1000, *(1000 + n for n in run.rounds(3, 1)), None]:
        with servers.ofa(place, flags=flags, keys=_DISK_KEYS) as server:
            run.say(f"disk: a server is up, for round {number or 'last'}")
            if before is not None:
                warm = _ask(server, before[0], "And what was said last of all?")
                if before[0] > 1000:
                    _note(readings, before[1], warm)
            if number is not None:
                before = (number, _ask(server, number, "What was said first?"))
                proc.wait_idle(server.pid, 10)  # what is written is written behind
    strange = _strange(server)
    return [
        readings.figure(
            f"warm ÷ cold TTFT, {PREFIX_TOKENS:,}-token prefix, from disk",
            0.10,
            f"the server restarted in between, files in the page cache{strange}",
        )
    ]


def _ask(server: Ofa, number: int, question: str) -> wire.Heard:
    messages = [
        {"role": "user", "content": f"Log {number}. {words(1440, number)}"},
        {"role": "assistant", "content": "That is a log of the machine. " * 4},
        {"role": "user", "content": question},
    ]
    heard = wire.ask(server.port, server.request(messages, _TOKENS))
    if not heard.pieces:
        raise CannotMeasure(f"no answer: status {heard.status}")
    return heard


def _note(readings: _Readings, cold: wire.Heard, warm: wire.Heard) -> None:
    readings.cold.append(cold.ttft_s)
    readings.warm.append(warm.ttft_s)
    readings.cached = (_cached(cold), _cached(warm))
    readings.prompt = int(warm.usage.get("prompt_tokens", 0))


def _cached(heard: wire.Heard) -> int:
    details = heard.usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _strange(server: Ofa) -> str:
    """Return a remark where the server does not know the keys of a disk tier."""
    known = any(line for line in server.log.splitlines() if "PREFIX_DISK" in line)
    return "; THE SERVER KNOWS NO KEY prefix_disk" if known else ""
