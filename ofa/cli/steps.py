"""How far a long job is, on standard error: how much, how fast, how long still."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

# A screen's line is written over; a job's output file gets a line now and then.
_SCREEN_S, _FILE_S = 0.2, 10.0
_QUIET_S = 2.0  # what takes less says nothing


class Steps:
    """Tells of one step after another: how much of it is done, how fast."""

    def __init__(
        self, out: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._clock = clock
        self._screen = out.isatty()
        self._step = ""
        self._began = self._told = clock()
        self._width = 0

    def __call__(self, step: str, done: int, total: int) -> None:
        """Tell that *done* of *total* of *step* are done, if it is time to."""
        now = self._clock()
        if step != self._step:
            self.close()
            self._step, self._began, self._told = step, now, now
        spent = now - self._began
        every = _SCREEN_S if self._screen else _FILE_S
        if spent < _QUIET_S or (now - self._told < every and done < total):
            return
        self._told = now
        self._write(_line(step, done, total, spent))

    def close(self) -> None:
        """End the line on a screen."""
        if self._width:
            self._out.write("\n")
            self._out.flush()
            self._width = 0

    def _write(self, line: str) -> None:
        if self._screen:
            self._out.write(f"\r{line:<{self._width}}")
            self._width = len(line)
        else:
            self._out.write(f"{line}\n")
        self._out.flush()


def _line(step: str, done: int, total: int, spent_s: float) -> str:
    pace = done / spent_s
    share = f" ({100 * done // total} %)" if total else ""
    line = f"{step}: {done:,} of {total:,}{share}, {pace:,.{0 if pace >= 10 else 1}f}/s"
    if done >= total:
        return f"{line}, took {duration(spent_s)}"
    return f"{line}, {duration((total - done) / pace)} left" if pace else line


def duration(seconds: float) -> str:
    """Return a time for people: 40 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return (
        f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
    )


@contextlib.contextmanager
def steps() -> Iterator[Steps]:
    """Give what a long job is given as its progress; standard error is left clean."""
    told = Steps(sys.stderr)
    try:
        yield told
    finally:
        told.close()
