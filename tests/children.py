"""Run a function in a forked child, for what would spoil this process: uid, limits."""

import os
import sys
import traceback
from collections.abc import Callable

import pytest

NOBODY = 65534

as_root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a file to somebody else"
)


def in_child(function: Callable[[], object]) -> int:
    """Return 0 if *function* came to its end in a child, else 1 and its trace."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must never run pytest's code
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def as_nobody(function: Callable[[], object]) -> int:
    """Return what `in_child` does, with *function* run by an unprivileged user."""

    def run() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        function()

    return in_child(run)
