"""
VS Code itself, in a browser, with the file that `ofa byok write` makes.

Runs where $OFA_TEST_CODE_SERVER is the folder of npm's code-server (4.139 or newer, its
lib/vscode installed, playwright-core beside it), and a chromium and a Node that it can
run on (24) are on the PATH; is skipped elsewhere. See docs/decisions.md for the recipe.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from ofa.cli.main import main

from ..running import serving

CODE_SERVER = os.environ.get("OFA_TEST_CODE_SERVER", "")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
SCRIPT = Path(__file__).parent / "vscode.mjs"
ANSWER = "It used 42 gigabytes."

pytestmark = [
    pytest.mark.skipif(
        not (CODE_SERVER and CHROMIUM and shutil.which("node")),
        reason="needs $OFA_TEST_CODE_SERVER, chromium and node",
    ),
    pytest.mark.timeout(300),
]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give everything a home of the test's own, with code-server's User folder."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".local/share/code-server/User").mkdir(parents=True)
    return tmp_path


@contextmanager
def code_server(work: Path):
    """Run code-server on a free port; yield its URL for the folder *work*."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [
            "node",
            f"{CODE_SERVER}/out/node/entry.js",
            *("--auth", "none", "--bind-addr", f"127.0.0.1:{port}"),
            *("--disable-telemetry", "--disable-update-check"),
            "--disable-workspace-trust",
            str(work),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/healthz")
        yield f"http://127.0.0.1:{port}/?folder={work}"
    finally:
        child.terminate()
        child.wait(20)


def wait_for(url: str) -> None:
    """Return once something answers at *url*; nothing tells us otherwise."""
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"nothing answers at {url}")


def test_the_written_file_makes_a_chat_work(home, capsys):
    """All modes are listed, one is chosen and asked in Agent mode, its answer shown."""
    work = home / "work"
    work.mkdir()
    question = "How much memory did my job use?"
    screen = home / "screen.png"  # to be looked at where this fails
    with serving(home, [ANSWER]):
        assert main(["byok", "write"]) == 0
        with code_server(work) as url:
            done = subprocess.run(
                ["node", SCRIPT, CODE_SERVER, CHROMIUM, url, question, ANSWER, screen],
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )

    assert done.returncode == 0, done.stderr
    assert "wrote 8 models" in capsys.readouterr().out
    path = home / ".local/share/code-server/User/chatLanguageModels.json"
    assert json.loads(path.read_text())[0]["name"] == "OFA"
