"""`ofa ask`: a question from the shell, the answer on standard output."""

import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ofa.chat import End, Text, Usage
from ofa.cli.main import main
from ofa.engine.base import Status

from ..children import NOBODY, as_root_only
from ..running import serving
from ..web_fakes import KEY, FakeAnswerer, FakeReply, Site

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give the command the state folder of the test's own server; no standard input."""
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


def command(*words: str) -> list[str]:
    """Return what starts `ofa` with *words* as a process."""
    return [sys.executable, "-m", "ofa", *words]


def run(*words: str, **options):
    """Run `ofa` as a process, with text in and out."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(*words),
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_an_answer_is_printed_whole(home, capsys):
    """By the mode's short name, with a line's end where the model gave none."""
    with serving(home, ["The answer — 42."]):
        assert main(["ask", "hpc", "What is it?"]) == 0

    assert capsys.readouterr() == ("The answer — 42.\n", "")


def test_the_words_need_no_quotes(home, capsys):
    """As people type at a prompt."""
    with serving(home, [[{"echo": "last_user"}]]):
        assert main(["ask", "ofa-hpc", "how", "are", "you?"]) == 0

    assert capsys.readouterr().out == "how are you?\n"


@pytest.mark.parametrize("words", [["-"], []])
def test_the_question_may_come_by_standard_input(home, capsys, monkeypatch, words):
    """For a long one, and for scripts."""
    monkeypatch.setattr("sys.stdin", io.StringIO("from a file\n"))
    with serving(home, [[{"echo": "last_user"}]]):
        assert main(["ask", "hpc", *words]) == 0

    assert capsys.readouterr().out == "from a file\n"


def test_what_is_piped_in_goes_before_the_question(home):
    """`cat job.err | ofa ask hpc "Why?"`: the text, then what to do with it."""
    with serving(home, [[{"echo": "last_user"}]]):
        done = run("ask", "hpc", "Why?", input="error: 12\n")

    assert (done.returncode, done.stdout) == (0, "error: 12\n\nWhy?\n")


def test_a_daemons_standard_input_is_not_waited_for(home):
    """Under cron it is /dev/null."""
    with serving(home, [[{"echo": "last_user"}]]):
        done = run("ask", "hpc", "Why?", stdin=subprocess.DEVNULL)

    assert done.stdout == "Why?\n"


def test_a_closed_standard_input_is_none(home):
    """As some job starters leave it."""
    words = " ".join([sys.executable, "-m", "ofa", "ask", "hpc"])
    with serving(home, [[{"echo": "last_user"}]]):
        asked = shell(f"{words} Why? <&-")
        empty = shell(f"{words} <&-")

    assert (asked.returncode, asked.stdout) == (0, "Why?\n")
    assert (empty.returncode, empty.stderr.count("no question")) == (1, 1)


def shell(line: str):
    """Run a line of the shell's."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["/bin/sh", "-c", line]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_terminal_is_told_how_to_end(home):
    """A person who forgot the question would wait for nothing."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with serving(home, [[{"echo": "last_user"}]]):
        child = subprocess.Popen(
            command("ask", "hpc"),
            env=env,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with child:
            assert "Ctrl-D" in child.stderr.readline()
            os.write(ours, b"typed\n\x04")
            assert child.stdout.read() == "typed\n"
    os.close(ours)
    os.close(theirs)


def test_no_question_is_refused(home, capsys):
    """Before anything is asked of a server."""
    assert main(["ask", "hpc"]) == 1
    assert "no question" in capsys.readouterr().err


def test_it_streams(home):
    """The first words are there while the model still writes."""
    script = [[{"text": "first "}, {"wait_s": 30}, {"text": "last"}]]
    with serving(home, script):
        child = subprocess.Popen(
            command("ask", "hpc", "x"),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A suite that was started in the background ignores Ctrl-C, and so would
            # the child: a shell starts its background jobs so.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        with child:
            assert child.stdout.read(6) == b"first "
            child.send_signal(signal.SIGINT)
            rest, said = child.communicate(timeout=10)

    assert (child.returncode, rest) == (130, b"")
    assert b"Traceback" not in said


def test_the_reader_may_leave(home):
    """`ofa ask … | head -1` is no failure worth a traceback."""
    script = [
        [{"text": "line\n"}, {"wait_s": 0.02, "times": 20}, {"text": "x\n" * 9999}]
    ]
    with serving(home, script):
        child = subprocess.Popen(
            command("ask", "hpc", "x"),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with child:
            assert child.stdout.readline() == b"line\n"
            child.stdout.close()
            said = child.stderr.read()
            child.wait(20)

    assert b"Traceback" not in said
    assert b"Exception" not in said


def test_json_is_one_object(home, capsys):
    """With all that a script may want to know."""
    with serving(home, ["yes"]):
        assert main(["ask", "code", "x", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["answer"], told["finish_reason"]) == (
        "code",
        "yes",
        "stop",
    )
    assert told["usage"]["completion_tokens"] == 1
    assert (told["rag"], told["sources"]) == ("skipped; retrieval is off", [])


def test_a_cut_answer_is_told(home, capsys):
    """At the limit of one answer; the text is there all the same."""
    with serving(home, [[{"text": "half"}, {"end": "length"}]]):
        assert main(["ask", "hpc", "x", "--no-stream"]) == 0

    out, err = capsys.readouterr()
    assert out == "half\n"
    assert "cut at the limit" in err


def test_an_unknown_mode_names_those_there_are(home, capsys):
    """The server's words."""
    with serving(home):
        assert main(["ask", "nope", "x"]) == 1

    assert "ofa-openfoam" in capsys.readouterr().err


