"""
Building the index in a child process, the first time a server finds none.

A child, because chromadb's native code has ended processes on damaged files, and
because embedding would compete with answers for the interpreter. Its progress bar
goes to the server's own standard error.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger("ofa.rag")


class FirstIndex:
    """
    Runs ``ofa index build`` once, beside the server that waits for nothing.

    *env* goes over this process's environment: what the server was configured with.
    """

    def __init__(
        self, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        # Answers go first: the build takes what they leave of the processors.
        gentle = [nice, "-n", "19"] if (nice := shutil.which("nice")) else []
        build = [sys.executable, "-m", "ofa", "index", "build", *arguments]
        self._command = [*gentle, *build]
        self._env = dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self, then: Callable[[int], None] = lambda code: None) -> None:
        """Start the build; *then* gets its exit code, on another thread."""
        threading.Thread(
            target=self._run, args=(then,), name="ofa-first-index", daemon=True
        ).start()

    @property
    def running(self) -> bool:
        """Whether the build is under way."""
        child = self._child
        return child is not None and child.poll() is None

    def close(self) -> None:
        """End the build, if it runs: an unfinished generation is never seen."""
        with self._lock:
            self._closed = True
            if self._child is not None and self._child.poll() is None:
                self._child.terminate()

    def _run(self, then: Callable[[int], None]) -> None:
        with self._lock:
            if self._closed:
                return
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # standard output belongs to who reads our --json
                env={**os.environ, **self._env},
            )
        code = self._child.wait()
        if code == 0:
            log.info("the index is built; answers use it from now on")
        elif not self._closed:
            log.warning(
                "building the index failed (exit code %d): answers go without it; "
                "run `ofa index build` to see why",
                code,
            )
        then(code)
