"""The official Python client, strict about what it gets, against a real server."""

import json
import warnings

import pytest

from ofa.chat import Call, End, Output, Text, Thought, ToolCall, Usage
from ofa.engine.base import Limits
from ofa.engine.scripted import ScriptedEngine
from ofa.errors import ContextLengthExceeded, EngineError, NotReady, Overloaded

from .web_fakes import KEY, FakeAnswerer, FakeReply, Refusing, Site, scripted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the client's own, at import
    openai = pytest.importorskip("openai")
    from pydantic import BaseModel

ASKED = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}
NOTE = {
    "type": "function",
    "function": {
        "name": "read_note",
        "description": "Read one note",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}
CALLS = (
    ToolCall("call_a", "read_note", {"path": "notes/a.txt", "n": 2**60}),
    ToolCall("call_b", "read_note", {"path": "ü" * 2000}),
)


@pytest.fixture
def ask():
    """Return a function that opens a server and a strict client for it."""
    opened = []

    def make(answerer=None, *, key=KEY):
        site = Site(answerer)
        client = openai.OpenAI(
            base_url=site.url + "/v1",
            api_key=key,
            max_retries=0,
            timeout=20,
            _strict_response_validation=True,
        )
        opened.append((site, client))
        return client

    yield make
    for site, client in opened:
        client.close()
        site.close()


def test_models(ask):
    """List and retrieve give the client's own types."""
    client = ask()

    ids = [model.id for model in client.models.list()]

    assert "ofa-openfoam" in ids
    assert client.models.retrieve("ofa-hpc").owned_by == "ofa"


def test_a_whole_answer(ask):
    """Text, finish reason and usage with its details."""
    got = ask().chat.completions.create(**ASKED)

    assert got.object == "chat.completion"
    assert got.choices[0].message.content == "Hello"
    assert got.choices[0].finish_reason == "stop"
    assert got.usage.total_tokens == 10
    assert got.usage.prompt_tokens_details.cached_tokens == 2
    assert got.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_streamed_answer(ask):
    """Chunks validate; text, finish reason and usage are those of the whole."""
    stream = ask().chat.completions.create(
        **ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 10


def test_R019_tools_whole_and_streamed(ask):
    """Two calls come back with the same ids, names and arguments in both forms."""
    client = ask(scripted(Text("on it"), *map(Call, CALLS), End("tools", Usage(9, 9))))

    whole = client.chat.completions.create(**ASKED, tools=[NOTE])
    with client.chat.completions.stream(**ASKED, tools=[NOTE]) as stream:
        folded = stream.get_final_completion()

    for got in (whole, folded):
        (choice,) = got.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "on it"
        assert [call.id for call in choice.message.tool_calls] == ["call_a", "call_b"]
        arguments = [c.function.arguments for c in choice.message.tool_calls]
        assert [json.loads(text) for text in arguments] == [c.arguments for c in CALLS]


def test_a_tool_loop(ask):
    """The client's own message goes back as history, with the results."""
    answers = [
        (Call(CALLS[0]), End("tools", Usage(5, 5))),
        (Text("done"), End("stop", Usage(9, 1))),
    ]
    answerer = FakeAnswerer(lambda chat: FakeReply(answers.pop(0)))
    client = ask(answerer)

    first = client.chat.completions.create(**ASKED, tools=[NOTE]).choices[0].message
    messages = [
        *ASKED["messages"],
        first,
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "text"},
    ]
    second = client.chat.completions.create(
        model="ofa-hpc", messages=messages, tools=[NOTE]
    )

    assert second.choices[0].message.content == "done"
    history = answerer.chats[1].messages
    assert history[1].calls == (CALLS[0],)
    assert history[2].answers == "call_a"


def playing(*answers, limits=None):
    """Return an answerer in front of a scripted engine."""
    engine = ScriptedEngine(answers, limits=limits)
    return FakeAnswerer(engine.reply)


def test_three_choices_whole(ask):
    """Each is a choice of its own, in the order of their numbers."""
    client = ask(playing("one", [{"text": "two"}, {"end": "length"}], "three"))

    got = client.chat.completions.create(**ASKED, n=3)

    assert [
        (choice.index, choice.message.content, choice.finish_reason)
        for choice in got.choices
    ] == [(0, "one", "stop"), (1, "two", "length"), (2, "three", "stop")]
    assert got.usage.completion_tokens == 3


def test_three_choices_streamed(ask):
    """The client's own accumulator puts each together, calls and counts included."""
    steps = [{"call": {"name": "read_note", "arguments": {"path": "a"}}}]
    client = ask(playing([{"text": "one "}, {"text": "more"}], steps, "three"))

    with client.chat.completions.stream(
        **ASKED, n=3, tools=[NOTE], stream_options={"include_usage": True}
    ) as stream:
        got = stream.get_final_completion()

    choices = sorted(got.choices, key=lambda choice: choice.index)
    assert [choice.message.content for choice in choices] == ["one more", "", "three"]
    assert [choice.message.role for choice in choices] == ["assistant"] * 3
    assert [choice.finish_reason for choice in choices] == [
        "stop",
        "tool_calls",
        "stop",
    ]
    (call,) = choices[1].message.tool_calls
    assert json.loads(call.function.arguments) == {"path": "a"}
    assert got.usage.completion_tokens == 4


@pytest.mark.parametrize("top", [None, 0, 3])
def test_logprobs_are_the_same_whole_and_streamed(ask, top):
    """Every token with its bytes and as many alternatives as were asked for."""
    client = ask(playing([{"text": "Grüße, "}, {"text": "Welt"}]))
    asked = {**ASKED, "logprobs": True, "top_logprobs": top}

    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    chunks = client.chat.completions.create(**asked, stream=True)
    streamed = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]

    assert streamed == whole
    assert b"".join(bytes(token.bytes) for token in whole).decode() == "Grüße, Welt"
    assert [len(token.top_logprobs) for token in whole] == [top or 0] * len(whole)
    with client.chat.completions.stream(**asked) as stream:
        folded = stream.get_final_completion().choices[0].logprobs.content
    assert folded == whole


