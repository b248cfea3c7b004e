"""Calls through an upstream: as text, broken, unknown, cut; always good or text."""

import json
from contextlib import closing

import pytest

from ofa.chat import Chat, Message, Tool, ToolChoice, gather

from ..running import frames, text_of
from ..test_upstream_http import front
from .upstream_servers import DONE, Upstream, delta, engine, sse

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}
TOOL = Tool("read_note", "Read one note", SCHEMA)
CHAT = Chat("ofa-hpc", (Message("user", "Read a.txt"),), tools=(TOOL,))
CALL = '<tool_call>\n{"name": "read_note", "arguments": {"path": "a"}}\n</tool_call>'
ASK = {
    "model": "ofa-hpc",
    "messages": [{"role": "user", "content": "Read a.txt"}],
    "tools": [
        {
            "type": "function",
            "function": {"name": "read_note", "parameters": SCHEMA},
        }
    ],
}


@pytest.fixture
def upstream():
    """Yield a server."""
    with closing(Upstream()) as server:
        yield server


def says(text, finish="stop", size=3):
    """Return *text* as a stream's body, in pieces."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return sse(*(delta(content=piece) for piece in pieces), delta(finish)) + DONE


def calls(*made, finish="tool_calls"):
    """Return calls, (name, arguments' text) pairs, as a stream's body."""
    listed = [
        {
            "index": n,
            "id": f"c{n}",
            "function": {"name": name, "arguments": arguments},
        }
        for n, (name, arguments) in enumerate(made)
    ]
    return sse(*(delta(tool_calls=[one]) for one in listed), delta(finish)) + DONE


def ask(upstream, chat=CHAT):
    """Return the answer, and what was told of its calls."""
    with engine(upstream) as made:
        reply = made.reply(chat)
        return gather(reply), reply.told.get("x-ofa-tools", "")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_came_as_text_is_a_call(tmp_path, upstream, stream):
    """R019, R020: indexes, ids, arguments as JSON, and the reason that runs them."""
    other = CALL.replace('"a"', '"b"')
    upstream.answers = [says(f"Let me see.\n{CALL}\n{other}\n")]
    with front(tmp_path, upstream.url, tools__enabled=True) as client:
        status, _, body = client.chat({**ASK, "stream": stream})

    assert status == 200
    if stream:
        assert text_of(body) == "Let me see."
        choices = [c for f in frames(body)[:-1] for c in f["choices"]]
        pieces = [p for c in choices for p in c["delta"].get("tool_calls", ())]
        made = {}
        for piece in pieces:
            call = made.setdefault(piece["index"], {"id": piece.get("id"), "text": ""})
            call["text"] += piece["function"]["arguments"]
        assert [json.loads(made[n]["text"]) for n in (0, 1)] == [
            {"path": "a"},
            {"path": "b"},
        ]
        assert len({call["id"] for call in made.values()}) == 2
        assert choices[-1]["finish_reason"] == "tool_calls"
    else:
        (choice,) = json.loads(body)["choices"]
        assert choice["message"]["content"] == "Let me see."
        assert [
            json.loads(call["function"]["arguments"])
            for call in choice["message"]["tool_calls"]
        ] == [{"path": "a"}, {"path": "b"}]
        assert choice["finish_reason"] == "tool_calls"
    assert upstream.asked[0]["tools"][0]["function"]["name"] == "read_note"


def test_what_happened_is_told_in_a_header(tmp_path, upstream):
    """A whole answer has it beside it: what was mended, and that it was asked twice."""
    wrong = CALL.replace("read_note", "delete")
    upstream.answers = [says(wrong), says(CALL.replace("read_note", "read-note"))]
    with front(tmp_path, upstream.url, tools__enabled=True) as client:
        status, headers, body = client.chat(ASK)

    assert status == 200
    assert headers["x-ofa-tools"] == "repaired: name; failed: call; asked again: once"
    assert json.loads(body)["choices"][0]["finish_reason"] == "tool_calls"


def test_a_stream_notes_it_in_the_log(tmp_path, upstream, caplog):
    """Its headers are gone by then: the log line has it, and no text."""
    caplog.set_level("INFO")
    upstream.answers = [says("See.\n" + CALL[:40], finish="length")]
    with front(tmp_path, upstream.url, tools__enabled=True) as client:
        status, _, body = client.chat({**ASK, "stream": True})

    assert status == 200 and text_of(body) == "See."
    last = [f for f in frames(body)[:-1] if f["choices"]][-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert "dropped" in caplog.text and "read_note" not in caplog.text


def test_a_broken_call_is_asked_for_once_more(upstream):
    """One try more, with what is wrong; its answer counts."""
    upstream.answers = [says(CALL.replace('"a"', "[1]")), says(CALL)]
    answer, told = ask(upstream)

    assert [call.arguments for call in answer.calls] == [{"path": "a"}]
    again = upstream.asked[1]["messages"]
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert "path" in again[2]["content"]
    assert told == "failed: call; asked again: once"


def test_a_call_cut_by_the_limit_leaves_nothing(upstream):
    """As text or as a call of the server's own: "length", no second try."""
    upstream.answers = [
        says("See.\n" + CALL[:-20], finish="length"),
        calls(("read_note", '{"path": "a'), finish="length"),
    ]
    as_text, _ = ask(upstream)
    as_call, _ = ask(upstream)

    assert (as_text.text, as_text.calls) == ("See.", ())
    assert (as_call.text, as_call.calls) == ("", ())
    assert as_text.end.reason == as_call.end.reason == "length"
    assert len(upstream.asked) == 2


def test_the_servers_own_calls_are_checked_as_well(upstream):
    """Mended where it has one reading; else asked for again."""
    upstream.answers = [
        calls(("functions.read_note", "{'path': 'a', 'lines': '3',}")),
        calls(("read_note", "{nothing")),
        calls(("read_note", '{"path": "a"}')),
    ]
    mended, told = ask(upstream)
    again, _ = ask(upstream)

    (call,) = mended.calls
    assert (call.id, call.name) == ("c0", "read_note")
    assert call.arguments == {"path": "a", "lines": 3}
    assert told.startswith("repaired: ") and "name" in told
    assert len(again.calls) == 1 and len(upstream.asked) == 3


def test_a_call_that_stays_bad_is_text(upstream):
    """R022: "stop", its raw text, no error."""
    bad = calls(("delete", '{"all": true}'))
    upstream.answers = [bad, bad]
    answer, _ = ask(upstream)

    assert answer.calls == () and answer.end.reason == "stop"
    assert json.loads(answer.text) == {"name": "delete", "arguments": {"all": True}}


def test_R023_only_offered_names_leave(upstream):
    """An invented namespace goes; Gemma's form in a server's text is rescued."""
    upstream.answers = [says("call:google:mcp:read_note{path:'a, b.txt'}")]
    answer, told = ask(upstream)

    assert [(c.name, c.arguments) for c in answer.calls] == [
        ("read_note", {"path": "a, b.txt"})
    ]
    assert "rescued: braces" in told and "name" in told


def test_where_no_tool_may_be_called_text_is_text(upstream):
    """Without tools, or with none to choose: what looks like a call is shown."""
    upstream.answers = [says(CALL), says(CALL)]
    plain, _ = ask(upstream, Chat("ofa-hpc", CHAT.messages))
    none = Chat(
        "ofa-hpc", CHAT.messages, tools=CHAT.tools, tool_choice=ToolChoice("none")
    )
    unasked, _ = ask(upstream, none)

    assert plain.text == unasked.text == CALL
