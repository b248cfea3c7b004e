"""The command line itself: quick, and silent about what it is given by mistake."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from ofa.cli.main import GROUPS, main, make_parser

ROOT = Path(__file__).parent.parent.parent
SECRET = "ofa-S3cretS3cretS3cretS3cretS3cretS3cretS3cret4"


def parsers(parser=None, words=()):
    """Yield every parser with the words that lead to it."""
    parser = parser or make_parser()
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers(inner, (*words, name))


def refused(words, capsys) -> str:
    """Return what is said to *words*, which must be refused."""
    with pytest.raises(SystemExit) as stop:
        make_parser().parse_args(words)
    assert stop.value.code == 2, words
    out, err = capsys.readouterr()
    return out + err


COMMANDS = [words for words, _ in parsers()]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_N5_a_key_given_by_mistake_is_never_repeated(words, capsys):
    """No option takes it, and a job's log is read by others."""
    for wrong in (
        ["--api-key", SECRET],
        [f"--api-key={SECRET}"],
        ["--key", SECRET],
        [f"-k{SECRET}"],
        [f"--{SECRET}"],
        ["--help-me", SECRET, SECRET],
    ):
        assert SECRET not in refused([*words, *wrong], capsys), wrong


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_wrong_value_is_never_repeated(words, capsys):
    """Of numbers, choices and switches: the option is named, not what it got."""
    parser = next(p for w, p in parsers() if w == words)
    for action in parser._actions:
        for option in action.option_strings:
            takes_any = action.nargs is None and action.type in (None, str, Path)
            if takes_any and not action.choices:
                continue
            if option.startswith("--"):
                told = refused([*words, f"{option}={SECRET}"], capsys)
                assert SECRET not in told, option
                assert option in told


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_abbreviates(words):
    """`--key KEY` must not be read as `--key-file KEY`."""
    parser = next(p for w, p in parsers() if w == words)

    assert parser.allow_abbrev is False


def test_a_wrong_command_is_told_those_there_are(capsys):
    """Without the word itself, which may be a key before its option."""
    assert main([SECRET]) == 2
    err = capsys.readouterr().err
    assert SECRET not in err
    assert "'serve'" in err


def test_an_unknown_options_name_is_told(capsys):
    """A typing error is found by it."""
    assert main(["serve", "--prot", "80"]) == 2
    assert "unknown arguments: --prot\n" in capsys.readouterr().err


def test_upstreams_flag_for_serving_still_works(capsys):
    """Launchers call `ofa --serve …`."""
    assert main(["--serve", "--help"]) == 0
    assert "usage: ofa serve" in capsys.readouterr().out


def test_a_latin_1_terminal_gets_what_it_can_show(tmp_path):
    """Whatever characters an answer or a title holds."""
    env = {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT), "PATH": "/bin"}
    words = [sys.executable, "-m", "ofa", "byok", "print", "--port", "1027"]
    env |= {"OFA_SERVER_AUTH": "false", "OFA_SITE_NAME": "Caf\u00e9 \u2014 \u5317"}
    env["OFA_SCRATCH"] = str(tmp_path)
    done = subprocess.run(words, env=env, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert b'"OFA (Caf\xe9 ? ?)"' in done.stdout


def test_the_summaries_are_the_groups_own(capsys):
    """They stand twice, so that --help imports no group; here they are compared."""
    whole = make_parser().format_help()

    assert make_parser(()).format_help() == whole
    assert all(f" {group} " in whole for group in GROUPS)


def test_help_imports_nothing_heavy():
    """It is typed to look something up: 0.3 s at most on an idle machine."""
    code = (
        "import sys; from ofa.cli.main import main; main(['--help']);"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].split())

    assert "ofa.cli.parser" in loaded
    assert not loaded & {"numpy", "httpx", "flask", "logging", "tomllib", "ofa.config"}


def test_one_command_imports_only_its_group():
    """Asking a question needs no index and no server."""
    code = (
        "import sys; from ofa.cli.main import main; main(['ask', '--help']);"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].split())

    assert "ofa.cli.ask" in loaded
    assert not loaded & {"numpy", "httpx", "flask", "ofa.cli.index", "ofa.cli.serve"}


@pytest.mark.parametrize(
    "words",
    [
        ["ask", "hpc", "--json", "a question"],
        ["ask", "--json", "hpc", "a question"],
        ["ask", "hpc", "a question", "--json"],
        ["ask", "hpc", "--no-stream", "a", "question"],
    ],
    ids=" ".join,
)
def test_a_question_may_stand_on_either_side_of_options(words):
    """People put options where they think of them."""
    args = make_parser(words).parse_args(words)

    assert " ".join(args.question) == "a question"
    assert args.mode == "hpc"
