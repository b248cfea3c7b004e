"""
A small process that keeps the port and starts the server's worker again when it dies.

It does nothing that could fail: no web framework, no model, one thread, one loop over
sockets. The worker is a whole `ofa serve` that got the listening socket from here; one
that ends, stalls or gives its engine up is replaced, and until the next one listens the
stand-in answers in its place. Knows processes and sockets; nothing of chats.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from .errors import ConfigError
from .ports import Place
from .supervisor_standin import StandIn
from .supervisor_worker import Worker, gave_up

GAVE_UP = 70  # EX_SOFTWARE of sysexits.h

_TICK_S = 0.25
_SUSPENDED_S = 2.0  # a turn this long was a stopped process or a sleeping laptop
_LEAST_SILENCE_S = 5.0  # a busy machine delays beats as well
_ABORT_S = 1.0  # for an aborted worker to write its stacks
_BROKEN_S = 5.0  # for one whose engine is broken to tell its clients
# Beyond the grace of running answers: closing sockets and the engine.
_CLOSING_S = 10.0
_CUTTING_S = 8.0
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NEVER = float("inf")

log = logging.getLogger("ofa.supervisor")


@dataclass(frozen=True)
class Patience:
    """How long a worker may take, and how often it may die."""

    silence_s: float  # between two beats
    drain_s: float  # for running answers, once it is to stop
    # Before each restart: no more than these are made within the window.
    waits_s: tuple[float, ...] = (0.2, 1.0, 5.0)
    window_s: float = 600.0
    # Before one where what served before can't be loaded any more: a file server's bad
    # minute, or memory that somebody else has taken.
    load_wait_s: float = 20.0


def silence_limit_s(stall_s: float) -> float:
    """Return how long beats may stay away where a step of *stall_s* is none to end."""
    return max(_LEAST_SILENCE_S, stall_s + 1.0)


class Restarts:
    """Counts restarts: each waits longer, and after the last there is none."""

    def __init__(self, waits_s: Sequence[float], window_s: float) -> None:
        self._waits_s = waits_s
        self._window_s = window_s
        self._at_s: list[float] = []

    def __str__(self) -> str:
        return f"{len(self._at_s)} of {len(self._waits_s)}"

    def next_wait_s(self, now_s: float) -> float | None:
        """Count one, and return how long it is to wait; None if there is to be none."""
        self._at_s = [at for at in self._at_s if now_s - at < self._window_s]
        if len(self._at_s) == len(self._waits_s):
            return None
        self._at_s.append(now_s)
        return self._waits_s[len(self._at_s) - 1]


class Supervisor:
    """
    Runs *command* as the worker on *place* until it is done, and returns an exit code.

    The code is 0 after SIGTERM, SIGINT or SIGHUP (the first drains, the second cuts),
    the worker's own where its first start fails or its configuration can't be used, and
    `GAVE_UP` for a worker that dies again and again.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        place: Place,
        patience: Patience,
    ) -> None:
        self._start = partial(Worker.start, command, env, place)
        self._place = place
        self._patience = patience
        self._selector = selectors.DefaultSelector()
        self._stand_in = StandIn(place.socket, self._selector)
        self._restarts = Restarts(patience.waits_s, patience.window_s)
        self._worker: Worker | None = None
        self._announced = False  # a worker has said where the server is
        self._served = False  # one was ready: what is configured can be used
        self._restarted = ""  # how the last worker ended
        self._ended_at_s = _NEVER
        self._start_at_s = 0.0
        self._heard_at_s = 0.0
        self._kill_at_s = _NEVER
        self._stops = 0  # how often it was told to stop
        self._exit_code: int | None = None

    def run(self) -> int:
        """Run until stopped, or until there is no point in another start."""
        self._stand_in.reason = "the server is starting"
        with _arriving_signals() as signals:
            self._selector.register(
                signals, selectors.EVENT_READ, partial(self._take_signals, signals)
            )
            try:
                while self._exit_code is None:
                    self._look()
                    self._wait()
            finally:
                self._close()
        return self._exit_code

    # -- a turn of the loop --------------------------------------------------------

    def _wait(self) -> None:
        before_s = time.monotonic()
        for key, _ in self._selector.select(_TICK_S):
            key.data()
        self._stand_in.tend()
        if time.monotonic() - before_s > _SUSPENDED_S:
            self._heard_at_s = (
                time.monotonic()
            )  # the worker may have been stopped as well

    def _look(self) -> None:
        worker, now_s = self._worker, time.monotonic()
        if worker is None:
            if self._stops:
                self._exit_code = 0
            elif now_s >= self._start_at_s:
                self._launch()
        elif how := worker.ended():
            self._bury(worker, how)
        else:
            self._watch(worker, now_s)
        self._hand_over()

    def _launch(self) -> None:
        now_s = time.monotonic()
        try:
            worker = self._start(first=not self._announced, restarted=self._restarted)
        except OSError as error:  # no memory, no process left
            how = f"could not be started: {error.strerror}"
            self._mourn(how)
            self._again(how)
            return
        self._worker = worker
        self._heard_at_s = now_s
        self._kill_at_s = _NEVER
        hear = partial(self._hear, worker)
        self._selector.register(worker.wire, selectors.EVENT_READ, hear)

    def _hear(self, worker: Worker) -> None:
        was_ready = worker.beat.ready
        if not worker.hear():
            self._selector.unregister(worker.wire)
            return
        self._heard_at_s = time.monotonic()
        self._announced = self._announced or worker.beat.listening
        self._served = self._served or worker.beat.ready
        if worker.beat.ready and not was_ready and self._restarted:
            away_s = time.monotonic() - self._ended_at_s
            log.info("the server answers again, after %.1f s", away_s)

    def _watch(self, worker: Worker, now_s: float) -> None:
        """Look after a worker that lives."""
        silent_s = now_s - self._heard_at_s
        if now_s >= self._kill_at_s:
            self._kill_at_s = _NEVER
            worker.send(signal.SIGKILL)
        elif worker.lost:
            return
        elif worker.beat.broken:
            # It tells its clients and leaves by itself, if it still can.
            self._lose(worker, gave_up(worker.beat), _BROKEN_S)
        elif silent_s > self._patience.silence_s:
            # Aborting writes down where it hangs, even where native code holds it.
            self._lose(worker, f"gave no sign of life for {silent_s:.0f} s", _ABORT_S)
            worker.send(signal.SIGABRT)

    def _lose(self, worker: Worker, cause: str, within_s: float) -> None:
        worker.cause = cause
        self._kill_at_s = min(self._kill_at_s, time.monotonic() + within_s)
        self._mourn(cause)

    def _bury(self, worker: Worker, how: str) -> None:
        """Decide what comes after a worker that ended."""
        self._worker = None
        with suppress(KeyError):  # its end was heard
            self._selector.unregister(worker.wire)
        worker.wire.close()
        if self._stops:
            if worker.exit_code:
                log.warning("the server's worker %s while it stopped", how)
            self._exit_code = 0
        elif self._is_final(worker):
            self._exit_code = worker.exit_code
        else:
            if not worker.lost:
                self._mourn(how)
            unloaded = worker.exit_code == ConfigError.exit_code
            self._again(how, self._patience.load_wait_s if unloaded else 0.0)

    def _is_final(self, worker: Worker) -> bool:
        """Return whether another start would end the same way, or none is wanted."""
        if worker.lost:
            return False
        if worker.exit_code == 0:
            return True
        if worker.exit_code == ConfigError.exit_code:
            return not self._served
        # The first start's own failure, with its message: once is enough.
        return not self._announced and (worker.exit_code or 0) > 0

    def _mourn(self, how: str) -> None:
        self._ended_at_s = time.monotonic()
        self._restarted = how
        self._stand_in.reason = f"the server's worker {how}, and starts again"

    def _again(self, how: str, least_s: float = 0.0) -> None:
        wait_s = self._restarts.next_wait_s(time.monotonic())
        if wait_s is None:
            log.error(
                "giving up after %d restarts in %g s: the server's worker %s",
                len(self._patience.waits_s),
                self._patience.window_s,
                how,
            )
            self._exit_code = GAVE_UP
            return
        wait_s = max(wait_s, least_s)
        self._start_at_s = time.monotonic() + wait_s
        log.warning(
            "the server's worker %s; it starts again in %g s (restart %s)",
            how,
            wait_s,
            self._restarts,
        )

    def _hand_over(self) -> None:
        """Let the worker take connections if it does, else the stand-in."""
        worker = self._worker
        if self._stops:
            return
        if worker is None or worker.lost or not worker.beat.listening:
            self._stand_in.open()
        elif self._stand_in.is_open:
            self._stand_in.close()
            worker.order("go")

    # -- stopping ------------------------------------------------------------------

    def _take_signals(self, signals: socket.socket) -> None:
        try:
            numbers = signals.recv(64)
        except BlockingIOError:
            return
        for number in numbers:
            if number in _STOPS:
                self._stop()

    def _stop(self) -> None:
        """Have the worker drain; the second time cut, the third time end at once."""
        self._stops += 1
        self._stand_in.close()
        self._place.socket.close()  # the worker's own copy takes who still comes
        worker = self._worker
        if worker is None:
            return
        worker.order("go")  # it may wait for that
        if not worker.beat.listening or worker.lost:
            within_s = _CUTTING_S
            worker.send(signal.SIGTERM)
        elif self._stops == 1:
            within_s = self._patience.drain_s + _CLOSING_S
            worker.order("drain")
        else:
            within_s = _CUTTING_S if self._stops == 2 else 0
            worker.order("stop")
        self._kill_at_s = min(self._kill_at_s, time.monotonic() + within_s)

    def _close(self) -> None:
        if self._worker is not None:  # only after a defect of ours
            self._worker.send(signal.SIGKILL)
            self._worker.wire.close()
        self._stand_in.close()
        self._stand_in.drop_all()
        self._place.socket.close()
        self._selector.close()


@contextmanager
def _arriving_signals() -> Iterator[socket.socket]:
    """
    Have signals arrive as bytes on a socket: those to stop, and a child's end.

    A hang-up that is ignored, as nohup does, stays so.
    """
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    hung_up = signal.getsignal(signal.SIGHUP)
    wanted = [s for s in _STOPS if s != signal.SIGHUP or hung_up != signal.SIG_IGN]
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (*wanted, signal.SIGCHLD)
    }
    try:
        with ours, theirs:
            yield ours
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
