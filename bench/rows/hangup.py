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

Phase = Callable[[int, bool], float]


def hangup(run: Run) -> list[Figure]:
    """Measure in the queue, in prefill and in decode, streamed and whole."""
    keys = {"server.running": 1, "server.waiting": 1}
    flags = ["--model", str(run.model.folder)]
    figures = []
    with servers.ofa(run.place("hangup"), flags=flags, keys=keys) as server:
        clients = _Clients(server)
        phases: Sequence[tuple[str, Phase]] = (
            ("in the queue", clients.queued),
            ("in prefill", clients.prefill),
            ("in decode", clients.decode),
        )
        for name, phase in phases:
            taken: dict[bool, list[float]] = {True: [], False: []}
            for count in [0, *run.rounds(5, 1)]:
                for stream in (True, False):
                    run.say(f"hangup: {name}, round {count}, stream={stream}")
                    took_s = phase(count, stream)
                    if count:
                        taken[stream].append(took_s)
            figures.append(_figure(name, taken))
    return figures


def _figure(name: str, taken: dict[bool, list[float]]) -> Figure:
    medians = [statistics.median(taken[stream]) for stream in (True, False)]
    is_queue = "queue" in name
    return Figure(
        f"hang-up {name} until {'its place is free' if is_queue else 'idle'}",
        max(medians),
        at_most(1.0),
        unit="s",
        note=f"medians of {len(taken[True])}: streamed {number(medians[0])}, whole "
        f"{number(medians[1])}; worst {number(max(taken[True] + taken[False]))}; "
        + ("429 no more" if is_queue else "by the work of the server's threads"),
        details={"streamed_s": taken[True], "whole_s": taken[False]},
    )


class _Clients:
    """Clients of a server with one place to run and one to wait, who leave."""

    def __init__(self, server: Ofa) -> None:
        self._server = server
        self._first_s = 3.0  # until an answer began: known from the last that streamed

    def queued(self, count: int, stream: bool) -> float:
        """One answer runs, one waits and is left: how long is its place taken?"""
        with self._asked(f"Note {count}. Write at length.", stream=True) as running:
            _await_bytes(running)
            waiting = self._asked(f"Note {count}. Wait.", stream=stream)
            if not proc.wait_until(self._is_refused, 5):
                raise CannotMeasure("the queue was not full")
            waiting.close()
            left = time.perf_counter()
            if not proc.wait_until(lambda: not self._is_refused(), _LIMIT_S):
                return _LIMIT_S
            took_s = time.perf_counter() - left
        proc.wait_idle(self._server.pid, _LIMIT_S)
        return took_s

    def prefill(self, count: int, stream: bool) -> float:
        """A long prompt is being read when its client leaves."""
        text = f"Log {count} {stream}. {words(_LONG, 50 + 2 * count + stream)}"
        sock = self._asked(text, stream=stream)
        if not proc.wait_until(lambda: proc.is_busy(self._server.pid), 10):
            raise CannotMeasure("the server never began to read the prompt")
        time.sleep(0.2)  # well into it; a tiny model may have read it all by then
        return self._left(sock)

    def decode(self, count: int, stream: bool) -> float:
        """An answer is being written when its client leaves."""
        began = time.perf_counter()
        text = f"Note {count} {stream}. Write at length."
        sock = self._asked(text, stream=stream)
        if stream:
            _await_bytes(sock)
            self._first_s = time.perf_counter() - began
        else:
            time.sleep(self._first_s + 0.5)
        if not proc.is_busy(self._server.pid):
            raise CannotMeasure("the answer was over before its client could leave")
        return self._left(sock)

    def _left(self, sock: socket.socket) -> float:
        """Hang up; return seconds until the server does no more work."""
        sock.close()
        left = time.perf_counter()
        idle = proc.wait_idle(self._server.pid, _LIMIT_S)
        return _LIMIT_S if idle is None else max(0.0, idle - left)

    def _asked(self, text: str, *, stream: bool) -> socket.socket:
        address = ("127.0.0.1", self._server.port)
        sock = socket.create_connection(address, timeout=60)
        sock.sendall(self._server.request([user(text)], _TOKENS, stream=stream))
        return sock

    def _is_refused(self) -> bool:
        """Return whether one more request is told 429; who gets in leaves at once."""
        with self._asked("Is there room?", stream=True) as sock:
            sock.settimeout(0.15)
            with suppress(TimeoutError):
                return b" 429 " in sock.recv(64)
        return False


def _await_bytes(sock: socket.socket) -> None:
    """Read until the answer's content has begun to come."""
    seen = b""
    while seen.count(b'"content":"') < 4:
        more = sock.recv(1 << 16)
        if not more:
            raise CannotMeasure(f"the stream ended at once: {seen[:80]!r}")
        seen += more
