"""
One builder at a time in a folder, on any number of nodes.

A file that is there or not: no fcntl locks, which some network file systems refuse.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import OfaError
from ..files import make_file, make_folder

# A builder on another node can't be asked whether it lives; none takes this long.
_STALE_AFTER_S = 24 * 3600
# To look at a lock and remove it takes no time; a file server may hang for a while.
_CLEARED_WITHIN_S = 600


class BuildRunning(OfaError):
    """Somebody else is building here; the message says who, and since when."""

    code = "build_running"


@contextlib.contextmanager
def only_builder(folder: Path) -> Iterator[None]:
    """Hold *folder* for one build; raises `BuildRunning` while another holds it."""
    make_folder(folder)
    lock = folder / "build.lock"
    mine = json.dumps(
        {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        | {"mark": secrets.token_hex(8)}  # two of one process are two
    ).encode()
    if not make_file(lock, mine):
        _clear_stale(lock)
        if not make_file(lock, mine):
            raise _running(lock)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if lock.read_bytes() == mine:
                lock.unlink()


def _clear_stale(lock: Path) -> None:
    """
    Remove a lock whose holder is gone.

    One does so at a time: of two who found it stale, the slower one would else take
    away the lock that somebody has made since.
    """
    guard = lock.with_name(f"{lock.name}.clearing")
    if not _is_stale(lock) or not _take(guard):
        return
    with contextlib.suppress(OSError):
        if _is_stale(lock):
            lock.unlink()
    with contextlib.suppress(OSError):
        guard.unlink()


def _take(guard: Path) -> bool:
    """Make *guard*, also in place of one that was left by a process that is gone."""
    if make_file(guard, b""):
        return True
    with contextlib.suppress(OSError):
        if time.time() - guard.stat().st_mtime > _CLEARED_WITHIN_S:
            guard.unlink()
            return make_file(guard, b"")
    return False


def _is_stale(lock: Path) -> bool:
    try:
        holder = _holder(lock.read_bytes())
        if holder is None:  # cut short, or no lock of ours
            return time.time() - lock.stat().st_mtime > _STALE_AFTER_S
    except OSError:
        return False
    pid, host, since = holder
    if host != socket.gethostname():
        return time.time() - since > _STALE_AFTER_S
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it lives, as somebody else
    return False


def _holder(seen: bytes) -> tuple[int, str, float] | None:
    try:
        told = json.loads(seen)
        return int(told["pid"]), str(told["host"]), float(told["since"])
    except (ValueError, KeyError, TypeError):
        return None


def _running(lock: Path) -> BuildRunning:
    holder = None
    with contextlib.suppress(OSError):
        holder = _holder(lock.read_bytes())
    who = f"process {holder[0]} on {holder[1]}" if holder else "another process"
    return BuildRunning(
        f"{who} is building the index; wait for it, or remove {lock} if it is dead"
    )
