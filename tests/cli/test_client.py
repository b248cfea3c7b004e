"""`ofa client`: what to put where, for people and for scripts, never the key."""

import json

import pytest

from ofa.cli.main import main
from ofa.clients import names

from ..running import serving


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give the command the state folder of the test's own server."""
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("client", names())
def test_no_key_is_printed(home, capsys, client):
    """It is named by its file; what can't connect ends with 1."""
    with serving(home) as server:
        code = main(["client", client])

    out, err = capsys.readouterr()
    assert code == (1 if client in ("claude-code", "codex") else 0)
    assert server.key[:12] not in out + err
    assert f"http://127.0.0.1:{server.port}/v1" in out
    assert ("can't connect directly" in err) == (code == 1)


def test_files_paths_and_commands_are_told_apart(home, capsys):
    """What to save, where, and what to run."""
    with serving(home):
        main(["client", "aider"])

    out = capsys.readouterr().out
    heads = [line for line in out.splitlines() if line.startswith("---")]
    assert heads == [
        "--- ~/.aider.conf.yml ---",
        "--- ~/.aider.model.metadata.json ---",
        "--- run ---",
    ]


def test_scripts_get_json(home, capsys):
    """With the server's own limits."""
    with serving(home):
        assert main(["client", "pi", "--json", "--port", "45000"]) == 0

    made = json.loads(capsys.readouterr().out)
    (file,) = made["files"]
    provider = json.loads(file["content"])["providers"]["ofa"]
    assert provider["baseUrl"] == "http://127.0.0.1:45000/v1"
    assert provider["models"][0]["maxTokens"] == 8192


def test_guesses_are_said_to_be_guesses(home, capsys):
    """The server does not run."""
    assert main(["client", "llm", "--port", "1027"]) == 0

    out, err = capsys.readouterr()
    assert "http://127.0.0.1:1027/v1" in out
    assert "guessed" in err


def test_without_a_port_the_remedy_is_named(home, capsys):
    """No server has run, so nothing is known of it."""
    assert main(["client", "llm"]) == 78
    assert "--port" in capsys.readouterr().err


def test_an_unknown_client_is_a_wrong_argument(home, capsys):
    """Those there are, are named."""
    assert main(["client", "emacs"]) == 2
    assert "'opencode'" in capsys.readouterr().err
