"""
Real faults on demand, for tests of what must outlive them: deaths and hangs.

They happen only where a script names them, never by a request.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

from .base import Status

_HANGS = ("gil", "step")
_FOR_EVER_S = 1 << 20


class Faults:
    """Ends or hangs this process; a step that hangs is told after *stall_s*."""

    def __init__(
        self, *, stall_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._hung_at_s: float | None = None

    @property
    def hangs(self) -> bool:
        """Whether a step does not return."""
        return self._hung_at_s is not None

    def status(self) -> Status:
        """Return ready, until a step hangs for too long."""
        hung_at_s = self._hung_at_s
        if hung_at_s is None or self._clock() - hung_at_s <= self._stall_s:
            return Status(True)
        why = f"the engine's step has not returned for {self._stall_s:g} s"
        return Status(False, why, broken=True)

    def die(self, how: str | int) -> None:
        """End the process at once: by a signal's name, or with an exit code."""
        if isinstance(how, int):
            os._exit(how)
        os.kill(os.getpid(), signal.Signals[how])
        threading.Event().wait()  # the signal may reach another thread first

    def hang(self, what: str) -> None:
        """Never return: in native code that holds the interpreter, or in a step."""
        if what == "gil":
            ctypes.PyDLL(None).sleep(_FOR_EVER_S)
        self._hung_at_s = self._clock()
        threading.Event().wait()


def check_fault(step: object) -> str:
    """Return what is wrong with a script's `die` or `hang` *step*; empty if nothing."""
    match step:
        case {"die": int() as code} if not isinstance(code, bool) and 0 <= code < 256:
            return ""
        case {"die": str() as name} if name in signal.Signals.__members__:
            return ""
        case {"die": _}:
            return "die names a signal or an exit code"
        case {"hang": what} if what not in _HANGS:
            return f"hang is one of {', '.join(_HANGS)}"
    return ""
