"""OpenAI's answers: whole and streamed are two pictures of the same events."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Answer, Call, End, Text, Thought, ToolCall, Usage, Waiting, gather
from ofa.errors import EngineError, ShuttingDown
from ofa.protocols import openai_chat

# No deadline: the machine may be busy with other things.
QUICK = settings(deadline=None, max_examples=60)
HEAD = {"id": "chatcmpl-1", "created": 5, "model": "ofa-hpc"}
USAGE = Usage(10, 4, 6, 1)
WIRE_USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def streamed(events, *, usage=False):
    """Return the parsed data of the stream of *events*; [DONE] as it is."""
    text = "".join(openai_chat.stream(events, HEAD, usage=usage))
    bodies = [e[len("data: ") :] for e in text.split("\n\n") if e.startswith("data: ")]
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


def failing(*events, error):
    """Yield *events*, then fail."""
    yield from events
    raise error


def deltas(frames):
    """Return the deltas of all chunks that have a choice."""
    return [f["choices"][0]["delta"] for f in frames if f != "[DONE]" and f["choices"]]


def fold(frames):
    """Put a stream back together as an SDK does: the message and the finish reason."""
    message = {"role": None, "content": "", "reasoning": "", "calls": {}}
    finish = None
    for frame in frames:
        if frame == "[DONE]" or not frame["choices"]:
            continue
        choice = frame["choices"][0]
        delta = choice["delta"]
        message["role"] = delta.get("role", message["role"])
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            call = message["calls"].setdefault(part["index"], {"arguments": ""})
            call.update({k: part[k] for k in ("id", "type") if k in part})
            call["name"] = part["function"].get("name", call.get("name"))
            call["arguments"] += part["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return message, finish


def test_whole_has_what_the_reference_requires():
    """All required keys are there; details of usage always are."""
    answer = Answer((Text("Hello"),), End("stop", USAGE))

    assert openai_chat.whole(answer, HEAD) == {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": WIRE_USAGE,
    }


def test_content_is_null_only_if_empty_beside_calls():
    """An empty answer is the empty string, a bare call has no content."""
    call = Call(ToolCall("c", "f", {}))

    def content(*parts):
        return openai_chat.whole(Answer(parts, End("stop")), HEAD)["choices"][0][
            "message"
        ]["content"]

    assert content() == ""
    assert content(call) is None
    assert content(Text("x"), call) == "x"


def test_usage_is_never_invented():
    """Where the engine told no counts, none are given."""
    assert "usage" not in openai_chat.whole(Answer((), End("stop")), HEAD)
    assert all(
        f == "[DONE]" or f["choices"] for f in streamed([End("stop")], usage=True)
    )


def test_a_stream_in_order():
    """Role, content, finish reason, usage, [DONE]: in this order, with one head."""
    frames = streamed([Text("a"), Text(""), Text("b"), End("stop", USAGE)], usage=True)

    assert deltas(frames) == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [f["choices"][0]["finish_reason"] for f in frames[:4]] == [
        None,
        None,
        None,
        "stop",
    ]
    assert frames[4] == {
        **HEAD,
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": WIRE_USAGE,
    }
    assert frames[5:] == ["[DONE]"]
    assert all({**HEAD}.items() <= f.items() for f in frames[:5])


def test_R014_usage_only_when_asked():
    """Without include_usage no chunk has an empty list of choices."""
    frames = streamed([Text("a"), End("stop", USAGE)])

    assert all(f == "[DONE]" or f["choices"] for f in frames)
    assert all("usage" not in f for f in frames if f != "[DONE]")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("tools", "tool_calls")],
)
def test_finish_reasons(reason, finish):
    """The engine's three ends are OpenAI's."""
    assert fold(streamed([End(reason)]))[1] == finish
    whole = openai_chat.whole(Answer((), End(reason)), HEAD)
    assert whole["choices"][0]["finish_reason"] == finish


def test_R019_two_calls_have_two_indexes():
    """Each call has its index and id, and is complete before the next one starts."""
    calls = [ToolCall("id-a", "read", {"p": "a"}), ToolCall("id-b", "read", {"p": "b"})]

    frames = streamed([Call(calls[0]), Call(calls[1]), End("tools")])

    parts = [part for d in deltas(frames) for part in d.get("tool_calls", ())]
    indexes = [part["index"] for part in parts]
    assert indexes == sorted(indexes)
    assert set(indexes) == {0, 1}
    assert [p["id"] for p in parts if "id" in p] == ["id-a", "id-b"]
    assert sum("name" in p["function"] for p in parts) == 2
    message, finish = fold(frames)
    assert finish == "tool_calls"
    assert [json.loads(c["arguments"]) for c in message["calls"].values()] == [
        {"p": "a"},
        {"p": "b"},
    ]


def test_R020_every_tool_delta_has_an_index():
    """Helpers put calls together by it."""
    big = ToolCall("c", "write", {"text": "é" * 3000})

    frames = streamed([Call(big), End("tools")])

    parts = [part for d in deltas(frames) for part in d.get("tool_calls", ())]
    assert len(parts) > 3
    assert all(part["index"] == 0 for part in parts)
    assert all(len(p["function"]["arguments"].encode()) <= 1024 for p in parts)
    assert parts[0] == {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": "write", "arguments": ""},
    }
    assert all(p.keys() == {"index", "function"} for p in parts[1:])
    assert json.loads("".join(p["function"]["arguments"] for p in parts)) == (
        big.arguments
    )


def test_arguments_are_compact_json():
    """Clients compare and re-send them; integers stay exact."""
    call = ToolCall("c", "f", {"n": 9007199254740993, "s": "ü", "l": [1, None]})
    whole = openai_chat.whole(Answer((Call(call),), End("tools")), HEAD)

    wire = whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]

    assert wire == '{"n":9007199254740993,"s":"ü","l":[1,null]}'


def test_thoughts_never_reach_the_content():
    """Reasoning has a field of its own, in both forms."""
    events = [Thought("hm"), Text("4"), End("stop")]

    message, _ = fold(streamed(events))
    whole = openai_chat.whole(gather(events), HEAD)["choices"][0]["message"]

    assert (message["content"], message["reasoning"]) == ("4", "hm")
    assert (whole["content"], whole["reasoning_content"]) == ("4", "hm")


def test_waiting_is_a_comment():
    """A sign of life that no client takes for an event."""
    text = "".join(openai_chat.stream([Waiting(), End("stop")], HEAD))

    assert text.count(": keep-alive\n\n") == 1


def test_R013_a_failed_stream_is_closed_then_told():
    """Content stays, the choice is closed but never with "stop", the error is last."""
    error = EngineError("the engine failed", code="engine_oom")

    frames = streamed(failing(Text("a"), Text("b"), error=error))

    message, finish = fold(frames[:-2])
    assert (message["content"], finish) == ("ab", "error")
    assert frames[-2] == {
        "error": {
            "message": "the engine failed",
            "type": "server_error",
            "param": None,
            "code": "engine_oom",
        }
    }
    assert frames[-1] == "[DONE]"


def test_a_failure_before_the_first_token_is_told_too():
    """Role, closed choice, error, [DONE]."""
    frames = streamed(failing(error=ShuttingDown("the server is stopping")))

    assert frames[-2]["error"]["code"] == "server_shutdown"
    assert frames[-1] == "[DONE]"
    assert fold(frames[:-2])[1] == "error"


def test_a_stream_without_an_end_is_a_failure():
    """An engine that just stops never passes for one that finished."""
    frames = streamed([Text("half an ans")])

    assert frames[-2]["error"]["code"] == "engine_error"
    assert fold(frames[:-2])[1] == "error"


def test_a_failure_after_the_end_does_not_close_twice():
    """One choice gets one finish reason."""
    frames = streamed(failing(End("stop"), error=EngineError("late")))

    finishes = [
        f["choices"][0]["finish_reason"]
        for f in frames
        if f != "[DONE]" and f["choices"]
    ]
    assert [f for f in finishes if f] == ["stop"]
    assert frames.count("[DONE]") == 1


def test_heads_are_unique():
    """Each answer has an id of its own in OpenAI's form."""
    heads = [openai_chat.new_head("ofa-hpc", 5) for _ in range(50)]

    assert len({head["id"] for head in heads}) == 50
    assert all(len(head["id"]) >= len("chatcmpl-") + 24 for head in heads)
    assert heads[0]["model"] == "ofa-hpc"
    assert heads[0]["created"] == 5


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
CALLS = st.builds(
    Call,
    st.builds(
        ToolCall,
        id=st.text("abc123", min_size=1, max_size=8),
        name=st.sampled_from(["read", "write-file", "a_b"]),
        arguments=st.dictionaries(st.text(), VALUES, max_size=4),
    ),
)
EVENTS = st.lists(
    st.builds(Text, st.text())
    | st.builds(Thought, st.text())
    | CALLS
    | st.just(Waiting()),
    max_size=12,
)


@QUICK
@given(EVENTS, st.sampled_from(["stop", "length", "tools"]))
def test_the_fold_of_a_stream_is_the_whole(events, reason):
    """Whatever the events, an SDK that adds up the deltas gets the whole answer."""
    events = [*events, End(reason, USAGE)]

    message, finish = fold(streamed(events))
    whole = openai_chat.whole(gather(events), HEAD)["choices"][0]

    assert finish == whole["finish_reason"]
    assert message["role"] == whole["message"]["role"]
    assert message["content"] == (whole["message"]["content"] or "")
    assert message["reasoning"] == whole["message"].get("reasoning_content", "")
    calls = [
        {"id": c["id"], "type": c["type"], **c["function"]}
        for c in whole["message"].get("tool_calls", ())
    ]
    assert [message["calls"][i] for i in sorted(message["calls"])] == calls
