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
    """Remove a lock whose holder is gone; a live one is left, or put back."""
    try:
        seen = lock.read_bytes()
    except OSError:
        return
    if not _is_stale(seen, lock):
        return
    # By rename, so that of two who found it stale only one takes it away, and neither
    # takes away the lock that the other has just made.
    aside = lock.with_name(f"{lock.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        lock.rename(aside)
        taken = aside.read_bytes()
        if taken != seen:
            make_file(lock, taken)
        aside.unlink()


def _is_stale(seen: bytes, lock: Path) -> bool:
    holder = _holder(seen)
    if holder is None:  # cut short, or no lock of ours
        with contextlib.suppress(OSError):
            return time.time() - lock.stat().st_mtime > _STALE_AFTER_S
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
