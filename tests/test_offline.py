"""What must not be needed: a network, file locks, SQLite, the engine's libraries."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Notes what a process asks of networks and locks.
HOOK = """
import json, sys, threading, time
from pathlib import Path

seen = []
def hook(event, args):
    if event in ("socket.connect", "socket.sendto"):
        seen.append(str(args[1]))
    elif event == "socket.getaddrinfo" and not str(args[0]).replace(".", "").isdigit():
        seen.append(str(args[0]))  # a numeric address asks nobody
    elif event in ("fcntl.flock", "fcntl.lockf"):
        seen.append(event)
sys.addaudithook(hook)
"""

# Serves an index, asks a question; then tells what the process has done.
SERVE = f"""{HOOK}
folder = Path(sys.argv[1])
from tests.running import Client, serving
with serving(folder, [[{{"echo": "last_user"}}]], rag__enabled=True) as client:
    for _ in range(200):
        body = {{"model": "ofa-hpc", "messages": [{{"role": "user", "content":
                "Which partition is for long jobs?"}}]}}
        status, headers, answer = client.chat(body)
        retrieval = client.running.retrieval
        if not retrieval.problems():
            break
        time.sleep(0.2)
    status, headers, answer = client.chat(body)
print(json.dumps({{"status": status, "rag": headers["x-ofa-rag"], "seen": seen,
                   "modules": sorted(sys.modules)}}))
"""

INDEX = f"""{HOOK}
from ofa.cli.main import main
code = main(["index", "build", "hpc"])
print(json.dumps({{"code": code, "seen": seen, "modules": sorted(sys.modules)}}))
"""


def run(code: str, *arguments: str, **env: str) -> str:
    """Run *code* in a process of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return what a process that serves a small index has touched."""
    folder = tmp_path_factory.mktemp("offline")
    documents = folder / "documents"
    documents.mkdir()
    (documents / "partitions.md").write_text(
        "# Partitions\n\nThe partition for long jobs is called tortoise.\n"
    )
    sources = folder / "sources.toml"
    sources.write_text(
        f'[hpc]\ntitle = "HPC"\n[[hpc.places]]\nlabel = "d"\nroots = ["{documents}"]\n'
    )
    env = {
        "HOME": str(folder),
        "OFA_SCRATCH": str(folder / "state"),
        "OFA_RAG_SOURCES": str(sources),
    }
    built = json.loads(run(INDEX, **env).splitlines()[-1])
    return {**json.loads(run(SERVE, str(folder), **env)), "built": built}


def test_R052_nothing_is_looked_up_or_called(served):
    """No address but loopback in a start, a search with MiniLM and an answer."""
    assert served["status"] == 200
    assert served["rag"].startswith("hit; n=1")
    assert "words alone" not in served["rag"]
    assert outside(served["seen"]) == []


def test_R052_a_build_calls_nobody_either(served):
    """Neither chromadb's telemetry nor a hub: not even a name is looked up."""
    built = served["built"]

    assert built["code"] == 0
    assert {"chromadb", "sentence_transformers"} <= set(built["modules"])
    assert outside(built["seen"]) == []


def outside(seen):
    """Return the addresses in *seen* that are not this machine's."""
    return [
        where for where in seen if "127.0.0.1" not in where and "fcntl" not in where
    ]


def test_R053_serving_needs_no_lock_and_no_database(served):
    """On a file system without locks a server answers: SQLite is for builds only."""
    assert not [event for event in served["seen"] if event.startswith("fcntl")]
    assert "chromadb" not in served["modules"]
    assert "sqlite3" not in served["modules"]


WITHOUT_MLX = """
import sys
for name in ("mlx", "mlx.core", "mlx_lm"):
    sys.modules[name] = None
from pathlib import Path
from tests.running import serving
with serving(Path(sys.argv[1])) as client:
    print(client.chat({"model": "ofa-hpc",
          "messages": [{"role": "user", "content": "hi"}]})[0])
"""


def test_R071_all_but_the_engine_works_where_mlx_cannot_be_installed(tmp_path):
    """On an older glibc everything serves, with an engine elsewhere."""
    assert run(WITHOUT_MLX, str(tmp_path), HOME=str(tmp_path)).strip() == "200"


def test_R071_the_guide_says_so_first():
    """Who can't install MLX reads of the container and the upstream."""
    guide = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")

    assert "2.35" in guide and "Apptainer" in guide and "upstream" in guide


def test_R071_the_set_up_leaves_mlx_out_on_an_old_glibc(tmp_path):
    """scripts/environment asks the C library before it asks pip."""
    fake = tmp_path / "python"
    fake.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c "
        '\'import platform, sys; platform.libc_ver = lambda: ("glibc", "2.28"); '
        "exec(sys.stdin.read())'\n"
    )
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", f". scripts/environment; engine_extra {fake}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "none"
