"""A warm prefix against a cold one: how much sooner the first token comes."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import proc, servers, wire
from ..context import Run
from ..figures import Figure, Pair, at_most
from ..servers import CannotMeasure, Ofa
from ..texts import words

PREFIX_TOKENS = 1500  # of the history that is warm or cold; system text comes on top
_WORDS = 1330  # as many tokens, with what is said around them
_DISK_KEYS = {"engine.prefix_disk": True, "engine.prefix_disk_gib": 4}
_TOKENS = 4
_WRITE_S = 60.0  # for what is written behind an answer

Messages = list[dict[str, str]]


@dataclass
class _Readings:
    """TTFT warm and cold, and what the server said it took from its store."""

    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    cached: tuple[int, int] = (0, 0)  # of the last cold and warm prompt
    prompt: int = 0

    def add(self, cold: wire.Heard, warm: wire.Heard) -> None:
        """Take one round."""
        self.cold.append(cold.ttft_s)
        self.warm.append(warm.ttft_s)
        self.cached = (_cached(cold), _cached(warm))
        self.prompt = int(warm.usage.get("prompt_tokens", 0))

    def figure(self, where: str, bound: float, how: str) -> Figure:
        """Return the figure of these readings."""
        pair = Pair(self.warm, self.cold)
        return Figure(
            f"warm ÷ cold TTFT, {PREFIX_TOKENS:,}-token prefix, {where}",
            pair.ratio,
            at_most(bound),
            note=f"{how}; TTFT {pair.told('s')} (warm against cold); of {self.prompt} "
            f"tokens {self.cached[1]} were cached warm, {self.cached[0]} cold (the "
            f"mode's system text); ratio {pair.spread}",
            details=pair.kept("ttft_s"),
        )


def memory(run: Run) -> list[Figure]:
    """Measure with one server: chats never seen; one goes on, one is asked anew."""
    following, other = _Readings(), _Readings()
    flags = ["--model", str(run.model.folder), "--quiet"]
    with servers.ofa(run.place("prefix"), flags=flags) as server:
        for number in [0, *run.rounds(5, 2)]:
            run.say(f"prefix: round {number}")
            cold = _ask(server, _history(number))
            proc.wait_idle(server.pid, 10)
            warm = _ask(server, _next_turn(number, cold))
            anew = 500 + number
            first = _ask(server, _history(anew))
            proc.wait_idle(server.pid, 10)
            again = _ask(server, _history(anew, "What was said last of all?"))
            if number:
                following.add(cold, warm)
                other.add(first, again)
    return [
        following.figure("from memory", 0.05, "the chat's next turn"),
        other.figure(
            "from memory, another question", 0.05, "the last question replaced"
        ),
    ]


def disk(run: Run) -> list[Figure]:
    """Measure with a server restarted between the two."""
    readings = _Readings()
    place = run.place("disk")
    flags = ["--model", str(run.model.folder), "--quiet"]
    before: tuple[int, wire.Heard] | None = None
    for number in [1000, *(1000 + n for n in run.rounds(3, 1)), None]:
        with servers.ofa(place, flags=flags, keys=_DISK_KEYS) as server:
            run.say(f"disk: a server is up, for round {number or 'last'}")
            if before is not None:
                warm = _ask(server, _next_turn(*before))
                if before[0] > 1000:
                    readings.add(before[1], warm)
            if number is not None:
                before = (number, _ask(server, _history(number)))
                proc.wait_idle(server.pid, _WRITE_S)
    how = (
        "the chat's next turn, the server restarted before it, files in the page cache"
    )
    return [readings.figure("from disk", 0.10, how + _strange(server))]


def _history(number: int, question: str = "What was said first?") -> Messages:
    return [
        {"role": "user", "content": f"Log {number}. {words(_WORDS, number)}"},
        {"role": "assistant", "content": "That is a log of the machine. " * 4},
        {"role": "user", "content": question},
    ]


def _next_turn(number: int, answer: wire.Heard) -> Messages:
    return [
        *_history(number),
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "And what was said last of all?"},
    ]


def _ask(server: Ofa, messages: Messages) -> wire.Heard:
    heard = wire.ask(server.port, server.request(messages, _TOKENS))
    if not heard.pieces:
        raise CannotMeasure(f"no answer: status {heard.status}")
    return heard


def _cached(heard: wire.Heard) -> int:
    details = heard.usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _strange(server: Ofa) -> str:
    """Return a remark where the server does not know the keys of a disk tier."""
    known = any(line for line in server.log.splitlines() if "PREFIX_DISK" in line)
    return "; THE SERVER KNOWS NO KEY prefix_disk" if known else ""