class Job(BaseModel):
    """What a program wants to know of a batch job."""

    name: str
    nodes: int


def test_an_answer_is_parsed_into_a_model(ask):
    """The client sends its schema, strict, and gets its own class back."""
    answerer = playing('{"name": "cavity", "nodes": 4}')

    got = ask(answerer).chat.completions.parse(**ASKED, response_format=Job)

    assert got.choices[0].message.parsed == Job(name="cavity", nodes=4)
    (chat,) = answerer.chats
    assert chat.output.kind == "json_schema"
    assert chat.output.schema["properties"].keys() == {"name", "nodes"}
    assert chat.output.schema["additionalProperties"] is False
    assert chat.ignored == ()


def test_a_streamed_answer_is_parsed_into_a_model(ask):
    """In pieces as well, for each of several choices."""
    answers = ('{"name": "a", "nodes": 1}', '{"name": "b", "nodes": 2}')
    client = ask(playing(*answers))

    with client.chat.completions.stream(**ASKED, response_format=Job, n=2) as stream:
        got = stream.get_final_completion()

    parsed = {choice.index: choice.message.parsed for choice in got.choices}
    assert parsed == {0: Job(name="a", nodes=1), 1: Job(name="b", nodes=2)}


def test_json_mode(ask):
    """Some object, without a schema."""
    answerer = playing('{"ok": true}')

    got = ask(answerer).chat.completions.create(
        **ASKED, response_format={"type": "json_object"}
    )

    assert json.loads(got.choices[0].message.content) == {"ok": True}
    assert answerer.chats[0].output == Output()


@pytest.mark.parametrize(
    ("json_schema", "param"),
    [
        ({"name": "no good", "schema": {}}, "name"),
        ({"name": "a", "schema": []}, "schema"),
        ({"name": "a", "strict": True}, "schema"),
        ({"name": "a", "strict": "yes"}, "strict"),
    ],
)
def test_a_format_in_a_wrong_shape(ask, json_schema, param):
    """The client's error names the very field."""
    form = {"type": "json_schema", "json_schema": json_schema}

    with pytest.raises(openai.BadRequestError) as caught:
        ask().chat.completions.create(**ASKED, response_format=form)

    assert caught.value.param == f"response_format.json_schema.{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=str,
)
@pytest.mark.parametrize("streaming", [True, False])
def test_what_the_engine_cannot_do(ask, fields, param, streaming):
    """Refused by name before the stream opens, never left out in silence."""
    client = ask(playing("fine", limits=Limits(32768, 4096)))

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, stream=streaming, **fields)

    assert (caught.value.param, caught.value.code) == (param, "unsupported_value")


