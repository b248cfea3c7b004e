"""
The npm clients, `openai` and the AI SDK, against a whole server.

`clients/*.mjs` hold the client's side: each case prints what the package made of the
server's answers. They need the packages of `clients/package-lock.json` (`npm ci` there,
as scripts/test does) and a Node that is new enough, which is one of the packages.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ofa.modes import SEED_MODES

from .running import serving

FOLDER = Path(__file__).parent / "clients"
NEEDED = 22  # the AI SDK's own minimum; Debian's Node is older
NOTES = [
    [
        {"call": {"name": "read_note", "arguments": {"path": "notes/a.txt"}}},
        {"call": {"name": "count_words", "arguments": {"path": "ü 😀.txt"}}},
    ],
    [
        {"text": "one more "},
        {"call": {"name": "read_note", "arguments": {"path": "c.txt"}}},
    ],
    [{"echo": "all"}],
]
RAN = [
    ["read_note", "notes/a.txt"],
    ["count_words", "ü 😀.txt"],
    ["read_note", "c.txt"],
]
# What the model is shown at the end of the loop, as the engine's echo tells it.
TOLD = (
    "user: hi\nassistant: \ntool: text of notes/a.txt\n"
    'tool: {"words":3}\nassistant: one more \ntool: text of c.txt'
)
MIDWAY = [{"text": "half"}, {"fail": "the engine failed"}]


def find_node() -> str:
    """Return a Node for the packages; empty if the machine has none."""
    packaged = FOLDER / "node_modules" / ".bin" / "node"
    if packaged.exists():
        return str(packaged)
    own = shutil.which("node")
    if own is None:
        return ""
    told = subprocess.run(
        [own, "-p", "process.versions.node"], capture_output=True, text=True, check=True
    )
    return own if int(told.stdout.split(".")[0]) >= NEEDED else ""


@pytest.fixture(scope="module")
def node():
    """Return the Node to run; without one only CI insists."""
    missing = ""
    if not (FOLDER / "node_modules" / "openai").is_dir():
        missing = "the npm clients are not installed: (cd tests/clients && npm ci)"
    elif not (found := find_node()):
        missing = f"no Node of version {NEEDED} or newer"
    if not missing:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    return pytest.skip(missing)


@pytest.fixture
def play(node, tmp_path):
    """Return a function that runs one case against a server with a script."""

    def run(script, case, *answers, key=None, stream=False, **overrides):
        with serving(tmp_path, list(answers), **overrides) as server:
            done = subprocess.run(
                [node, str(FOLDER / f"{script}.mjs"), case],
                env={
                    "HOME": str(tmp_path),
                    "OFA_BASE_URL": f"http://127.0.0.1:{server.port}/v1",
                    "OFA_API_KEY": server.key if key is None else key,
                    "OFA_STREAM": "1" if stream else "",
                },
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stderr == ""  # no warnings of the packages about what they got
            assert server.running.queue.depth() == (0, 0)
        return json.loads(done.stdout)

    return run


def test_the_lock_is_exact_and_names_no_registry():
    """Every package has a checksum; where it comes from is the machine's matter."""
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    text = (FOLDER / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(text)["packages"]

    wanted = {**package["dependencies"], **package["optionalDependencies"]}
    for name, version in wanted.items():
        assert packages[f"node_modules/{name}"]["version"] == version
    assert "registry" not in text
    assert all("resolved" not in entry for entry in packages.values())
    assert all("integrity" in entry for where, entry in packages.items() if where)
    assert not any(entry.get("hasInstallScript") for entry in packages.values())


# --- openai ------------------------------------------------------------------------


def test_openai_lists_the_models(play):
    """Eight modes, and one of them by its id."""
    got = play("openai", "models", "unused")

    assert got["ids"] == [mode.id for mode in SEED_MODES]
    assert got["one"]["id"] == "ofa-hpc"
    assert got["one"]["object"] == "model"
    assert got["one"]["context_window"] == 131072


def test_openai_reads_a_whole_answer(play):
    """Text, finish reason, counts, and our own header beside them."""
    got = play("openai", "whole", "fine answer")

    (choice,) = got["completion"]["choices"]
    assert choice["message"]["content"] == "fine answer"
    assert choice["finish_reason"] == "stop"
    assert got["completion"]["usage"]["completion_tokens"] == 2
    assert got["rag"] == "skipped; retrieval is off"


def test_openai_reads_a_stream(play):
    """The role first, text in its pieces, one finish, and the usage asked for last."""
    answer = [{"text": "fine "}, {"text": "answer"}]

    chunks = play("openai", "streamed", answer)["chunks"]

    *parts, last, usage = chunks
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    contents = [part["choices"][0]["delta"]["content"] for part in parts]
    assert contents == ["", "fine ", "answer"]
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * 3
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2
    assert len({(c["id"], c["model"], c["created"]) for c in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_R019_openai_runs_tools(play, stream):
    """The package's own loop runs both calls, then one more, and ends with text."""
    got = play("openai", "tools", *NOTES, stream=stream)

    assert got["ran"] == RAN
    assert got["content"].endswith(TOLD)
    assert "system: " in got["content"]  # the mode's own prompt stands before
    ids = [call["id"] for m in got["messages"] for call in m.get("tool_calls") or ()]
    assert len(set(ids)) == 3


def test_R008_openai_aborts_a_stream(play):
    """Leaving frees the only place while the client lives on and keeps asking."""
    endless = [{"text": "first "}, {"wait_s": 90}, {"text": "never"}]

    got = play("openai", "abort", endless, "next", server__running=1, server__waiting=0)

    assert got["seen"] == ["first "]
    assert (got["full"]["kind"], got["full"]["code"]) == (
        "RateLimitError",
        "queue_full",
    )
    assert got["content"] == "next"
    assert got["freed_s"] < 5  # a second by the case; the first write is after ten


def test_R013_openai_raises_a_failure_midway(play):
    """What came stays as it was; then the server's own words are raised."""
    got = play("openai", "midway", MIDWAY)

    assert [part["delta"].get("content") for part in got["seen"]] == ["", "half", None]
    assert got["seen"][-1]["finish_reason"] == "error"
    assert (got["error"]["kind"], got["error"]["code"]) == ("APIError", "engine_error")
    assert got["error"]["message"] == "the engine failed"


def test_openai_shows_what_is_wrong_with_a_key(play):
    """A wrong key is the client's authentication error, with the remedy in it."""
    got = play("openai", "refused", "unused", key="ofa-" + "x" * 43)

    assert (got["kind"], got["status"]) == ("AuthenticationError", 401)
    assert got["code"] == "invalid_api_key"
    assert "a wrong API key" in got["message"]
    assert "ofa key show" in got["message"]


def test_openai_shows_which_models_there_are(play):
    """An unknown model is 404 with the list."""
    got = play("openai", "unknown", "unused")

    assert (got["kind"], got["status"]) == ("NotFoundError", 404)
    assert (got["code"], got["param"]) == ("model_not_found", "model")
    assert all(mode.id in got["message"] for mode in SEED_MODES)


def test_openai_shows_which_field_is_wrong(play):
    """A value out of range is 400 with the field's name."""
    got = play("openai", "invalid", "unused")

    assert (got["kind"], got["status"]) == ("BadRequestError", 400)
    assert got["param"] == "temperature"


def test_R005_openai_reads_sixteen_streams_at_once(play):
    """Each promise gets its own word, none of the others'."""
    got = play("openai", "together", [{"echo": "last_user"}, {"wait_s": 0.05}])

    assert len(got["words"]) == 16
    assert got["answers"] == got["words"]


# --- the AI SDK --------------------------------------------------------------------


def test_ai_sdk_generates_text(play):
    """Text, reasoning apart from it, finish reason and counts, without warnings."""
    answer = [{"thought": "hm"}, {"text": "fine "}, {"text": "answer"}]

    got = play("ai-sdk", "whole", answer)

    assert (got["text"], got["reasoning"]) == ("fine answer", "hm")
    assert got["finishReason"] == "stop"
    assert got["usage"]["outputTokens"] == 2
    assert got["warnings"] == []


def test_ai_sdk_streams_text(play):
    """Every part in its order, usage in the last."""
    answer = [{"thought": "hm"}, {"text": "fine "}, {"text": "answer"}]

    got = play("ai-sdk", "streamed", answer)

    assert [part["type"] for part in got["parts"]] == [
        "start",
        "start-step",
        "reasoning-start",
        "reasoning-delta",
        "reasoning-end",
        "text-start",
        "text-delta",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    texts = [part["text"] for part in got["parts"] if part["type"] == "text-delta"]
    assert texts == ["fine ", "answer"]
    finish = got["parts"][-1]
    assert (finish["finishReason"], finish["rawFinishReason"]) == ("stop", "stop")
    assert finish["totalUsage"]["outputTokens"] == 2
    assert got["failures"] == []


def test_R064_ai_sdk_is_told_of_a_limit(play):
    """An answer that was cut off says so; its text is kept."""
    parts = play("ai-sdk", "streamed", [{"text": "half"}, {"end": "length"}])["parts"]

    assert parts[-1]["finishReason"] == "length"
    assert [part["text"] for part in parts if part["type"] == "text-delta"] == ["half"]


def test_R019_ai_sdk_runs_tools(play):
    """Steps end as tool-calls until the one that is text."""
    got = play("ai-sdk", "tools", *NOTES)

    assert got["ran"] == RAN
    assert got["steps"] == ["tool-calls", "tool-calls", "stop"]
    assert got["text"].endswith(TOLD)


def test_R019_ai_sdk_streams_tools(play):
    """Calls arrive whole with their own ids, are run, and the loop goes on to text."""
    got = play("ai-sdk", "streamedTools", *NOTES)

    calls = [part for part in got["parts"] if part["type"] == "tool-call"]
    assert [[call["toolName"], call["input"]["path"]] for call in calls] == RAN
    assert len({call["toolCallId"] for call in calls}) == 3
    assert got["ran"] == RAN
    steps = [p["finishReason"] for p in got["parts"] if p["type"] == "finish-step"]
    assert steps == ["tool-calls", "tool-calls", "stop"]
    assert got["failures"] == []


def test_ai_sdk_demands_a_tool(play):
    """A tool choice by name is accepted and answered with that call."""
    got = play("ai-sdk", "demanded", NOTES[0][:1])

    assert got == {"finishReason": "tool-calls", "ran": RAN[:1]}


def test_R013_ai_sdk_surfaces_a_failure_midway(play):
    """An error part with the server's words; the step is no finished one."""
    got = play("ai-sdk", "streamed", MIDWAY)

    kinds = [part["type"] for part in got["parts"]]
    assert kinds.index("text-delta") < kinds.index("error")
    assert got["parts"][-1]["finishReason"] == "error"
    (failure,) = got["failures"]
    assert (failure["code"], failure["message"]) == (
        "engine_error",
        "the engine failed",
    )


def test_ai_sdk_shows_what_is_wrong_with_a_key(play):
    """The server's own text is the error's message."""
    got = play("ai-sdk", "refused", "unused", key="ofa-" + "x" * 43)

    assert (got["kind"], got["status"]) == ("APICallError", 401)
    assert got["message"].startswith("a wrong API key: ")


def test_ai_sdk_shows_which_models_there_are(play):
    """An unknown model is 404 with the list."""
    got = play("ai-sdk", "unknown", "unused")

    assert (got["kind"], got["status"]) == ("APICallError", 404)
    assert "ofa-openfoam" in got["message"]
