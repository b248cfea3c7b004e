"""
What Linux says of a process: memory, descriptors, processor time, descendants.

Reads /proc and nothing else, so no measured process has to know of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_S = 0.5  # without work for so long means idle
_SAMPLE_S = 0.02
_IDLE_SHARE = 0.1  # of a core within a sample; a server's own loop takes a hundredth


def rss_bytes(pid: int) -> int:
    """Return the resident memory of *pid*."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def descriptors(pid: int) -> int:
    """Return how many files and sockets *pid* has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def cpu_s(pid: int) -> float:
    """Return the processor time that *pid* took so far, in steps of a tick."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def tree(pid: int) -> list[int]:
    """Return *pid* and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for other, parent in _parents():
        children.setdefault(parent, []).append(other)
    found = [pid]
    for known in found:  # grows while it is walked
        found += children.get(known, ())
    return found


def is_alive(pid: int) -> bool:
    """Return whether *pid* runs; one that ended and was not waited for does not."""
    try:
        return _stat(pid)[0] not in ("Z", "X")
    except OSError:
        return False


def worker_of(pid: int) -> int:
    """Return who does the work of the server *pid*: its largest living process."""
    sizes = {}
    for each in tree(pid):
        with suppress(OSError):  # it ended meanwhile
            sizes[each] = rss_bytes(each)
    return max(sizes, key=sizes.__getitem__, default=pid)


def wait_idle(pid: int, limit_s: float) -> float | None:
    """
    Wait until the tree of *pid* does no work; return when that began, None if never.

    The time is `time.perf_counter`'s. Work is the time that any thread ran or stood in
    line for a core, in nanoseconds; half a second without counts as idle.
    """
    until = time.perf_counter() + limit_s
    family = tree(pid)
    since, before = time.perf_counter(), _work_ns(family)
    last = since
    while last < until:
        time.sleep(_SAMPLE_S)
        now, work = time.perf_counter(), _work_ns(family)
        if (work - before) / 1e9 > _IDLE_SHARE * (now - last):
            since = now
        elif now - since >= _QUIET_S:
            return since
        last, before = now, work
    return None


def is_busy(pid: int, within_s: float = 0.1) -> bool:
    """Return whether the tree of *pid* works now."""
    family = tree(pid)
    before, began = _work_ns(family), time.perf_counter()
    time.sleep(within_s)
    spent = (_work_ns(family) - before) / 1e9
    return spent > _IDLE_SHARE * (time.perf_counter() - began)


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Look every 20 ms whether *condition* holds; return whether it came to hold."""
    until = time.perf_counter() + limit_s
    while not condition():
        if time.perf_counter() >= until:
            return False
        time.sleep(_SAMPLE_S)
    return True


def _work_ns(pids: Iterable[int]) -> int:
    """
    Return nanoseconds of all threads alive in *pids*, on a core and in line for one.

    On a crowded machine a thread that waits for its turn is anything but idle.
    """
    total = 0
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    ran, waited, _ = (task / "schedstat").read_text().split()
                    total += int(ran) + int(waited)
    return total


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                yield int(folder.name), int(_stat(int(folder.name))[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
