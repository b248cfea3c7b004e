"""OpenAI's answers: whole and streamed are two pictures of the same events."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import (
    Answer,
    Call,
    End,
    Logprob,
    Text,
    Thought,
    ToolCall,
    Usage,
    Waiting,
    gather_choices,
)
from ofa.errors import EngineError, ShuttingDown
from ofa.protocols import openai_chat

from ..spec import valid

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


def chunks(frames, index=0):
    """Return what a stream has of one choice."""
    choices = [c for f in frames if f != "[DONE]" for c in f.get("choices", ())]
    return [choice for choice in choices if choice["index"] == index]


def fold(frames, index=0):
    """Put a choice back together as an SDK does: the message and the finish reason."""
    message = {"role": None, "content": "", "reasoning": "", "calls": {}}
    finish = None
    for choice in chunks(frames, index):
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

    assert openai_chat.whole((answer,), HEAD) == {
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
        return openai_chat.whole((Answer(parts, End("stop")),), HEAD)["choices"][0][
            "message"
        ]["content"]

    assert content() == ""
    assert content(call) is None
    assert content(Text("x"), call) == "x"


def test_usage_is_never_invented():
    """Where the engine told no counts, none are given."""
    assert "usage" not in openai_chat.whole((Answer((), End("stop")),), HEAD)
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
    whole = openai_chat.whole((Answer((), End(reason)),), HEAD)
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
    whole = openai_chat.whole((Answer((Call(call),), End("tools")),), HEAD)

    wire = whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]

    assert wire == '{"n":9007199254740993,"s":"ü","l":[1,null]}'


def test_thoughts_never_reach_the_content():
    """Reasoning has a field of its own, in both forms."""
    events = [Thought("hm"), Text("4"), End("stop")]

    message, _ = fold(streamed(events))
    whole = openai_chat.whole(gather_choices(events), HEAD)["choices"][0]["message"]

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


def word(text, logprob=-0.5, top=()):
    """Return the log probability of a token that is *text*."""
    return Logprob(text, logprob, text.encode(), tuple(top))


def ended(*indexes, usage=USAGE):
    """Return the ends of the choices *indexes*, in this order."""
    *others, last = indexes
    return [
        *(End("stop", None, index, last=False) for index in others),
        End("length", usage, last),
    ]


def test_one_choice_is_sent_as_it_always_was():
    """The bytes of a stream with one choice: clients depend on more than the schema."""
    events = [Text("a"), Waiting(), Thought("b"), End("stop", USAGE)]

    text = "".join(openai_chat.stream(events, HEAD))

    head = '{"id":"chatcmpl-1","created":5,"model":"ofa-hpc",'
    head += '"object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    assert text == (
        f'data: {head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"a"}},"finish_reason":null}}]}}\n\n'
        ": keep-alive\n\n"
        f'data: {head}{{"reasoning_content":"b"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{}},"finish_reason":"stop"}}]}}\n\n'
        "data: [DONE]\n\n"
    )


def test_choices_are_told_apart_and_sorted():
    """The whole has them by index, though the last to end was another."""
    events = [Text("b", 1), Text("a", 0), Text("c", 2), *ended(2, 0, 1)]

    whole = openai_chat.whole(gather_choices(events), HEAD)

    assert [
        (c["index"], c["message"]["content"], c["finish_reason"])
        for c in whole["choices"]
    ] == [(0, "a", "stop"), (1, "b", "length"), (2, "c", "stop")]
    assert whole["usage"] == WIRE_USAGE
    valid(whole, "ChatCompletion")


def test_each_choice_of_a_stream_opens_and_closes_once():
    """A role before its content, a finish reason after; counts once, at the end."""
    events = [Text("b", 1), Text("a", 0), Text("B", 1), *ended(1, 0)]

    frames = streamed(events, usage=True)

    for index, content in ((0, "a"), (1, "bB")):
        mine = chunks(frames, index)
        assert "role" in mine[0]["delta"]
        assert sum("role" in choice["delta"] for choice in mine) == 1
        assert [bool(choice["finish_reason"]) for choice in mine] == (
            [False] * (len(mine) - 1) + [True]
        )
        assert fold(frames, index)[0]["content"] == content
    assert sum("usage" in frame for frame in frames if frame != "[DONE]") == 1
    assert frames[-2]["usage"] == WIRE_USAGE
    assert frames[-1] == "[DONE]"


def test_a_choice_that_says_nothing_opens_and_closes_too():
    """Its reader gets an empty answer, not none."""
    frames = streamed([Text("a"), *ended(0, 1)])

    assert fold(frames, 1) == (
        {"role": "assistant", "content": "", "reasoning": "", "calls": {}},
        "length",
    )


def test_calls_are_numbered_within_their_choice():
    """The second choice's first call is number 0 again."""
    calls = [ToolCall(f"id-{n}", "read", {"n": n}) for n in range(3)]
    events = [Call(calls[0]), Call(calls[1], 1), Call(calls[2]), *ended(0, 1)]

    frames = streamed(events)

    numbers = {
        index: [
            call["id"] for _, call in sorted(fold(frames, index)[0]["calls"].items())
        ]
        for index in (0, 1)
    }
    assert numbers == {0: ["id-0", "id-2"], 1: ["id-1"]}


