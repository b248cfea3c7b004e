"""Progress bars on standard error, for whatever takes longer than two seconds."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO


class Bars:
    """One bar a step; `show` is what a long job is given as its progress."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._step = ""
        self._bar: Any = None

    def __enter__(self) -> Bars:
        return self

    def show(self, step: str, done: int, total: int) -> None:
        """Show that *done* of *total* bytes or weights of *step* are done."""
        from tqdm import tqdm

        if step != self._step:
            self.close()
            self._step = step
            self._bar = tqdm(
                desc=step,
                total=total or None,
                unit="",
                unit_scale=True,
                file=self._out,
                # A log file is no screen: a line now and then is enough.
                mininterval=0.1 if self._out.isatty() else 10,
            )
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