def test_a_failure_in_the_middle_is_no_success(home, capsys):
    """What came is printed; exit code 1 says that it is not all."""
    with serving(home, [[{"text": "half"}, {"fail": "out of memory"}]]):
        assert main(["ask", "hpc", "x"]) == 1

    out, err = capsys.readouterr()
    assert out.startswith("half")
    assert "out of memory" in err


def test_without_any_server_the_remedy_is_named(home, capsys):
    """Nothing was ever started here."""
    assert main(["ask", "hpc", "x"]) == 78
    assert "`ofa serve`" in capsys.readouterr().err


def test_a_stale_port_is_told_at_once(home, capsys):
    """The server is gone, its port file is not."""
    with serving(home) as client:
        port = client.port

    assert main(["ask", "hpc", "x"]) == 1
    assert f"no server is running on port {port}" in capsys.readouterr().err


def test_another_server_may_be_named(home, capsys):
    """On another machine, or through a tunnel of another number."""
    with serving(home, ["here"]) as client:
        (home / "state" / ".ofa_serve_port").unlink()
        url = f"http://127.0.0.1:{client.port}/v1"
        assert main(["ask", "hpc", "x", "--url", url]) == 0
        assert main(["ask", "hpc", "x", "--port", str(client.port)]) == 0

    assert capsys.readouterr().out == "here\nhere\n"


def test_a_server_without_keys_is_asked_without_one(home, capsys, monkeypatch):
    """There is no key file then, and none is needed."""
    with serving(home, server__auth=False) as client:
        (home / "state" / ".ofa_api_key").unlink(missing_ok=True)
        assert client.key == ""
        assert main(["ask", "hpc", "x"]) == 0

    assert capsys.readouterr().out == "ok\n"


def test_a_terminal_is_not_given_control_sequences(home):
    """A document or a model may hold them; a pipe gets every byte."""
    nasty = "a\x1b]0;title\x07b\x9b31mc\td\n"
    with serving(home, [nasty, nasty]):
        ours, theirs = pty.openpty()
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            command("ask", "hpc", "x"),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            timeout=60,
            check=True,
        )
        os.close(theirs)
        shown = os.read(ours, 4096).decode()
        os.close(ours)
        piped = run("ask", "hpc", "x", stdin=subprocess.DEVNULL).stdout

    assert shown.split("\r\n")[0].expandtabs() == "a]0;titleb31mc\td".expandtabs()
    assert piped == nasty


