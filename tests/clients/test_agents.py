"""
Real clients, configured by `ofa client` alone, against a server with a scripted engine.

Each runs where its command is on the PATH (npm: opencode-ai, @continuedev/cli,
@mariozechner/pi-coding-agent, with Node 22 or newer; pip: aider-chat, llm), and is
skipped elsewhere: the suite installs none of them.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ofa.cli.main import main

from ..running import serving

QUESTION = "What is the answer?"
COMMANDS = {
    "opencode": ["opencode", "run", "-m", "ofa/ofa-hpc", QUESTION],
    "pi": ["pi", "--provider", "ofa", "--model", "ofa-hpc", "-p", QUESTION],
    "continue": ["cn", "-p", QUESTION],
    "aider": ["aider", "--yes-always", "--no-git", "--message", QUESTION],
    "llm": ["llm", "-m", "ofa-hpc", QUESTION],
}
QUIET = {
    "CONTINUE_TELEMETRY_ENABLED": "0",
    "AIDER_ANALYTICS_DISABLE": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "DO_NOT_TRACK": "1",
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give commands and clients a home of the test's own."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def save(setup, home: Path) -> None:
    """Put the files of a printed setup where it says."""
    for file in setup["files"]:
        path = Path(file["path"].replace("~", str(home)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"])


def run(command, home: Path, **options) -> subprocess.CompletedProcess:
    """Run *command* in an empty folder, with nothing on standard input by default."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        command,
        cwd=work,
        env={**os.environ, **QUIET},
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
        **(options or {"stdin": subprocess.DEVNULL}),
    )


@pytest.mark.parametrize("client", COMMANDS)
def test_it_answers_with_what_is_printed_for_it(client, home, capsys, monkeypatch):
    """The files as printed, the key as said, and the scripted answer comes out."""
    command = COMMANDS[client]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    with serving(home, ["The answer is 42."]) as server:
        assert main(["client", client, "--json"]) == 0
        setup = json.loads(capsys.readouterr().out)
        save(setup, home)
        if client == "continue":
            assert run(["sh", "-c", setup["commands"][0]], home).returncode == 0
        elif client == "aider":
            monkeypatch.setenv("OPENAI_API_KEY", server.key)
        elif client == "llm":  # asks for the key; without a terminal it reads a line
            keys = ["llm", "keys", "set", "ofa"]
            assert run(keys, home, input=f"{server.key}\n").returncode == 0
        done = run(command, home)

    assert done.returncode == 0, done.stderr
    assert "The answer is 42." in done.stdout
