"""
The worker of a server is killed, aborts or stops moving; the port must answer again.

Noticed: a new worker process is there, or the port gives any HTTP answer again,
whichever is first. Answering: a chat is answered whole on the same port.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress

from .. import proc, servers, wire
from ..context import Run
from ..figures import Figure, at_most, number
from ..servers import Ofa, user

_ANSWERS_S = 120.0
_STALL_S = 5.0  # set for the run, where there is a key for it
_WAYS = (
    ("SIGKILL", signal.SIGKILL),
    ("an abort", signal.SIGABRT),
    ("a stall", signal.SIGSTOP),
)


def killed(run: Run) -> list[Figure]:
    """End the worker in each way, while an answer is being written."""
    model = run.tiny if run.quick else run.model
    stall_key, stall_s = _stall_key()
    keys: dict[str, object] = {stall_key: _STALL_S} if stall_key else {}
    figures = []
    for name, number_ in _WAYS:
        run.say(f"killed: {name}")
        flags = ["--model", str(model.folder)]
        place = run.place(f"killed-{number_}")
        with servers.ofa(place, flags=flags, keys=keys) as server:
            limit = 2.0
            note = f"{model.name}, one answer under way"
            if number_ == signal.SIGSTOP:
                limit += stall_s
                note += f"; stall limit {stall_s:g} s" + (
                    f" ({stall_key})" if stall_key else " (NO KEY FOR IT FOUND)"
                )
            figures += _kill(server, name, number_, limit, note)
    return figures


def _kill(
    server: Ofa, name: str, how: signal.Signals, limit_s: float, note: str
) -> list[Figure]:
    answer = server.request([user("Write at length.")], 600)
    under_way = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    under_way.sendall(answer)
    under_way.recv(64)
    worker, known = server.worker, set(proc.tree(server.pid))
    supervised = worker != server.pid
    os.kill(worker, how)
    began = time.perf_counter()

    def is_noticed() -> bool:
        return bool(set(proc.tree(server.pid)) - known) or _any_answer(server)

    noticed = proc.wait_until(is_noticed, limit_s + 30) if supervised else False
    noticed_s = time.perf_counter() - began
    answers = noticed and proc.wait_until(lambda: _is_answered(server), _ANSWERS_S)
    answering_s = time.perf_counter() - began
    under_way.close()
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)
    if not supervised:
        note += "; NO SUPERVISOR: the server is one process"
    return [
        Figure(
            f"worker ended by {name}: noticed after",
            noticed_s if noticed else None,
            at_most(limit_s),
            unit="s",
            note=note,
        ),
        Figure(
            f"worker ended by {name}: answering again on the same port after",
            answering_s if answers else None,
            at_most(_ANSWERS_S),
            unit="s",
            note=f"a chat answered whole; the first start took "
            f"{number(server.start_s, 's')} until it was ready"
            if answers
            else note,
        ),
    ]


def _any_answer(server: Ofa) -> bool:
    with suppress(OSError):
        sent = wire.request("/healthz", method="GET")
        return wire.ask(server.port, sent, silence_s=0.2).status > 0
    return False


def _is_answered(server: Ofa) -> bool:
    with suppress(OSError):
        sent = server.request([user("Hello")], 2)
        return wire.ask(server.port, sent, silence_s=30).is_whole
    return False


def _stall_key() -> tuple[str, float]:
    """Return the configuration key of the stall limit, and what it will be."""
    from ofa.config_schema import rows

    for name in rows():
        if "stall" in name:
            return name, _STALL_S
    return "", 60.0
