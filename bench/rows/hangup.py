"""
A client hangs up: how long until the engine does nothing more for it.

Idle is seen from outside, as processor time of the server's threads; a place in the
queue is free when another request is no longer refused with 429.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from .. import proc, servers
from ..context import Run
from ..figures import Figure, at_most, number
from ..servers import CannotMeasure, Ofa, user
from ..texts import words

_LONG = 1360  # words: about 1,500 tokens
_TOKENS = 600
_LIMIT_S = 30.0

Phase = Callable[[Ofa, int, bool], float]


def hangup(run: Run) -> list[Figure]:
    """Measure in the queue, in prefill and in decode, streamed and whole."""
    keys = {"server.running": 1, "server.waiting": 1}
    flags = ["--model", str(run.model.folder)]
    phases: Sequence[tuple[str, Phase]] = (
        ("in the queue", _queued),
        ("in prefill", _prefill),
        ("in decode", _decode),
    )
    figures = []
    with servers.ofa(run.place("hangup"), flags=flags, keys=keys) as server:
        for name, phase in phases:
            taken: dict[bool, list[float]] = {True: [], False: []}
            for count in [0, *run.rounds(5, 1)]:
                for stream in (True, False):
                    run.say(f"hangup: {name}, round {count}, stream={stream}")
                    took_s = phase(server, count, stream)
                    if count:
                        taken[stream].append(took_s)
            figures.append(_figure(name, taken))
    return figures


def _figure(name: str, taken: dict[bool, list[float]]) -> Figure:
    medians = [statistics.median(taken[stream]) for stream in (True, False)]
    idle = "its place is free" if "queue" in name else "the engine is idle"
    return Figure(
        f"hang-up {name} until {idle}",
        max(medians),
        at_most(1.0),
        unit="s",
        note=f"medians of {len(taken[True])}: streamed {number(medians[0])}, whole "
        f"{number(medians[1])}; worst {number(max(taken[True] + taken[False]))}; "
        + ("429 no more" if "queue" in name else "by the server's processor time"),
        details={"streamed_s": taken[True], "whole_s": taken[False]},
    )


def _queued(server: Ofa, count: int, stream: bool) -> float:
    """One answer runs, one waits and is left: how long is its place still taken?"""
    with _asked(server, f"Note {count}. Write at length.", stream=True) as running:
        _await_bytes(running)
        waiting = _asked(server, f"Note {count}. Wait.", stream=stream)
        if not proc.wait_until(lambda: _is_refused(server), 5):
            raise CannotMeasure("the queue was not full")
        waiting.close()
        left = time.perf_counter()
        if not proc.wait_until(lambda: not _is_refused(server), _LIMIT_S):
            return _LIMIT_S
        took_s = time.perf_counter() - left
    proc.wait_idle(server.pid, _LIMIT_S)
    return took_s


def _prefill(server: Ofa, count: int, stream: bool) -> float:
    """A long prompt is being read when its client leaves."""
    text = f"Log {count} {stream}. {words(_LONG, 50 + 2 * count + stream)}"
    sock = _asked(server, text, stream=stream)
    if not proc.wait_until(lambda: proc.is_busy(server.pid), 10):
        raise CannotMeasure("the server never began to read the prompt")
    time.sleep(0.2)  # well into it; a tiny model may have read it all by then
    return _left(server, sock)


def _decode(server: Ofa, count: int, stream: bool) -> float:
    """An answer is being written when its client leaves."""
    sock = _asked(server, f"Note {count} {stream}. Write at length.", stream=stream)
    if stream:
        _await_bytes(sock)
    else:
        time.sleep(3)  # a short prompt is read by then, its answer is not written
    if not proc.is_busy(server.pid):
        raise CannotMeasure("the answer was over before its client could leave")
    return _left(server, sock)


def _left(server: Ofa, sock: socket.socket) -> float:
    """Hang up; return seconds until the server does no more work."""
    sock.close()
    left = time.perf_counter()
    idle = proc.wait_idle(server.pid, _LIMIT_S)
    return _LIMIT_S if idle is None else max(0.0, idle - left)


def _asked(server: Ofa, text: str, *, stream: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    sock.sendall(server.request([user(text)], _TOKENS, stream=stream))
    return sock


def _await_bytes(sock: socket.socket) -> None:
    """Read until the answer's content has begun to come."""
    seen = b""
    while seen.count(b'"content":"') < 4:
        more = sock.recv(1 << 16)
        if not more:
            raise CannotMeasure(f"the stream ended at once: {seen[:80]!r}")
        seen += more


def _is_refused(server: Ofa) -> bool:
    """Return whether one more request is told 429; one that gets in leaves at once."""
    with _asked(server, "Is there room?", stream=True) as sock:
        sock.settimeout(0.15)
        with suppress(TimeoutError):
            return b" 429 " in sock.recv(64)
    return False
