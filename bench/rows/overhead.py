"""
What HTTP and our own code add.

`ttft` compares the first piece of an answer over HTTP with the engine's own, in a
process without HTTP. `cost` compares `ofa serve` on the scripted engine with Flask on
waitress that sends the same bytes; what ofa takes beyond it is parsing, checking the
key, the mode and its prompt, queue, engine, events, frames and the log.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .. import proc, servers, wire
from ..children.lines import child
from ..context import Run, alternating
from ..figures import Figure, Pair, at_most, number
from ..servers import CannotMeasure, Ofa, user

_QUESTION = "Which file names the partition?"
_CHUNKS = 2000
_CHUNK = " word"
# After an answer an engine still ends the step it drew ahead and keeps what was read:
# some 15 ms of the tiny model's. An ask that begins meanwhile measures that as well.
_REST_S = 0.1


def ttft(run: Run) -> list[Figure]:
    """Measure with the scripted engine, and with a real one on the tiny model."""
    script = [[{"text": _CHUNK, "times": 3}]]
    flags = servers.scripted(run.place("ttft-scripted"), script)
    model = str(run.tiny.folder)
    return [
        _ttft(run, "the scripted engine", flags, {"script": script}),
        _ttft(run, "a tiny model", ["--model", model, "--quiet"], {"model": model}),
    ]


def _ttft(
    run: Run, what: str, flags: Sequence[str], values: dict[str, object]
) -> Figure:
    place = run.place("ttft-" + what.split()[-1])
    with (
        servers.ofa(place, flags=flags) as server,
        child(place, "inproc", values, huge_pages=True) as engine,
    ):
        asked = server.request([user(_QUESTION)], 3)
        messages = run.messages(_QUESTION)
        # As a server reads its mode's text ahead: the question is read anew by both.
        engine.ask("ask", messages=run.messages("Hello"), tokens=1)
        taken: dict[str, list[float]] = {"ours": [], "theirs": []}
        run.say(f"ttft: {what}")
        rounds = range(run.pick(210, 40))
        for count, side in alternating(rounds, "ours", "theirs"):
            time.sleep(_REST_S)
            if side == "ours":
                first_s = wire.ask(server.port, asked).ttft_s
            else:
                first_s = engine.ask("ask", messages=messages, tokens=3)["ttft_s"]
            if count >= 10:
                taken[side].append(first_s * 1000)
    pair = Pair(taken["ours"], taken["theirs"])
    return Figure(
        f"TTFT over HTTP − in process, {what}",
        pair.difference,
        at_most(5.0),
        unit="ms",
        note=f"medians {pair.told('ms')} of {len(pair.ours)} by turns; over HTTP from "
        "before the connection to the first piece, in process from `Engine.reply` to "
        "the first text, same prompt, the mode's text warm on both sides; "
        f"both engines at rest for {_REST_S} s before each",
        details=pair.kept("ttft_ms"),
    )


@dataclass
class _Case:
    """One kind of request: to ofa and to the bare server, and what each took."""

    name: str
    ours: bytes
    bare: bytes
    repeats: int
    taken: dict[str, list[float]] = field(
        default_factory=lambda: {"ours": [], "theirs": []}
    )
    cpu_s: dict[str, float] = field(
        default_factory=lambda: {"ours": 0.0, "theirs": 0.0}
    )

    @property
    def pair(self) -> Pair:
        """Seconds a request."""
        return Pair(self.taken["ours"], self.taken["theirs"])

    @property
    def cpu_more_s(self) -> float:
        """Processor seconds a request that ofa took beyond the bare server."""
        count = len(self.taken["ours"])
        return (self.cpu_s["ours"] - self.cpu_s["theirs"]) / count


def cost(run: Run) -> list[Figure]:
    """Measure streams of one and of many chunks, and whole answers, by turns."""
    with (
        servers.ofa(
            run.place("cost-long"),
            flags=servers.scripted(
                run.place("cost-long"), [[{"text": _CHUNK, "times": _CHUNKS}]]
            ),
        ) as long,
        servers.ofa(
            run.place("cost-short"),
            flags=servers.scripted(run.place("cost-short"), [[{"text": _CHUNK}]]),
        ) as short,
    ):
        recorded = _record(run, long, short)
        values = {"answers": str(recorded), "threads": 28}
        with child(run.place("cost"), "bare", values) as bare:
            port = int(bare.told["port"])
            cases = _cases(run, long, short)
            for count, case in alternating([0, *run.rounds(10, 2)], *cases):
                run.say(f"cost: round {count}, {case.name}")
                server = long if case.name == "long" else short
                _take(case, server.port, port, server.pid, bare.pid, keep=count > 0)
    return _cost_figures({case.name: case for case in cases})


def _record(run: Run, long: Ofa, short: Ofa) -> str:
    """Write down what ofa answers, for the bare server to send."""
    answers = {}
    for name, server in (("long", long), ("short", short)):
        heard = wire.ask(server.port, server.request([user(_QUESTION)], 4096))
        if not heard.is_whole:
            raise CannotMeasure(f"no whole stream: status {heard.status}")
        answers[name] = [frame.decode() + "\n\n" for _, frame in heard.frames]
    asked = short.request([user(_QUESTION)], 4096, stream=False)
    answers["whole"] = [wire.ask(short.port, asked).body.decode()]
    path = run.place("cost") / "answers.json"
    path.write_text(json.dumps(answers))
    return str(path)


def _cases(run: Run, long: Ofa, short: Ofa) -> list[_Case]:
    def case(name: str, server: Ofa, repeats: int) -> _Case:
        body = server.body([user(_QUESTION)], 4096, stream=name != "whole")
        kind = "whole" if name == "whole" else "stream"
        bare = wire.request(f"/{kind}/{name}", body)
        return _Case(name, server.post(body), bare, repeats)

    many, few = run.pick(40, 20), run.pick(4, 2)
    return [
        case("long", long, few),
        case("short", short, many),
        case("whole", short, many),
    ]


def _take(
    case: _Case, ours: int, bare: int, our_pid: int, bare_pid: int, *, keep: bool
) -> None:
    for side, port, pid, sent in (
        ("ours", ours, our_pid, case.ours),
        ("theirs", bare, bare_pid, case.bare),
    ):
        before = sum(proc.cpu_s(each) for each in proc.tree(pid))
        taken = [_timed(port, sent) for _ in range(case.repeats)]
        spent = sum(proc.cpu_s(each) for each in proc.tree(pid)) - before
        if keep:
            case.taken[side] += taken
            case.cpu_s[side] += spent


def _timed(port: int, sent: bytes) -> float:
    """Return seconds from before the connection to the last byte, unparsed."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(sent)
        while sock.recv(1 << 18):
            pass
    return time.perf_counter() - began


