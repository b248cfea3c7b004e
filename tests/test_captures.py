"""
What real clients sent, replayed: VS Code, OpenCode, Cline, pi, Continue and more.

`captures/` holds one file a request with filler text in place of every sentence; names,
structure, sizes and schemas are the clients' own. A string in place of `tools` names a
file in `captures/tools/`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ofa.answer import Answerer
from ofa.chat import Message
from ofa.engine.base import Limits
from ofa.engine.queue import Queued
from ofa.engine.scripted import ScriptedEngine
from ofa.modes import Modes
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.passage import Hit, Passage
from ofa.rag.retrieve import Found

from .running import frames, serving, text_of

FOLDER = Path(__file__).parent / "captures"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
# An image in a user's message: a model without eyes must say so, not guess.
WITH_IMAGES = {"vscode-image-user-003"}
# Titles, progress messages, compaction: the editor asks for itself.
SIDE = {
    name
    for name in NAMES
    if (name.startswith("vscode") and name[-3:] in ("001", "002"))
    or name in ("vscode-compact-001", "opencode-001")
} - {"vscode-inline-002", "vscode-plan-002", "vscode-ollama-002", "vscode-image-002"}


def load(name: str) -> dict:
    """Return one capture with its tools in place."""
    capture = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    body = {**capture["body"], "model": "ofa-hpc"}
    if "tools" in body:
        tools = FOLDER / "tools" / f"{body['tools']}.json"
        body["tools"] = json.loads(tools.read_text(encoding="utf-8"))
    return {"headers": capture["headers"], "body": body}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a client of one running server for all captures."""
    script = [[{"text": "fine "}, {"text": "answer"}]]
    with serving(tmp_path_factory.mktemp("captures"), script) as client:
        yield client


@pytest.mark.parametrize("name", NAMES)
def test_every_captured_request_is_answered(server, name):
    """Nothing a real client sends is refused, but an image where nobody can see it."""
    capture = load(name)

    status, headers, body = server.chat(capture["body"], capture["headers"])

    if name in WITH_IMAGES:
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (400, "image_not_supported")
        assert error["param"].startswith("messages[")
        return
    assert status == 200, body
    if capture["body"].get("stream"):
        assert headers["content-type"].startswith("text/event-stream")
        assert text_of(body) == "fine answer"
        parts = frames(body)
        assert parts[-1] == "[DONE]"
        reasons = [
            choice["finish_reason"] for f in parts[:-1] for choice in f["choices"]
        ]
        assert reasons[-1] == "stop" and reasons.count("stop") == 1
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == "fine answer"


@pytest.mark.parametrize("name", sorted({*NAMES} - WITH_IMAGES))
def test_side_requests_are_told_apart(server, name):
    """Only titles, progress lines and summaries go without passages and prompt."""
    capture = load(name)

    _, headers, _ = server.chat(capture["body"], capture["headers"])

    assert (headers["x-ofa-rag"] == "skipped; side request") is (name in SIDE)


class OneFinder:
    """A retriever that finds one passage for whatever is asked, and notes it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find(self, collections: Sequence[str], question: str, previous: str = ""):
        """Return one hit."""
        self.asked.append(question)
        passage = Passage("hpc", "a.md", "A", "", f"PASSAGE {len(self.asked)}")
        return Found((Hit(passage, 1.0, 0.9),), "hit")

    def find_private(self, question: str, previous: str = ""):
        """Return nothing: there are no private documents."""
        return Found()


@pytest.fixture
def shop(tmp_path):
    """Yield an Answerer with a finder that notes, its engine, and the finder."""
    finder = OneFinder()
    limits = Limits(context_tokens=1_000_000, output_tokens=4096, tools=True)
    engine = ScriptedEngine(limits=limits)
    queue = Queued(engine)
    lookup = Lookup(
        finder,
        Memory(1 << 24),
        count_tokens=engine.count_tokens,
        budget=lambda mode: Budget(),
    )
    for name in ("hpc.txt", "common.txt", "openai_tools.txt"):
        (tmp_path / name).write_text(name)
    from ofa.prompts import Prompts

    yield (
        Answerer(queue, Modes(), Prompts(tmp_path, {}), lookup=lookup),
        engine,
        finder,
    )
    queue.close()


def play(shop, name: str) -> tuple[Message, ...]:
    """Send one capture through the Answerer; return what the engine was given."""
    from ofa.answer import Caller
    from ofa.chat import gather
    from ofa.protocols import openai_chat

    answerer, engine, _ = shop
    capture = load(name)
    agent = capture["headers"].get("User-Agent", "")
    answered = answerer.reply(openai_chat.parse(capture["body"]), Caller("key", agent))
    gather(answered.reply)
    return engine.asked[-1].messages


CONVERSATIONS = (
    ("vscode-agent-tool-003", "vscode-agent-tool-004", "vscode-agent-tool-005"),
    ("vscode-ollama-002", "vscode-ollama-003", "vscode-ollama-004"),
    ("opencode-002", "opencode-003"),
    ("cline-001", "cline-002"),
    ("pi-001", "pi-002"),
    ("continue-cli-001", "continue-cli-002"),
    ("langgraph-react-001", "langgraph-react-002"),
    ("openai-js-runtools-001", "openai-js-runtools-002"),
    ("vscode-think-003", "vscode-think-004", "vscode-think-005"),
)


@pytest.mark.parametrize("turns", CONVERSATIONS, ids=lambda turns: turns[0])
def test_later_turns_repeat_earlier_ones_byte_for_byte(shop, turns):
    """R044: each request's prompt begins with the one before it, passages included."""
    seen = [play(shop, name) for name in turns]

    for before, after in zip(seen, seen[1:], strict=False):
        assert after[: len(before)] == before
        assert any("PASSAGE" in m.text for m in before if m.role == "user")


@pytest.mark.parametrize("turns", CONVERSATIONS, ids=lambda turns: turns[0])
def test_a_question_is_looked_up_once(shop, turns):
    """R11: tool rounds retrieve nothing; the question alone is searched for."""
    for name in turns:
        play(shop, name)

    finder = shop[2]
    assert len(finder.asked) == len(set(finder.asked))
    for question in finder.asked:
        assert "<" not in question and "reminderInstructions" not in question


def test_vscode_questions_are_what_stands_in_the_request_tag(shop):
    """Attachments, context and reminders around it are no part of the query."""
    play(shop, "vscode-context-003")

    body = load("vscode-context-003")["body"]
    text = body["messages"][-1]["content"]
    asked = text.split("<userRequest>")[1].split("</userRequest>")[0].strip()
    assert shop[2].asked == [" ".join(asked.split())]