SOURCES = "hit; n=2; tokens=9; sources=hpc/a%2Cb.md,hpc/%1B[31mc.md"


@pytest.fixture
def cited(home):
    """Run a server whose answers name two sources, and give the command its key."""
    (home / "state").mkdir(mode=0o700)
    key_file = home / "state" / ".ofa_api_key"
    key_file.touch(mode=0o600)
    key_file.write_text(f"{KEY}\n")
    status = Status(False, "loading the model")
    site = Site(FakeAnswerer(headers={"x-ofa-rag": SOURCES}), status=lambda: status)
    yield f"{site.url}/v1"
    site.close()


def test_sources_follow_the_answer(cited, capsys):
    """On standard error: the answer alone goes into a pipe."""
    assert main(["ask", "hpc", "x", "--url", cited]) == 0

    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert "[1] hpc/a,b.md\n[2] hpc/[31mc.md\n" in err


def test_sources_may_be_wanted_in_the_output(cited, capsys):
    """For a file that keeps both."""
    assert main(["ask", "hpc", "x", "--url", cited, "--sources"]) == 0

    assert capsys.readouterr().out == "Hello\n[1] hpc/a,b.md\n[2] hpc/[31mc.md\n"


def test_sources_are_plain_in_json(cited, capsys):
    """As the files are named; JSON itself escapes what a terminal would act on."""
    assert main(["ask", "hpc", "x", "--url", cited, "--json"]) == 0

    out = capsys.readouterr().out
    assert json.loads(out)["sources"] == ["hpc/a,b.md", "hpc/\x1b[31mc.md"]
    assert "\x1b" not in out


def test_a_wait_for_the_model_is_explained(cited, capsys):
    """Else half a minute of silence looks like a hang."""
    main(["ask", "hpc", "x", "--url", cited])

    assert "not ready yet: loading the model" in capsys.readouterr().err


def test_R067_R068_the_environments_proxies_do_not_matter(home, capsys, monkeypatch):
    """Whatever a site's login scripts export."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,::1,[::1],*.cluster")
    with serving(home):
        assert main(["ask", "hpc", "x"]) == 0
        assert main(["byok", "print"]) == 0
        assert main(["client", "pi"]) == 0

    assert "guessed" not in capsys.readouterr().err


@as_root_only
def test_a_strangers_port_is_not_sent_the_key(home, capsys):
    """The server stopped, and a neighbour of the node took its port."""
    with serving(home) as client:
        port = client.port
    with socket.create_server(("127.0.0.1", port)) as neighbour:
        os.fchown(neighbour.fileno(), NOBODY, -1)
        neighbour.settimeout(0)

        assert main(["ask", "hpc", "x"]) == 78

        with pytest.raises(BlockingIOError):  # nobody has even connected
            neighbour.accept()
    assert f"port {port} of this machine is held by" in capsys.readouterr().err


def test_sources_in_the_answer_are_not_named_twice(home, capsys):
    """Where a site lets answers end with them, that is the list."""
    (home / "state").mkdir(mode=0o700)
    key_file = home / "state" / ".ofa_api_key"
    key_file.touch(mode=0o600)
    key_file.write_text(f"{KEY}\n")
    ended = Text("\n\nSources looked up: [1] `hpc/a,b.md`")
    script = [Text("Hello"), ended, End("stop", Usage(7, 3))]
    answerer = FakeAnswerer(
        lambda chat: FakeReply(script), headers={"x-ofa-rag": SOURCES}
    )
    site = Site(answerer)
    try:
        assert main(["ask", "hpc", "x", "--url", f"{site.url}/v1"]) == 0
    finally:
        site.close()

    out, err = capsys.readouterr()
    assert out == "Hello\n\nSources looked up: [1] `hpc/a,b.md`\n"
    assert "[1]" not in err
