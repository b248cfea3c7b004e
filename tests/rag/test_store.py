"""chromadb's folder on file systems that it was not made for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ofa.rag.store import Store

ROOT = Path(__file__).parents[2]

# A file system as many NFS homes are: files like anywhere else, and no locks.
NO_LOCKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int refused(int fd, int deed) {
    char link[64], path[4096];
    if (deed != F_SETLK && deed != F_SETLKW && deed != F_GETLK) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, getenv("NO_LOCKS_IN")) != NULL;
}

#define WITHOUT_LOCKS(name)                                              \
    int name(int fd, int deed, ...) {                                    \
        static int (*real)(int, int, ...);                               \
        va_list rest;                                                    \
        va_start(rest, deed);                                            \
        void *what = va_arg(rest, void *);                               \
        va_end(rest);                                                    \
        if (refused(fd, deed)) { errno = ENOLCK; return -1; }            \
        if (!real) real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, #name); \
        return real(fd, deed, what);                                     \
    }
WITHOUT_LOCKS(fcntl)
WITHOUT_LOCKS(fcntl64)
"""

KEEP = """
import json, logging, sys
from pathlib import Path
import numpy as np
from ofa.rag.store import Row, Store
logging.basicConfig()
with Store(Path(sys.argv[1]), "f" * 64) as store:
    row = Row("1", "text", "a.md", "A", "")
    store.add("hpc", [row], np.eye(1, 8, dtype=np.float32))
    print(json.dumps([store.problem, sorted(store.ids("hpc"))]))
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler makes the stand-in")
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
@pytest.mark.parametrize("before", ["nothing", "a database"])
def test_R053_a_build_works_where_locks_fail(tmp_path, before):
    """Not for ever, as chromadb would: it keeps its files elsewhere and says where."""
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(NO_LOCKS)
    command = ["cc", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"]
    subprocess.run(command, check=True)
    home = tmp_path / "nfs-home"
    if before == "a database":
        Store(home, "f" * 64).close()

    done = subprocess.run(
        [sys.executable, "-c", KEEP, str(home)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(shim), "NO_LOCKS_IN": "nfs-home"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    problem, ids = json.loads(done.stdout)
    assert ids == ["1"]
    assert str(home) in problem and "slow" in problem
    assert f"{home}: chromadb can't use this folder" in done.stderr
    assert not list(tmp_path.glob("*.damaged-*"))
    assert not list(home.glob(".lock-*"))


def test_a_folder_that_cannot_be_made_is_no_end(tmp_path):
    """Where a file is in the way, this build keeps its vectors elsewhere."""
    (tmp_path / "chroma").write_text("in the way")

    with Store(tmp_path / "chroma", "f" * 64) as store:
        assert store.ids("hpc") == set()
        assert str(tmp_path / "chroma") in store.problem
