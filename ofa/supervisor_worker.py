"""A worker process as its supervisor sees it: started, heard, told, ended."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from .ports import Place
from .supervisor_link import Beat, Handoff

_LINE_BYTES = 64 << 10  # more without a line's end is no beat
# A terminal's Ctrl+C and hang-up reach the worker too, and there they are nobody's
# business: its supervisor tells it to drain, once.
_SUPERVISORS_OWN = {signal.SIGINT, signal.SIGHUP}


class Worker:
    """A started worker; `beat` is the last that it told, `cause` why it was ended."""

    def __init__(self, process: subprocess.Popen[bytes], wire: socket.socket) -> None:
        self._process = process
        self._said = b""
        self.wire = wire
        self.beat = Beat()
        self.cause = ""

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        place: Place,
        *,
        first: bool,
        restarted: str,
    ) -> Worker:
        """Start *command* with the socket of *place*; raises `OSError`."""
        ours, theirs = socket.socketpair()
        listener = place.socket.fileno()
        handoff = Handoff(
            listener, theirs.fileno(), place.host, place.port, first, restarted
        )
        with theirs:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SUPERVISORS_OWN)
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    env={**env, **handoff.variables()},
                    pass_fds=(listener, theirs.fileno()),
                )
            except OSError:
                ours.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ours.setblocking(False)
        return cls(process, ours)

    @property
    def lost(self) -> bool:
        """Whether it was given up, and only its end is waited for."""
        return bool(self.cause)

    def hear(self) -> bool:
        """Take in what it told; return False where the wire has ended."""
        try:
            heard = self.wire.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            heard = b""
        if not heard:
            return False
        *lines, said = (self._said + heard).split(b"\n")
        self._said = said[-_LINE_BYTES:]
        for line in lines[-1:]:  # earlier ones are stale
            with suppress(ValueError, TypeError):
                self.beat = Beat(**json.loads(line))
        return True

    def order(self, word: str) -> None:
        """Tell it what to do; one that can't hear any more ends by other means."""
        with suppress(OSError):
            self.wire.sendall(word.encode() + b"\n")

    def ended(self) -> str:
        """Return how it ended, for people; empty while it lives."""
        code = self._process.poll()
        if code is None:
            return ""
        self.hear()  # its last words may be there yet
        return self.cause or self._last_words() or _how(code)

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        self._process.send_signal(number)

    def _last_words(self) -> str:
        return gave_up(self.beat) if self.beat.broken else ""


def gave_up(beat: Beat) -> str:
    """Return how a worker ends whose engine is broken."""
    return f"gave up: {beat.why}"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"
