"""
Load an optimised BLAS before mlx is imported, on a Linux CPU.

MLX's CPU wheel is linked to the reference BLAS, 5 GFLOP/s on two cores where MKL
has 270. A library loaded first with RTLD_GLOBAL answers its calls instead. Only
float32 products go through BLAS, so that is the right type there. Knows nothing of
models; measures nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from ...heavy import allotted_threads

_MKL_GNU_THREADING = 3  # MKL_THREADING_GNU of mkl_service.h
_MKL_SEQUENTIAL = 1  # MKL_THREADING_SEQUENTIAL
_MKL_CBWR_AUTO = 2  # of mkl_types.h: the best code path, chosen once for all calls
_SPINS = 1000  # turns of libgomp's waiting loop, some 20 µs


@dataclass(frozen=True)
class Blas:
    """What was loaded: *library* is empty when nothing was, and *reason* says why."""

    library: str = ""
    version: str = ""
    threads: int = 0
    path: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if not self.library:
            return f"no optimised BLAS: {self.reason}"
        return f"{self.library} {self.version}, threads: {self.threads}"


@dataclass(frozen=True)
class _Library:
    """A package that brings a BLAS, and how its thread count is set."""

    package: str
    file: str  # the pattern of the file's name
    start: Callable[[ctypes.CDLL, int], int]  # (library, threads) -> threads in force


@cache
def load_blas() -> Blas:
    """
    Load the best BLAS among the installed packages; say what was loaded, or why not.

    Call it before anything imports mlx. The first call's answer stands. Looks, in
    this order, for the packages mkl (x86-64 only) and cmeel-openblas. The latter
    slows torch in the same process (a MiniLM query from 11 to 190 ms).
    """
    reason = _reason_against(sys.platform, sys.modules, _installed())
    if reason:
        return Blas(reason=reason)
    failures = []
    for library in _LIBRARIES:
        found = _find(library)
        if found is None:
            continue
        path, version = found
        try:
            threads = library.start(
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL), allotted_threads()
            )
        except (OSError, AttributeError) as exc:
            failures.append(f"{library.package} {version}: {exc}")
            continue
        return Blas(library.package, version, threads, str(path))
    return Blas(reason="; ".join(failures) or _NONE_INSTALLED)


def _reason_against(
    platform: str, modules: Mapping[str, object], installed: frozenset[str]
) -> str:
    if platform != "linux":
        return f"not needed on {platform}"
    if any(name.startswith("mlx-cuda") for name in installed):
        return "not needed: mlx is built for CUDA"
    if "mlx.core" in modules:
        return "mlx was imported first, so its own BLAS is bound already"
    return ""


def _installed() -> frozenset[str]:
    """Return the normalised names of the mlx packages that are installed."""
    names = (dist.metadata["Name"] for dist in metadata.distributions())
    normal = (re.sub(r"[-_.]+", "-", name).lower() for name in names if name)
    return frozenset(name for name in normal if name.startswith("mlx"))


def _find(library: _Library) -> tuple[Path, str] | None:
    """Return the library's path and package version, without importing anything."""
    try:
        package = metadata.distribution(library.package)
    except metadata.PackageNotFoundError:
        return None
    for file in package.files or ():
        if re.fullmatch(library.file, file.name):
            path = Path(str(package.locate_file(file))).resolve()
            if path.is_file():
                return path, package.version
    return None


def _start_mkl(mkl: ctypes.CDLL, threads: int) -> int:
    _limit_spinning()
    # MKL aborts the process when the threading library it was told to use is absent.
    # GNU's is the one torch uses, too: Intel's beside it would double the threads.
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        mkl.MKL_Set_Threading_Layer(_MKL_SEQUENTIAL)
        threads = 1
    else:
        mkl.MKL_Set_Threading_Layer(_MKL_GNU_THREADING)
        mkl.MKL_Set_Num_Threads(threads)
    # Left to itself, MKL shares a product of few rows out so badly on AMD's processors
    # that two threads take as long as one: 116 ms for eight rows of an output layer
    # that take 63 so. Intel's keep what MKL's makers chose for them.
    if _is_amd() and "MKL_CBWR" not in os.environ:
        mkl.MKL_CBWR_Set(_MKL_CBWR_AUTO)
    return int(mkl.MKL_Get_Max_Threads())


def _limit_spinning() -> None:
    """
    Have idle threads sleep soon: this process has other work for its cores, and so have
    shared nodes. With both cores contended, prefill was 2 to 6 times faster so.

    From one product of an answer's step to the next they stay awake, as waking them
    takes longer than most products. libgomp reads this when it is loaded; with more
    threads than cores it spins a thousand turns if active, and else not at all. What
    the user chose stands.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False


def _start_openblas(openblas: ctypes.CDLL, threads: int) -> int:
    openblas.openblas_set_num_threads(threads)
    return int(openblas.openblas_get_num_threads())


_LIBRARIES = (
    _Library("mkl", r"libmkl_rt\.so(\.\d+)*", _start_mkl),
    _Library("cmeel-openblas", r"libopenblas\.so(\.\d+)*", _start_openblas),
)
_NONE_INSTALLED = "neither mkl nor cmeel-openblas is installed (pip install mkl)"
