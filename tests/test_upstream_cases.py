"""
The server cases of the assistant that ofa descends from, as far as HTTP decides them.

Its own suite was lost; what it asserted is kept here by name, against a real server.
"""

import json

import pytest

from ofa.auth import KeyFile, Keys, NoAuth
from ofa.chat import Call, End, Text, Tool, ToolCall, Usage
from ofa.modes import SEED_MODES

from .web_fakes import AUTH, chat_body, scripted

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "pattern": "^[a-z]+$"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "read_note", "description": "Read.", "parameters": SCHEMA},
}
CALL = ToolCall("call_1", "read_note", {"path": "a"})


def test_healthz_is_open(open_site):
    """The probe needs no key."""
    assert open_site().ask("GET", "/healthz", headers={}).status == 200


def test_models_needs_the_key(open_site):
    """The list is for those with the key."""
    assert open_site().ask("GET", "/v1/models", headers={}).status == 401


def test_models_lists_all_ids(open_site):
    """Eight modes, eight models."""
    got = open_site().ask("GET", "/v1/models").json

    assert {model["id"] for model in got["data"]} == {mode.id for mode in SEED_MODES}


def test_chat_needs_the_key(open_site):
    """No answer, and no work, without the key."""
    site = open_site()

    assert site.chat(headers={}).status == 401
    assert site.answerer.chats == []


def test_unknown_model(open_site):
    """404 in OpenAI's form."""
    got = open_site().chat(model="nope")

    assert (got.status, got.error["code"]) == (404, "model_not_found")


def test_empty_messages(open_site):
    """A chat with nothing said is refused."""
    got = open_site().chat(messages=[])

    assert (got.status, got.error["param"]) == (400, "messages")


def test_malformed_json(open_site):
    """A body that is no JSON is refused, not crashed on."""
    got = open_site().ask("POST", "/v1/chat/completions", b'{"model": ')

    assert (got.status, got.error["code"]) == (400, "invalid_json")


def test_blocking_happy_path(open_site):
    """A whole answer with text, finish reason and counts."""
    got = open_site().chat().json

    assert got["object"] == "chat.completion"
    assert got["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
    }
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0.7), ("top_p", 0.8), ("max_tokens", 99)]
)
def test_sampling_passes_through(open_site, field, value):
    """What the client asks of sampling reaches the engine."""
    site = open_site()

    site.chat(**{field: value})

    assert getattr(site.answerer.chats[0].sampling, field) == value


def test_stream_is_server_sent_events(open_site):
    """The content type that clients look for."""
    got = open_site().chat(stream=True)

    assert got.headers["content-type"].startswith("text/event-stream")


def test_stream_sends_the_role_first(open_site):
    """Cline drops what comes before a role."""
    first = open_site().chat(stream=True).frames[0]

    assert first["choices"][0]["delta"]["role"] == "assistant"


