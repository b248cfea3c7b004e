"""
The worker's end of the wire to its supervisor, and what it is handed at its start.

One pair of sockets does it all: the worker tells once a beat how it is, the supervisor
sends orders, and the end of the wire is the end of the supervisor. Knows nothing of
servers and engines but a status.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass

from .engine.base import Status
from .ports import Place

_VARIABLE = "_OFA_WORKER"  # a Handoff; no word of it is secret
_BEAT_S = 0.5
_ORPHANED = 1  # the exit code of a worker without a supervisor; nobody reads it
_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
_WHY_CHARS = 500
_GO_WAIT_S = 5.0  # a supervisor that is stopped answers late; then both answer

log = logging.getLogger("ofa.supervisor")


@dataclass(frozen=True)
class Handoff:
    """What a supervisor hands to a worker at its start."""

    listener: int  # the descriptor of the socket that listens
    wire: int  # and of this end of the wire
    host: str
    port: int
    first: bool = True  # nobody was told yet where the server is
    restarted: str = ""  # how the last worker ended; empty for the first

    def variables(self) -> dict[str, str]:
        """Return it as an environment variable."""
        return {_VARIABLE: json.dumps(asdict(self))}


@dataclass(frozen=True)
class Beat:
    """How a worker is."""

    listening: bool = False
    ready: bool = False
    why: str = "starting"  # it is not ready
    broken: bool = False  # its engine won't be ready again

    def line(self) -> bytes:
        """Return it as it goes over the wire."""
        return json.dumps(asdict(self)).encode() + b"\n"


def find_link(env: MutableMapping[str, str]) -> Link | None:
    """
    Return the link to this process's supervisor; None if it is nobody's worker.

    What was handed over is removed from *env*, and its descriptors are closed to this
    process's own children: none of them may hold the port, or keep the wire open.
    """
    text = env.pop(_VARIABLE, "")
    if not text:
        return None
    handoff = Handoff(**json.loads(text))
    os.set_inheritable(handoff.listener, False)
    os.set_inheritable(handoff.wire, False)
    return Link(handoff)


class Link:
    """
    Tells the supervisor twice a second how this process is, and takes its orders.

    The beat is a thread's: it stops when something native holds the interpreter, and
    that is what the supervisor looks for.
    """

    def __init__(self, handoff: Handoff) -> None:
        listener = socket.socket(fileno=handoff.listener)
        self.place = Place(listener, handoff.host, handoff.port)
        self.first = handoff.first
        self.restarted = handoff.restarted
        self._wire = socket.socket(fileno=handoff.wire)
        self._lock = threading.Lock()
        self._status: Callable[[], Status] | None = None
        self._alone = threading.Event()  # no stand-in answers on the port any more
        self._orders: Mapping[str, Callable[[], None]] = {"go": self._alone.set}

    def start(self) -> None:
        """
        Begin to beat; from now on this process ends with its supervisor.

        If it crashes or is aborted, it writes where its threads were: no values.
        """
        faulthandler.enable()
        _die_with_parent()
        threading.Thread(target=self._run, name="ofa-link", daemon=True).start()

    def attach(
        self, status: Callable[[], Status], orders: Mapping[str, Callable[[], None]]
    ) -> None:
        """
        Tell that the server listens, and wait until nobody answers in its place.

        *orders* are what it may be told to do.
        """
        self._orders = {**self._orders, **orders}
        self._status = status
        self.beat()
        self._alone.wait(_GO_WAIT_S)

    def beat(self) -> None:
        """Tell how this process is, now."""
        beat = Beat()
        if self._status is not None:
            now = self._status()
            why = now.reason[:_WHY_CHARS]
            beat = Beat(listening=True, ready=now.ready, why=why, broken=now.broken)
        with self._lock:
            try:
                self._wire.sendall(beat.line())
            except OSError:
                _leave("the supervisor is gone, so the server ends")

    def _run(self) -> None:
        said = b""
        while True:
            self.beat()
            if not select.select([self._wire], [], [], _BEAT_S)[0]:
                continue
            said += self._hear()
            *words, said = said.split(b"\n")
            for word in words:
                self._orders.get(word.decode(), lambda: None)()

    def _hear(self) -> bytes:
        try:
            heard = self._wire.recv(4096)
        except OSError:
            heard = b""
        if not heard:
            _leave("the supervisor is gone, so the server ends")
        return heard


def _leave(why: str) -> None:
    log.error("%s", why)
    sys.stderr.flush()
    os._exit(_ORPHANED)


def _die_with_parent() -> None:
    """Have Linux end this process with its parent, even if it hangs in native code."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