def test_reasoning_is_apart(ask):
    """Thoughts come in reasoning_content, never in the content."""
    client = ask(scripted(Thought("hm"), Text("4"), End("stop")))

    message = client.chat.completions.create(**ASKED).choices[0].message
    deltas = [
        chunk.choices[0].delta
        for chunk in client.chat.completions.create(**ASKED, stream=True)
    ]

    assert (message.content, message.reasoning_content) == ("4", "hm")
    assert "".join(d.content or "" for d in deltas) == "4"
    thoughts = [getattr(d, "reasoning_content", None) or "" for d in deltas]
    assert "".join(thoughts) == "hm"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContextLengthExceeded("9 of 8", param="messages"), "BadRequestError"),
        (Overloaded("full"), "RateLimitError"),
        (NotReady("loading"), "InternalServerError"),
    ],
)
def test_refusals_are_the_clients_own_errors(ask, error, kind, streaming):
    """Status, code, param and text arrive where the client keeps them."""
    client = ask(Refusing(error))

    with pytest.raises(getattr(openai, kind)) as caught:
        client.chat.completions.create(**ASKED, stream=streaming)

    assert caught.value.status_code == error.status
    assert caught.value.code == error.code
    assert caught.value.param == error.param
    assert str(error) in str(caught.value)


def test_a_wrong_key(ask):
    """The client names it an authentication error and shows our text."""
    with pytest.raises(openai.AuthenticationError, match="API key"):
        ask(key="ofa-wrong").chat.completions.create(**ASKED)


def test_an_unknown_model(ask):
    """404 is NotFoundError, with the models on offer."""
    with pytest.raises(openai.NotFoundError, match="ofa-hpc"):
        ask().chat.completions.create(**{**ASKED, "model": "gpt-5"})


def test_a_bad_value(ask):
    """400 names the field."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask().chat.completions.create(**ASKED, temperature=9)

    assert caught.value.param == "temperature"


def test_a_failure_midway_is_raised(ask):
    """A stream that fails after its first words raises; it doesn't just end."""
    answerer = scripted(Text("half"), EngineError("the engine failed"))
    site_client = ask(answerer)
    # Strict validation would refuse the finish reason "error" before the error is
    # seen; clients as people run them raise what the server said.
    client = site_client.with_options()
    client._strict_response_validation = False

    seen = []
    with pytest.raises(openai.APIError, match="the engine failed"):
        for chunk in client.chat.completions.create(**ASKED, stream=True):
            seen.extend(c.delta.content for c in chunk.choices if c.delta.content)

    assert seen == ["half"]


def test_leaving_a_stream_early(ask):
    """Closing the client's stream stops the reply behind it."""

    class Endless(FakeReply):
        def __iter__(self):
            while not self.closed.is_set():
                yield Text("more ")

    answerer = FakeAnswerer(lambda chat: Endless(()))
    stream = ask(answerer).chat.completions.create(**ASKED, stream=True)

    next(iter(stream))
    stream.close()

    assert answerer.replies[0].closed.wait(2)


def test_explicit_nulls_and_all_the_usual_fields(ask):
    """What SDK users pass through is accepted and reaches the engine."""
    answerer = FakeAnswerer()

    ask(answerer).chat.completions.create(
        **ASKED,
        temperature=0.3,
        top_p=0.9,
        max_completion_tokens=50,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"50": -1},
        seed=7,
        stop=["x", "y"],
        n=1,
        user="me",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        response_format={"type": "text"},
        reasoning_effort="low",
        verbosity="low",
        modalities=["text"],
        parallel_tool_calls=True,
        tools=[NOTE],
        tool_choice={"type": "function", "function": {"name": "read_note"}},
        extra_body={"top_k": 5, "min_p": 0.1, "max_tokens": None},
    )

    (chat,) = answerer.chats
    assert chat.sampling.max_tokens == 50
    assert chat.sampling.top_k == 5
    assert chat.tool_choice.name == "read_note"
    assert chat.thinking is True
    assert chat.ignored == ("verbosity",)
