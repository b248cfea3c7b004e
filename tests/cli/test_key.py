"""`ofa key`: the key is shown to a terminal's user, and to nothing else by accident."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ofa.auth import KeyFile, KeyFileError
from ofa.cli import key as command
from ofa.cli.common import key_file_of, state_of
from ofa.cli.parser import Parser
from ofa.config import load

ROOT = Path(__file__).parent.parent.parent

MAIN = """
import sys
from ofa.cli import key
from ofa.cli.parser import Parser
parser = Parser()
key.add(parser.add_subparsers())
args = parser.parse_args(sys.argv[1:])
sys.exit(args.func(args))
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Give the command a state folder of this test's own."""
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run(*words):
    """Run `ofa key` with *words*."""
    parser = Parser()
    command.add(parser.add_subparsers())
    args = parser.parse_args(["key", *words])
    return args.func(args)


def made(folder):
    """Make a key and return its text."""
    key_file = KeyFile(folder / ".ofa_api_key")
    key_file.ensure()
    return key_file.read()[0]


def test_path_says_where_the_key_is(state, capsys):
    """Also before there is one."""
    assert run("path") == 0
    assert capsys.readouterr().out == f"{state}/.ofa_api_key\n"


def test_path_follows_the_configuration(state, capsys, monkeypatch):
    """A key file of one's own, by file, variable or flag."""
    monkeypatch.setenv("OFA_SERVER_KEY_FILE", str(state / "variable"))
    run("path")
    run("path", "--key-file", str(state / "flag"))

    assert capsys.readouterr().out == f"{state}/variable\n{state}/flag\n"


def test_N6_show_prints_nothing_into_a_pipe(state, capsys):
    """A job's output file is read by others; the remedy is named."""
    key = made(state)

    assert run("show") == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--force" in captured.err
    assert key[:12] not in captured.err


def test_show_forced_prints_the_key(state, capsys):
    """For `ofa key show --force | pbcopy`."""
    key = made(state)

    assert run("show", "--force") == 0
    assert capsys.readouterr().out == f"{key}\n"


def test_show_prints_to_a_terminal(state):
    """A person at a terminal sees the key without more ado."""
    key = made(state)
    ours, theirs = pty.openpty()

    done = subprocess.run(
        [sys.executable, "-c", MAIN, "key", "show"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)

    assert (done.returncode, done.stderr) == (0, b"")
    assert shown.split() == [key]


def test_show_without_a_key_is_refused(state):
    """Showing makes none: the line says what does."""
    with pytest.raises(KeyFileError, match="is missing: `ofa key rotate`"):
        run("show", "--force")
    assert list(state.iterdir()) == []


def test_rotate_makes_a_new_key_and_does_not_print_it(state, capsys):
    """The path is enough for whoever may read it."""
    before = made(state)

    assert run("rotate") == 0

    (after,) = KeyFile(state / ".ofa_api_key").read()
    captured = capsys.readouterr()
    assert after != before
    assert str(state / ".ofa_api_key") in captured.out
    assert after[:12] not in captured.out + captured.err


def test_N5_no_option_takes_the_key_itself(state):
    """A process's command line can be read by every user of the node."""
    for word in ("--api-key", "--key", "--token"):
        with pytest.raises(SystemExit):
            run("show", word, "ofa-x")


def test_the_servers_parts_are_found_by_the_same_rule(tmp_path):
    """What the server uses is what the command shows."""
    state = state_of({"OFA_SCRATCH": str(tmp_path)})

    by_default = key_file_of(load(None, {}, {}), state)
    by_key = key_file_of(load(None, {}, {"server.key_file": "/x/key"}), state)

    assert by_default.path == tmp_path / ".ofa_api_key"
    assert by_key.path == Path("/x/key")