def test_R013_a_failure_closes_the_choices_that_are_open():
    """What was finished stays so, what was begun is closed, then comes the error."""
    events = [Text("a"), Text("b", 1), Text("c", 2), End("stop", None, 1, last=False)]

    frames = streamed(failing(*events, error=EngineError("broken")))

    assert [fold(frames[:-2], index)[1] for index in range(3)] == [
        "error",
        "stop",
        "error",
    ]
    assert frames[-2]["error"]["message"] == "broken"
    assert frames[-1] == "[DONE]"


def test_a_failure_between_two_choices_is_just_told():
    """Where none is open, none is closed a second time."""
    events = [Text("a"), End("stop", None, 0, last=False)]

    frames = streamed(failing(*events, error=EngineError("broken")))

    finishes = [choice["finish_reason"] for choice in chunks(frames)]
    assert finishes == [None, None, "stop"]
    assert "error" in frames[-2]


TOKEN = {"token": "Hé", "logprob": -0.5, "bytes": [72, 195, 169]}


def test_logprobs_of_a_whole_answer():
    """Token, logarithm, bytes and the likeliest others, as the reference has them."""
    top = [word("Hé"), word("Ha", -3.0)]
    events = [Text("Hé", logprobs=(word("Hé", top=top),)), *ended(0)]

    whole = openai_chat.whole(gather_choices(events), HEAD)

    others = [TOKEN, {"token": "Ha", "logprob": -3.0, "bytes": [72, 97]}]
    assert whole["choices"][0]["logprobs"] == {
        "content": [{**TOKEN, "top_logprobs": others}],
        "refusal": None,
    }
    valid(whole, "ChatCompletion")


def test_logprobs_come_with_the_text_they_belong_to():
    """A chunk has those of its own tokens, and no such field where there are none."""
    events = [
        Text("Hé", logprobs=(word("Hé"),)),
        Text("", logprobs=(Logprob("", -1.0, b"\xf0\x9f"),)),  # half a character
        *ended(0),
    ]

    frames = streamed(events)

    assert chunks(frames)[1:3] == [
        {
            "index": 0,
            "delta": {"content": "Hé"},
            "logprobs": {"content": [{**TOKEN, "top_logprobs": []}], "refusal": None},
            "finish_reason": None,
        },
        {
            "index": 0,
            "delta": {"content": ""},
            "logprobs": {
                "content": [
                    {
                        "token": "",
                        "logprob": -1.0,
                        "bytes": [240, 159],
                        "top_logprobs": [],
                    }
                ],
                "refusal": None,
            },
            "finish_reason": None,
        },
    ]
    assert all("logprobs" not in chunks(frames)[at] for at in (0, -1))


@pytest.mark.parametrize(
    ("logprob", "told"),
    [
        (float("-inf"), -9999.0),
        (float("nan"), -9999.0),
        (-1e9, -9999.0),
        (float("inf"), 0.0),
        (1e-7, 0.0),
    ],
)
def test_what_no_logprob_can_be_is_told_as_the_nearest(logprob, told):
    """JSON has no infinity; OpenAI's reference has a number for the impossible."""
    events = [
        Text("a", logprobs=(word("a", logprob, [word("a", logprob)]),)),
        *ended(0),
    ]

    whole = openai_chat.whole(gather_choices(events), HEAD)

    (token,) = whole["choices"][0]["logprobs"]["content"]
    assert token["logprob"] == token["top_logprobs"][0]["logprob"] == told


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
INDEXES = st.integers(0, 2)
CALLS = st.builds(
    Call,
    st.builds(
        ToolCall,
        id=st.text("abc123", min_size=1, max_size=8),
        name=st.sampled_from(["read", "write-file", "a_b"]),
        arguments=st.dictionaries(st.text(), VALUES, max_size=4),
    ),
    INDEXES,
)
LOGPROBS = st.builds(Logprob, st.text(max_size=4), st.floats(), st.binary(max_size=4))
TEXTS = st.builds(Text, st.text(), INDEXES, st.lists(LOGPROBS, max_size=2).map(tuple))
EVENTS = st.lists(
    TEXTS | st.builds(Thought, st.text(), INDEXES) | CALLS | st.just(Waiting()),
    max_size=16,
)


@QUICK
@given(EVENTS, st.permutations([0, 1, 2]))
def test_the_fold_of_a_stream_is_the_whole(events, order):
    """Whatever the events, an SDK that adds up the deltas gets the whole answers."""
    events = [*events, *ended(*order)]

    frames = streamed(events)
    whole = openai_chat.whole(gather_choices(events), HEAD)

    valid(whole, "ChatCompletion")
    for frame in frames[:-1]:
        valid(frame, "ChatChunk")
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    for choice in whole["choices"]:
        message, finish = fold(frames, choice["index"])
        assert finish == choice["finish_reason"]
        assert message["role"] == choice["message"]["role"]
        assert message["content"] == (choice["message"]["content"] or "")
        assert message["reasoning"] == choice["message"].get("reasoning_content", "")
        calls = [
            {"id": c["id"], "type": c["type"], **c["function"]}
            for c in choice["message"].get("tool_calls", ())
        ]
        assert [message["calls"][i] for i in sorted(message["calls"])] == calls
        told = [
            token
            for chunk in chunks(frames, choice["index"])
            for token in chunk.get("logprobs", {}).get("content", ())
        ]
        assert told == (choice["logprobs"] or {"content": []})["content"]