def test_stream_content_concatenates(open_site):
    """The pieces are the text."""
    frames = open_site().chat(stream=True).frames

    deltas = [frame["choices"][0]["delta"] for frame in frames[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello"


def test_stream_finishes_and_is_done(open_site):
    """A finish reason, then the end mark."""
    *_, finish, done = open_site().chat(stream=True).frames

    assert finish["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"


@pytest.fixture
def keyed(open_site, tmp_path):
    """A server with a key file of its own, and the key in it."""
    tmp_path.chmod(0o700)
    file = KeyFile(tmp_path / "key")
    file.ensure()
    keys = Keys(file)
    return open_site(check_key=keys.check), file


@pytest.mark.parametrize(
    "form",
    [
        "Authorization: Bearer {}",
        "Authorization: {}",
        "api-key: {}",
        "x-api-key: {}",
        "openai-api-key: {}",
    ],
)
def test_five_header_forms(keyed, form):
    """The key is taken in each form that clients have, by the parser and the app."""
    site, file = keyed
    name, _, value = form.format(file.read()[0]).partition(": ")

    assert site.ask("GET", "/v1/models", headers={name: value}).status == 200
    assert site.chat({name: value}).status == 200
    assert site.chat({name: value + "x"}).status == 401


def test_three_texts_for_three_failures(keyed):
    """Missing, empty and wrong keys are told apart; empty names VS Code's remedy."""
    site, _ = keyed

    texts = [
        site.chat(headers).error["message"]
        for headers in (
            {},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer ofa-wrong"},
        )
    ]

    assert len(set(texts)) == 3
    assert "requestHeaders" in texts[1]
    assert not any("ofa-wrong" in text for text in texts)


def test_key_file_lifecycle(open_site, tmp_path):
    """Made once, read again, rotated while serving: the old key ends, the new works."""
    tmp_path.chmod(0o700)
    file = KeyFile(tmp_path / "key")
    assert file.ensure() is True
    assert KeyFile(tmp_path / "key").ensure() is False
    now = [100.0]
    site = open_site(check_key=Keys(file, clock=lambda: now[0]).check)
    old = {"Authorization": f"Bearer {file.read()[0]}"}
    assert site.ask("GET", "/v1/models", headers=old).status == 200

    file.rotate()
    now[0] += 2
    new = {"Authorization": f"Bearer {file.read()[0]}"}

    assert site.ask("GET", "/v1/models", headers=old).status == 401
    assert site.ask("GET", "/v1/models", headers=new).status == 200


def test_no_auth(open_site):
    """Where the site has turned keys off, all callers are let in and are one."""
    site = open_site(check_key=NoAuth().check)

    assert site.chat(headers={}).status == 200
    assert site.chat(headers=AUTH).status == 200
    assert {caller.key_id for caller in site.answerer.callers} == {"anyone"}


def test_tools_are_forwarded_verbatim(open_site):
    """Schema, description and choice reach the engine unchanged."""
    site = open_site()

    site.chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)

    (chat,) = site.answerer.chats
    assert chat.tools == (Tool("read_note", "Read.", SCHEMA),)
    assert chat.tool_choice.kind == "required"
    assert chat.parallel_calls is False


def test_blocking_with_tools_and_no_call(open_site):
    """A model may answer in words."""
    (choice,) = open_site().chat(tools=[TOOL]).json["choices"]

    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_blocking_with_a_call(open_site):
    """A call has an id, a name, and arguments as a string; content is null."""
    site = open_site(scripted(Call(CALL), End("tools", Usage(1, 1))))

    (choice,) = site.chat(tools=[TOOL]).json["choices"]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "read_note", "arguments": '{"path":"a"}'},
        }
    ]


def test_streaming_with_tools_and_no_call(open_site):
    """Words are streamed as words."""
    frames = open_site().chat(tools=[TOOL], stream=True).frames

    assert frames[-2]["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in json.dumps(frames)


def test_streaming_with_a_call(open_site):
    """The pieces of a call add up to it."""
    site = open_site(scripted(Text("ok "), Call(CALL), End("tools", Usage(1, 1))))

    frames = site.chat(tools=[TOOL], stream=True).frames

    parts = [
        part
        for frame in frames[:-1]
        for part in frame["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert parts[0]["id"] == "call_1"
    assert parts[0]["function"]["name"] == "read_note"
    assert "".join(p["function"]["arguments"] for p in parts) == '{"path":"a"}'
    assert frames[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_string_arguments_pass_through(open_site):
    """History with arguments as a JSON string is understood, never emptied."""
    site = open_site()
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "read_note", "arguments": '{"path": "a b", "n": 1.5}'},
    }
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "text"},
    ]

    assert site.chat(**chat_body(messages=messages)).status == 200
    assert site.answerer.chats[0].messages[1].calls[0].arguments == {
        "path": "a b",
        "n": 1.5,
    }


def test_several_calls_have_distinct_index_and_id(open_site):
    """Clients put calls together by either."""
    calls = [ToolCall(f"call_{i}", "read_note", {"path": str(i)}) for i in range(3)]
    site = open_site(scripted(*map(Call, calls), End("tools", Usage(1, 1))))

    whole = site.chat(tools=[TOOL]).json["choices"][0]["message"]["tool_calls"]
    frames = site.chat(tools=[TOOL], stream=True).frames

    assert [call["id"] for call in whole] == ["call_0", "call_1", "call_2"]
    firsts = [
        (part["index"], part["id"])
        for frame in frames[:-1]
        for part in frame["choices"][0]["delta"].get("tool_calls", ())
        if "id" in part
    ]
    assert firsts == [(0, "call_0"), (1, "call_1"), (2, "call_2")]
