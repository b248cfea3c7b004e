"""Many at once, many after each other, on the scripted engine: nothing lost or kept."""

from __future__ import annotations

import threading
import time

from .. import proc, servers, wire
from ..children.lines import child
from ..context import Run
from ..figures import Figure, at_most, number, share
from ..servers import CannotMeasure, Ofa

_WAIT_S = 0.02  # between chunks: a small Gemma on a laptop writes 50 tokens a second
_MIB = 1 << 20


def streams(run: Run) -> list[Figure]:
    """Open 64 streams at once, five times; probe /healthz all the while."""
    many, chunks = run.pick(64, 8), run.pick(200, 25)
    script = [[{"echo": "last_user"}, {"wait_s": _WAIT_S}] * chunks]
    place = run.place("streams")
    flags = servers.scripted(place, script)
    keys = {"server.running": many}
    rounds = run.rounds(5, 2)
    lost = foreign = opened = 0
    with servers.ofa(place, flags=flags, keys=keys) as server:
        idle = [_probe(server.port) for _ in range(100)]
        values = {"port": server.port, "key": server.key}
        with child(place, "load", values) as load, _Probes(server.port) as probes:
            for count in rounds:
                run.say(f"streams: round {count}")
                told = load.ask("streams", round=count, streams=many, chunks=chunks)
                lost, foreign = lost + told["lost"], foreign + told["foreign"]
                opened += told["streams"]
    total = opened * chunks
    what = f"{many} streams × {chunks} chunks × {len(rounds)}"
    taken = probes.taken_ms
    return [
        Figure(f"{what}: chunks lost", lost, at_most(0), note=f"of {total:,}"),
        Figure(
            f"{what}: chunks of another stream",
            foreign,
            at_most(0),
            note="each stream gets its own word back in every chunk, one each 20 ms",
        ),
        Figure(
            "/healthz meanwhile, p99",
            share(taken, 0.99),
            at_most(50),
            unit="ms",
            note=f"{len(taken)} probes, a connection each; median "
            f"{number(share(taken, 0.5), 'ms')}, worst {number(max(taken), 'ms')}; "
            f"before the load p99 {number(share(idle, 0.99), 'ms')}",
        ),
    ]


class _Probes:
    """Probes /healthz on a thread for as long as it is open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.taken_ms: list[float] = []

    def __enter__(self) -> _Probes:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            self.taken_ms.append(_probe(self._port))


def _probe(port: int) -> float:
    """Return how long /healthz took, in milliseconds."""
    began = time.perf_counter()
    heard = wire.ask(port, wire.request("/healthz", method="GET"), silence_s=10)
    if heard.status != 200:
        raise CannotMeasure(f"/healthz: status {heard.status}")
    return (time.perf_counter() - began) * 1000


def mixed(run: Run) -> list[Figure]:
    """Ask 20,000 requests of all kinds; compare memory and descriptors."""
    answer = [{"text": " word", "times": 3}, {"wait_s": 0.005}, {"text": " word"}]
    place = run.place("mixed")
    flags = servers.scripted(place, [answer])
    requests, warm_up = run.pick(20_000, 1000), run.pick(2000, 200)
    with servers.ofa(place, flags=flags) as server:
        files = proc.descriptors(server.worker)
        values = {"port": server.port, "key": server.key}
        with child(place, "load", values) as load:
            run.say(f"mixed: {warm_up} requests to warm up")
            load.ask("mixed", requests=warm_up)
            before = _settled_rss(server)
            began = time.perf_counter()
            run.say(f"mixed: {requests} requests")
            counts = load.ask("mixed", requests=requests)["counts"]
            took_s = time.perf_counter() - began
        after = _settled_rss(server)
        proc.wait_until(lambda: proc.descriptors(server.worker) <= files, 10)
        left = proc.descriptors(server.worker) - files
    return [
        Figure(
            f"memory growth over {requests:,} mixed requests",
            (after - before) / _MIB,
            at_most(32),
            unit="MiB",
            note=f"resident memory of the server after {warm_up:,} more to warm up: "
            f"{before / _MIB:.1f} to {after / _MIB:.1f} MiB; {requests / took_s:.0f} "
            f"requests/s by 8 callers; {counts}",
            details={"counts": counts},
        ),
        Figure(
            "descriptors not returned after them",
            left,
            at_most(0),
            note=f"{files} before the first request",
        ),
    ]


def _settled_rss(server: Ofa) -> int:
    proc.wait_idle(server.pid, 15)
    return proc.rss_bytes(server.worker)
