"""`ofa serve` as a process: start, connect, drain, and what stays secret."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from ofa.banner import SENTINEL
from ofa.errors import ConfigError

from .processes import process
from .running import Client, Site, frames, serving, text_of

ENDLESS = [[{"text": "on "}, {"wait_s": 0.05, "times": 100000}]]


def test_a_start_says_how_to_connect_and_then_answers(tmp_path):
    """The block names node, ports and commands; the sentinel is its last line."""
    with process(tmp_path, "--no-rag") as server:
        assert server.open("GET", "/healthz").read() == b'{"status":"ok"}'
        assert text_of(server.stream().read()) == "one two "
        server.child.send_signal(signal.SIGTERM)
        assert server.wait() == 0

    assert SENTINEL in server.lines
    assert f"curl http://127.0.0.1:{server.port}/healthz" in server.text
    assert re.search(r"REMOTE port +: \d+", server.text)


def test_json_is_alone_on_standard_output(tmp_path):
    """A launcher reads one line and needs no pattern."""
    with process(tmp_path, "--no-rag", "--json", "--quiet") as server:
        line = next(line for line in server.lines if line.startswith("{"))

        assert json.loads(line)["port"] == server.port
        assert SENTINEL not in server.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_L1_a_stop_lets_running_answers_end(tmp_path, number):
    """An answer that runs comes to its end, newcomers are told, exit is 0."""
    with process(tmp_path, "--no-rag") as server:
        answer = server.stream()
        first = answer.read(10)

        server.child.send_signal(number)
        body = first + answer.read()

        assert text_of(body) == "one two "
        assert frames(body)[-1] == "[DONE]"
        assert server.wait(20) == 0


def test_L1_what_does_not_end_is_cut_with_an_error(tmp_path):
    """After the grace each stream gets an error object and its end, within 20 s."""
    site = tmp_path / "site.toml"
    site.write_text("[server]\ndrain_s = 0.5\n")
    with process(tmp_path, "--no-rag", "--site", str(site), script=ENDLESS) as server:
        answers = [server.stream() for _ in range(3)]
        for answer in answers:
            answer.read(10)
        began = time.monotonic()

        server.child.send_signal(signal.SIGTERM)
        bodies = [answer.read() for answer in answers]

        assert server.wait(20) == 0
        assert time.monotonic() - began < 10
    for body in bodies:
        *_, error, done = frames(body)
        assert error["error"]["code"] == "server_shutdown"
        assert done == "[DONE]"


def test_L2_a_second_signal_ends_it_at_once(tmp_path):
    """Who presses Ctrl+C twice does not wait for the grace."""
    with process(tmp_path, "--no-rag", script=ENDLESS) as server:
        answer = server.stream()
        answer.read(10)
        began = time.monotonic()

        server.child.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals at once are one
        server.child.send_signal(signal.SIGINT)

        assert server.wait(12) == 0
        assert time.monotonic() - began < 10


def test_N5_the_key_is_in_no_output_and_no_command_line(tmp_path):
    """Not in the start-up text, not in logs of good and bad requests, not in argv."""
    with process(tmp_path, "--no-rag") as server:
        server.stream().read()
        for wrong in (f"{server.key}x", server.key[:20], ""):
            assert server.open("GET", "/v1/models", key=wrong).status == 401
        pids = (server.child.pid, server.worker)
        seen = [
            Path(f"/proc/{pid}/{name}").read_text()
            for pid in pids
            for name in ("cmdline", "environ")
        ]
        server.child.send_signal(signal.SIGTERM)
        server.wait()

    key = server.key
    told = "".join((server.text, *seen))
    assert len(key) == 47
    assert not [i for i in range(4, 40) if key[i : i + 8] in told]


def test_N6_a_crash_leaves_no_core_file(tmp_path):
    """It would hold the key and prompts, in a folder that others may read."""
    with process(tmp_path, "--no-rag") as server:
        pids = (server.child.pid, server.worker)
        limits = [Path(f"/proc/{pid}/limits").read_text() for pid in pids]

    for text in limits:
        assert re.search(r"Max core file size +0 ", text)


def test_no_prompt_and_no_answer_is_in_the_log(tmp_path):
    """Counts, names and times only: canaries of both stay out of all output."""
    script = [[{"text": "CANARYANSWER"}]]
    with process(tmp_path, "--no-rag", script=script) as server:
        assert "CANARYANSWER" in text_of(server.stream(text="CANARYPROMPT").read())
        server.open("POST", "/v1/chat/completions", {"model": "CANARYMODEL!"}).read()
        server.child.send_signal(signal.SIGTERM)
        server.wait()

    assert "CANARYANSWER" not in server.text and "CANARYPROMPT" not in server.text
    assert "model=ofa-hpc" in server.text


def test_a_port_is_remembered_and_a_taken_one_replaced(tmp_path):
    """The URL in VS Code stays right from job to job; a neighbour moves us, said."""
    with process(tmp_path, "--no-rag") as first:
        port = first.port
        with process(tmp_path, "--no-rag") as second:
            assert second.listening.is_set()
            assert second.port != port
        first.child.send_signal(signal.SIGTERM)
        first.wait()
    moved = second.port

    with process(tmp_path, "--no-rag") as third:
        assert third.port == moved


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("[server]\nprot = 1\n", "site.toml:2: server.prot: unknown key; did you mean"),
        ("[engine]\nkind = 'mxl'\n", "engine.kind"),
        ("[server]\nport = true\n", "server.port"),
    ],
    ids=["unknown key", "choice", "type"],
)
def test_a_wrong_configuration_stops_the_start(tmp_path, toml, told):
    """File, line, key and the nearest right name, exit code 78, nothing opened."""
    site = tmp_path / "site.toml"
    site.write_text(toml)

    with process(tmp_path, "--site", str(site)) as server:
        assert server.wait() == 78

    assert told in server.text
    assert "Traceback" not in server.text


def test_K4_an_open_server_is_refused_where_others_could_reach_it(tmp_path):
    """--no-auth on 0.0.0.0, as inside a job, stops the start."""
    with process(tmp_path, "--no-rag", "--no-auth", SLURM_JOB_ID="7") as server:
        assert server.wait() == 78
        assert "drop --no-auth" in server.text


def test_an_open_server_on_loopback_asks_for_no_key(tmp_path):
    """--no-auth works at one's own machine."""
    with serving(tmp_path, server__auth=False) as client:
        status, _, _ = client.ask("GET", "/v1/models", headers={"Authorization": ""})

    assert status == 200


