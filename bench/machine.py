"""What the figures were measured on: machine and versions, but no host's name."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from .servers import ROOT, SILENT

_PACKAGES = ("mlx", "mlx-lm", "mkl", "cmeel-openblas", "flask", "waitress", "numpy")
_BLAS = """
from ofa.engine.mlx.blas import load_blas
print(load_blas())
"""
_TOUCHED = 0.75  # of what is free
_TOUCH = """
import mmap, sys
from ofa.engine.mlx.memory import available_bytes
size = int(available_bytes() * float(sys.argv[1]))
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
for place in range(0, size, mmap.PAGESIZE):
    memory[place] = 1
print(f"{size / 2**30:.0f} GiB")
"""


def describe(model: str) -> dict[str, str]:
    """Return the facts, in the order in which they are shown."""
    return {
        "processor": f"{processor()}, {cores()} cores given",
        "memory": f"{_memory_gib():.0f} GiB",
        "load before": " ".join(f"{one:.1f}" for one in os.getloadavg()),
        "system": f"{_system()}, {platform.machine()}",
        "Python": platform.python_version(),
        "ofa": f"{_version('ofa')} ({_commit()})",
        **{name: _version(name) for name in _PACKAGES if _version(name)},
        "BLAS": _blas(),
        "model": model,
    }


def touch_memory() -> str:
    """
    Have most of the free memory written to once; return how much that was.

    A virtual machine gets a page from its host when it first writes to it, which takes
    ten times as long as later: whoever is measured first would pay for all.
    """
    return _output([sys.executable, "-c", _TOUCH, str(_TOUCHED)])


def slug() -> str:
    """Return a short name of the machine for a file's name."""
    words = re.sub(r"\(r\)|\(tm\)|cpu|processor|@.*", " ", processor().lower())
    return re.sub(r"[^a-z0-9]+", "-", f"{words} {cores()} cores").strip("-")


def processor() -> str:
    """Return the processor's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or "unknown"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown"


def cores() -> int:
    """Return how many cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        name = platform.platform()
    libc = " ".join(platform.libc_ver())
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{name}, Linux {kernel}, {libc}" if libc.strip() else name


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    commit = _output(["git", "rev-parse", "--short", "HEAD"]) or "no commit"
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no", "ofa"])
    return f"{commit}, changed since" if changed else commit


def _blas() -> str:
    """Return what a process of its own loads: nothing is loaded into this one."""
    return _output([sys.executable, "-c", _BLAS]) or "unknown"


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **SILENT},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
