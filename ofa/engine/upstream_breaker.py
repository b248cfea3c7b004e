"""When to leave a server that does not answer alone, and when to try it again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from ..errors import NotReady

# After so many failures in a row nothing is sent for a while: a dead upstream should
# cost its callers milliseconds, not a connection time-out each.
OPENS_AFTER, OPEN_S = 3, 10.0


class Breaker:
    """
    Counts failures in a row; after `OPENS_AFTER` it opens, and lets nobody through.

    When `OPEN_S` are over, or a probe has found the server well, one request goes
    through on trial: it closes the breaker if it works, and opens it again if not.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open = False
        self._until_s = 0.0
        self._on_trial = False

    def refusal(self) -> NotReady | None:
        """Return what to tell a caller who may not go through now, if so."""
        with self._lock:
            return self._refusal()

    def enter(self) -> bool:
        """Let a request through, and return whether it is the trial; or raise."""
        with self._lock:
            if refused := self._refusal():
                raise refused
            self._on_trial = self._open
            return self._open

    def begun(self) -> None:
        """Close: an answer has begun. Failures count on until one has ended well."""
        with self._lock:
            self._open = self._on_trial = False

    def worked(self) -> None:
        """Close: the server has answered."""
        with self._lock:
            self._open = self._on_trial = False
            self._failures = 0

    def failed(self) -> None:
        """Count one; after enough of them, or on trial, open."""
        with self._lock:
            self._failures += 1
            if self._open or self._failures >= OPENS_AFTER:
                self._open, self._on_trial = True, False
                self._until_s = self._clock() + OPEN_S

    def leave(self, *, trial: bool) -> None:
        """End a request that neither worked nor failed; the next may be the trial."""
        with self._lock:
            self._on_trial = self._on_trial and not trial

    def allow_trial(self) -> None:
        """Let the next request try, without waiting for the time to be over."""
        with self._lock:
            self._until_s = self._clock()

    def _refusal(self) -> NotReady | None:
        left_s = self._until_s - self._clock()
        if not self._open or (left_s <= 0 and not self._on_trial):
            return None
        refused = NotReady(
            f"the upstream failed {OPENS_AFTER} times in a row; it is asked again "
            + ("by another request now" if self._on_trial else f"in {left_s:.0f} s")
        )
        refused.retry_after_s = max(1, math.ceil(left_s))
        return refused
