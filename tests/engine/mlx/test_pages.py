"""Huge pages: asked for where the worker starts, and got for what MLX allocates."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ofa.engine.mlx.pages import with_huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ROLLUP = Path("/proc/self/smaps_rollup")
GIVEN = (
    SETTING.exists()
    and "[madvise]" in SETTING.read_text()
    and ROLLUP.exists()
    and "AnonHugePages" in ROLLUP.read_text()
    and platform.libc_ver() >= ("glibc", "2.35")
)
HUGE_MIB = """
import re
from ofa.engine.mlx.blas import load_blas
load_blas()
import mlx.core as mx
weights = mx.random.normal((4096, 4096))
mx.eval(weights, weights @ weights[0])
rollup = open("/proc/self/smaps_rollup").read()
print(int(re.search(r"AnonHugePages: +([0-9]+) kB", rollup)[1]) // 1024)
"""


@pytest.mark.parametrize(
    ("told", "then"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=2:a.b=1", "glibc.malloc.hugetlb=2:a.b=1"),
    ],
)
def test_a_choice_that_was_made_stays(told, then):
    """Other tunables are kept, and so is everything else."""
    env = {"PATH": "/bin"} if told is None else {"PATH": "/bin", "GLIBC_TUNABLES": told}
    before = dict(env)

    assert with_huge_pages(env) == {"PATH": "/bin", "GLIBC_TUNABLES": then}
    assert env == before


@pytest.mark.skipif(not GIVEN, reason="this system gives no huge pages to who asks")
def test_what_mlx_allocates_lies_in_huge_pages():
    """64 MiB of weights: none as a process starts, most of them where it was told."""

    def huge_mib(env):
        done = subprocess.run(
            [sys.executable, "-c", HUGE_MIB], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    env = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    assert huge_mib(env) == 0
    assert huge_mib(with_huge_pages(env)) >= 32