def test_a_state_folder_that_cannot_be_made_is_no_reason_not_to_serve(tmp_path):
    """S2: with a key file of the user's own; what isn't remembered is said."""
    (tmp_path / "key").write_text("ofa-" + "k" * 43 + "\n")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "state").write_text("a file where a folder should be")
    path = tmp_path / "script.json"
    path.write_text('["ok"]')
    keys = {
        "engine.kind": "scripted",
        "engine.script": str(path),
        "rag.enabled": False,
        "server.key_file": str(tmp_path / "key"),
    }

    running = Site(tmp_path, keys).build()
    try:
        assert any("remembered" in note for note in running.connection.notes)
    finally:
        running.stop()
        running.run()


def test_an_unknown_placeholder_stops_the_start(tmp_path):
    """A typo in a mode's prompt file is found at start, not in a chat."""
    site = tmp_path / "site.toml"
    site.write_text('[modes.x]\ntitle = "X"\nprompt = "/nowhere/x.txt"\n')
    from ofa.config import load
    from ofa.serve import build
    from ofa.state import StateFolder

    config = load(str(site), {}, {"engine.kind": "scripted", "engine.script": "s"})

    with pytest.raises(ConfigError, match=r"x\.txt"):
        build(config, StateFolder(tmp_path / "state"), {"HOME": str(tmp_path)})


def test_a_question_is_answered_from_a_document_of_the_first_index(tmp_path):
    """A fresh state folder: the index builds itself, then passages are injected."""
    notes = tmp_path / "docs"
    notes.mkdir()
    (notes / "partitions.md").write_text(
        "# Partitions of Larkspur\n\nThe partition for long jobs is called tortoise. "
        "It runs jobs of up to fourteen days on two hundred nodes.\n"
    )
    sources = tmp_path / "sources.toml"
    sources.write_text(
        f'[hpc]\ntitle = "HPC"\n[[hpc.places]]\nlabel = "d"\nroots = ["{notes}"]\n'
    )
    script = [[{"echo": "last_user"}]]
    with serving(
        tmp_path, script, rag__enabled=True, rag__sources=str(sources)
    ) as client:
        told = _ask_until_found(client, "Which partition is for long jobs?")

    assert "called tortoise" in told


def _ask_until_found(client: Client, question: str) -> str:
    until = time.monotonic() + 300  # built at the lowest priority, beside other tests
    body = {"model": "ofa-hpc", "messages": [{"role": "user", "content": question}]}
    while time.monotonic() < until:
        _, headers, answer = client.chat(body)
        if headers["x-ofa-rag"].startswith("hit"):
            return json.loads(answer)["choices"][0]["message"]["content"]
        time.sleep(0.5)
    raise AssertionError(headers["x-ofa-rag"])


def test_E1_a_model_that_cannot_be_loaded_ends_the_start(tmp_path):
    """A folder with broken weights: one line, exit code 78, within seconds."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "gemma3_text"}')
    (model / "model.safetensors").write_bytes(b"not weights")
    arguments = ("--no-rag", "--engine", "mlx", "--model", str(model))
    with process(tmp_path, *arguments) as server:
        assert server.wait(60) == 78

    assert "model.safetensors" in server.text
    assert "starts again" not in server.text
    assert "Traceback" not in server.text


def test_E1_a_model_folder_that_is_missing_ends_the_start(tmp_path):
    """The folder is named."""
    missing = str(tmp_path / "no-such-model")
    arguments = ("--no-rag", "--engine", "mlx", "--model", missing)
    with process(tmp_path, *arguments) as server:
        assert server.wait(60) == 78

    assert "no-such-model" in server.text