def _cost_figures(cases: dict[str, _Case]) -> list[Figure]:
    long, short, whole = cases["long"], cases["short"], cases["whole"]
    chunks = _CHUNKS - 1
    per_chunk = (long.pair.difference - short.pair.difference) / chunks * 1e6
    cpu_chunk = (long.cpu_more_s - short.cpu_more_s) / chunks * 1e6
    request: Callable[[_Case], float] = lambda case: case.pair.difference * 1000  # noqa: E731 - used twice
    return [
        Figure(
            "our time per SSE chunk, scripted engine",
            per_chunk,
            at_most(20.0),
            unit="µs",
            note=f"streams of {_CHUNKS} chunks less streams of one, ofa less bare "
            f"Flask on waitress sending the same bytes: {long.pair.told('s')} a "
            "stream; from the engine's event to the frame, the queue's hand-over "
            "included; processor time beyond the bare server's "
            f"{number(cpu_chunk)} µs a chunk",
            details=long.pair.kept("long_s"),
        ),
        Figure(
            "our time per request, scripted engine",
            max(request(short), request(whole)),
            at_most(1.0),
            unit="ms",
            note=f"ofa less the bare server, the larger of: a stream of one chunk "
            f"{number(request(short))} ms, a whole answer {number(request(whole))} ms; "
            f"from before the connection to its end; {short.pair.told('s')} and "
            f"{whole.pair.told('s')}; processor time beyond the bare server's "
            f"{number(max(short.cpu_more_s, whole.cpu_more_s) * 1000)} ms",
            details={**short.pair.kept("short_s"), **whole.pair.kept("whole_s")},
        ),
    ]
