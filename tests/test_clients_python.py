"""
The `openai` package for Python, strict about what it gets, against a whole server.

`test_openai_client.py` holds the HTTP side to its own answers; here the queue, the
modes and the prompts stand behind it, as `ofa serve` puts them together.
"""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import openai
import pytest

from ofa.modes import SEED_MODES
from ofa.protocols.openai_fields import BOOKKEEPING, FIELDS, UNSUPPORTED

from .running import serving

ASKED = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}
ECHO = [{"echo": "last_user"}]
ENDLESS = [{"text": "first "}, {"wait_s": 90}, {"text": "never"}]
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
# What a terminal, an editor or a paste of something binary may put into a text.
CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
TEXTS = {
    "line ends": "Change x:\r\n```c\r\nint x;\r\n\tint z;\r```\n\n",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1e",
    "blanks": "  \ttwo before, two after, no break\u00a0\u2003\u3000 \t ",
    "controls": CONTROLS,
    "emoji": "😀 👩‍🚀 🏳️‍🌈 🇩🇪 👍🏽",
    "combining": "e\u0301 \u00e9 \u0041\u030a o\u0302\u0323 \u1ec7 हिन्दी 한국어",
    "directions": "a\u202eb\u2066c\u200f \ufeff \ufffd \ufffe",
    "markers": "data: [DONE]\n\ndata: {}\n\n: comment\nevent: x\nid: 1\nretry: 2\n\n",
    "escapes": '\\ " \\n \\u0041 </script> {"a": [1]} %s %(x)s {0} ${A} `b`',
}


@contextmanager
def sdk(server, *, key=None, strict=True, path="/v1", **options):
    """Yield the client as people make it, but strict, patient and without retries."""
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}{path}",
        api_key=key or server.key,
        max_retries=options.pop("max_retries", 0),
        timeout=60,
        http_client=openai.DefaultHttpxClient(trust_env=False),
        _strict_response_validation=strict,
        **options,
    ) as client:
        yield client


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the test's server and a strict client of it."""
    with ExitStack() as stack:

        def make(*answers, strict=True, **overrides):
            server = stack.enter_context(
                serving(tmp_path, list(answers) or ["ok"], **overrides)
            )
            return server, stack.enter_context(sdk(server, strict=strict))

        yield make


@pytest.fixture(scope="module")
def echoing(tmp_path_factory):
    """Yield a server that says what the user said last; for tests that only ask."""
    with serving(tmp_path_factory.mktemp("echo"), [ECHO]) as server:
        yield server


@pytest.fixture
def echo(echoing):
    """Yield a strict client of the echoing server."""
    with sdk(echoing) as client:
        yield client


def last_chat(server):
    """Return what the scripted engine was asked last."""
    return server.engine.asked[-1]


def streamed(client, **fields):
    """Return all chunks of a streamed answer."""
    return list(client.chat.completions.create(**{**ASKED, **fields}, stream=True))


def contents(chunks):
    """Return the pieces of text in *chunks*."""
    deltas = (choice.delta for chunk in chunks for choice in chunk.choices)
    return [delta.content for delta in deltas if delta.content]


def said(client, text, **fields):
    """Ask *text* and return what is answered, whole."""
    asked = {**ASKED, "messages": [{"role": "user", "content": text}], **fields}
    return client.chat.completions.create(**asked).choices[0].message.content


def until(holds, within_s=10.0):
    """Return how long it took until *holds* did; fails after *within_s*."""
    since, pause = time.monotonic(), threading.Event()
    while not holds():
        assert time.monotonic() - since < within_s, "it never came to hold"
        pause.wait(0.01)
    return time.monotonic() - since


# --- answers -----------------------------------------------------------------------


def test_models_are_listed_and_retrieved(echo):
    """Eight modes in the client's own type; each is found by its id."""
    listed = echo.models.list().data

    assert [model.id for model in listed] == [mode.id for mode in SEED_MODES]
    assert {model.object for model in listed} == {"model"}
    for model in listed:
        assert echo.models.retrieve(model.id) == model


@pytest.mark.parametrize("mode", [mode.id for mode in SEED_MODES])
def test_every_mode_answers(echo, mode):
    """The answer names the model that was asked for."""
    got = echo.chat.completions.create(**{**ASKED, "model": mode})

    assert (got.model, got.choices[0].message.content) == (mode, "hi")


def test_a_whole_answer(start):
    """One choice with text, finish reason and counts that add up."""
    _, client = start([{"text": "fine "}, {"text": "answer"}])

    got = client.chat.completions.create(**ASKED)

    (choice,) = got.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", "fine answer")
    assert choice.message.tool_calls is None
    assert got.usage.completion_tokens == 2
    assert got.usage.total_tokens == got.usage.prompt_tokens + 2


def test_a_streamed_answer(start):
    """Role, text, finish, usage: in this order, under one id, the same counts."""
    _, client = start([{"text": "fine "}, {"text": "answer"}])

    whole = client.chat.completions.create(**ASKED)
    role, *middle, finish, usage = streamed(
        client, stream_options={"include_usage": True}
    )

    assert (role.choices[0].delta.role, role.choices[0].delta.content) == (
        "assistant",
        "",
    )
    assert contents(middle) == ["fine ", "answer"]
    assert {chunk.choices[0].finish_reason for chunk in (role, *middle)} == {None}
    assert finish.choices[0].finish_reason == "stop"
    assert (usage.choices, usage.usage) == ([], whole.usage)
    heads = {(c.id, c.created, c.model, c.object) for c in (role, *middle, finish)}
    assert len(heads | {(usage.id, usage.created, usage.model, usage.object)}) == 1


def test_headers_tell_what_was_done(echo):
    """The raw response shows a request id and what retrieval did."""
    create = echo.chat.completions.with_raw_response.create

    raw = create(**ASKED, extra_headers={"X-Request-Id": "my-own-1"})
    other = create(**ASKED, verbosity="low")

    assert raw.parse().choices[0].message.content == "hi"
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-ofa-rag"] == "skipped; retrieval is off"
    assert raw.headers["x-request-id"] == raw.parse()._request_id == "my-own-1"
    assert other.headers["x-ofa-ignored"] == "verbosity"
    assert other.headers["x-request-id"] not in ("", "my-own-1")


def test_a_developer_message_and_parts(start):
    """The new role's name and text in parts are read as text."""
    server, client = start([{"echo": "all"}], api__client_system="append")
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
    ]

    got = client.chat.completions.create(model="ofa-hpc", messages=messages)

    assert got.choices[0].message.content.endswith("\n\nBe brief.\nuser: ab")


def test_R064_output_limits_reach_the_engine(start):
    """Either name of the limit, the newer first; without one what /v1/models tells."""
    server, client = start([{"text": "cut"}, {"end": "length"}])

    limits = []
    for fields in (
        {"max_completion_tokens": 7},
        {"max_tokens": 8},
        {"max_tokens": 8, "max_completion_tokens": 7},
        {"max_tokens": None},
        {},
    ):
        got = client.chat.completions.create(**ASKED, **fields)
        assert got.choices[0].finish_reason == "length"
        limits.append(last_chat(server).sampling.max_tokens)

    told = client.models.retrieve("ofa-hpc").max_output_tokens
    assert limits == [7, 8, 7, told, told]


def test_R064_length_is_said_by_the_engine_alone(echo):
    """An answer that ends by itself ended by itself, whatever the limit was."""
    assert streamed(echo, max_tokens=1)[-1].choices[0].finish_reason == "stop"
    assert streamed(echo)[-1].choices[0].finish_reason == "stop"


def test_R065_null_is_absent(echo):
    """A client that writes out all of its defaults as null is answered."""
    every = {*FIELDS, *UNSUPPORTED, *BOOKKEEPING, "tools", "tool_choice", "new_field"}
    nulls = dict.fromkeys(every)

    whole = echo.chat.completions.create(**ASKED, extra_body=nulls)
    chunks = streamed(echo, extra_body={**nulls, "stream": True})

    assert whole.choices[0].message.content == "hi"
    assert contents(chunks) == ["hi"]
    assert all(chunk.choices for chunk in chunks)


@pytest.mark.parametrize("options", [{}, None, {"include_usage": False}])
def test_R014_no_usage_chunk_unless_asked(echo, options):
    """Without the wish, or with an empty one, every chunk has its choice."""
    chunks = streamed(echo, extra_body={"stream_options": options})

    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


# --- text --------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_R073_text_goes_round_unchanged(echo, text):
    """What the user typed comes back to the character, whole and streamed."""
    asked = {"messages": [{"role": "user", "content": text}]}

    assert said(echo, text) == text
    assert "".join(contents(streamed(echo, **asked))) == text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_R073_tool_results_and_arguments_are_unchanged(start, text):
    """A file's content survives in a call's arguments and in a result."""
    _, client = start(
        [{"call": {"name": "read_note", "arguments": {"path": text}}}],
        [{"echo": "all"}],
    )

    call = _call(client.chat.completions, ASKED["messages"])
    result = {"role": "tool", "tool_call_id": call.id, "content": text}
    back = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        result,
    ]
    got = client.chat.completions.create(model="ofa-hpc", messages=back, tools=[NOTE])

    assert call.function.parsed_arguments is None  # the tool is not a strict one
    assert arguments_of(call) == {"path": text}
    assert got.choices[0].message.content.endswith(f"\ntool: {text}")


def _call(completions, messages):
    """Return the one call of a streamed answer, put together by the client."""
    asked = {**ASKED, "messages": messages}
    with completions.stream(**asked, tools=[NOTE]) as stream:
        (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls
    return call


def arguments_of(call):
    """Return the arguments of a call as its user parses them."""
    return json.loads(call.function.arguments)


# --- tools -------------------------------------------------------------------------


def test_R019_two_calls_are_rebuilt(start):
    """The client's stream helper gets two calls with their own ids and arguments."""
    paths = ("notes/a.txt", "ü 😀 " * 900)
    calls = [{"call": {"name": "read_note", "arguments": {"path": p}}} for p in paths]
    _, client = start([{"text": "on it"}, *calls])

    with client.chat.completions.stream(**ASKED, tools=[NOTE]) as stream:
        done = [
            (event.index, event.name, event.arguments)
            for event in stream
            if event.type == "tool_calls.function.arguments.done"
        ]
        (choice,) = stream.get_final_completion().choices

    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "on it"
    got = choice.message.tool_calls
    assert [arguments_of(call) for call in got] == [{"path": p} for p in paths]
    assert [call.function.name for call in got] == ["read_note", "read_note"]
    assert len({call.id for call in got}) == 2
    assert done == [(i, "read_note", c.function.arguments) for i, c in enumerate(got)]


def test_R020_every_delta_of_a_call_has_an_index(start):
    """Index 0, then 1; id and name once each, at the head of their call."""
    arguments = {"path": "x" * 5000}
    call = {"call": {"name": "read_note", "arguments": arguments}, "times": 2}
    _, client = start([call])

    deltas = [
        delta
        for chunk in streamed(client, tools=[NOTE])
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]

    indexes = [delta.index for delta in deltas]
    assert indexes == sorted(indexes) and set(indexes) == {0, 1}
    for index in (0, 1):
        head, *pieces = [delta for delta in deltas if delta.index == index]
        assert head.id and head.type == "function"
        assert head.function.name == "read_note"
        assert len(pieces) > 1
        assert {(d.id, d.type, d.function.name) for d in pieces} == {(None,) * 3}


def test_R016_text_streams_although_tools_are_sent(start):
    """Fifty pieces stay fifty pieces."""
    _, client = start([{"text": "word "}, {"text": "and ", "times": 49}])

    chunks = streamed(client, tools=[NOTE], tool_choice="auto")

    assert contents(chunks) == ["word ", *["and "] * 49]


def test_R029_tools_may_be_off(start):
    """Then a chat with tools is a chat, a header says so, and a demand is refused."""
    _, client = start([{"text": "fine"}], tools__enabled=False)

    raw = client.chat.completions.with_raw_response.create(**ASKED, tools=[NOTE])
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, tools=[NOTE], tool_choice="required")

    assert raw.parse().choices[0].message.content == "fine"
    assert raw.headers["x-ofa-tools"].startswith("ignored; tools are off")
    assert caught.value.param == "tool_choice"


HISTORIES = {
    "R025 a tool result": (
        [
            {"role": "user", "content": "What is in a.txt?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "read_note", "arguments": '{"path":"a"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "It is HERON."},
        ],
        "user: What is in a.txt?\nassistant: \ntool: It is HERON.",
    ),
    "R026 a failed tool": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "0",
                        "type": "function",
                        "function": {"name": "read_note", "arguments": '{"path":"x"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "0", "content": '{"error":"not found"}'},
        ],
        '\n\nBe brief.\nuser: Hi\nassistant: \ntool: {"error":"not found"}',
    ),
    "R028 an orphan result": (
        [
            {"role": "user", "content": "go"},
            {"role": "tool", "tool_call_id": "call_gone", "content": "late result"},
        ],
        "user: go\ntool: late result",
    ),
    "R031 three system texts": (
        [
            {"role": "system", "content": "AAA"},
            {"role": "system", "content": "BBB"},
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "CCC"},
            {"role": "assistant", "content": "yo"},
            {"role": "user", "content": "bye"},
        ],
        "\n\nAAA\n\nBBB\n\nCCC\nuser: hi\nassistant: yo\nuser: bye",
    ),
    "R032 two user texts in a row": (
        [
            {"role": "system", "content": "Translate."},
            {"role": "user", "content": "Only translate the text in the tags."},
            {"role": "user", "content": "<t1>guten Tag</t1>"},
        ],
        "\n\nTranslate.\nuser: Only translate the text in the tags.\n"
        "user: <t1>guten Tag</t1>",
    ),
}


@pytest.fixture(scope="module")
def transcript(tmp_path_factory):
    """Yield a server that shows the whole chat as the engine got it."""
    folder = tmp_path_factory.mktemp("transcript")
    with serving(folder, [[{"echo": "all"}]], api__client_system="append") as server:
        yield server


@pytest.mark.parametrize("tools", [[NOTE], None], ids=["tools", "none"])
@pytest.mark.parametrize(("messages", "told"), HISTORIES.values(), ids=HISTORIES)
def test_shapes_of_history(transcript, messages, told, tools):
    """R025, R026, R028, R031, R032: no shape is refused, no text of it is lost."""
    asked = {"model": "ofa-hpc", "messages": messages, "tools": tools}

    with sdk(transcript) as client:
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))

    assert whole.choices[0].message.content.endswith(told)
    assert "".join(contents(chunks)) == whole.choices[0].message.content


# --- errors ------------------------------------------------------------------------

# As a proxy, a browser or somebody who looks for a gap may spell them.
PATHS = """
    /v1/models /v1/models/ //v1/models /V1/MODELS /v1/./models /v1/%6dodels
    /v1/models;x=1 /v1/models/ofa-hpc /v1/chat/completions /chat/completions
    /v1/ofa/byok /readyz / /nope /healthz/ //healthz /healthz/.. /v1/../healthz
    /%68ealthz /healthz;x /healthz/../v1/models
"""
KEYS = [
    ({"Authorization": openai.Omit()}, "no API key in this request: "),
    ({"Authorization": "Bearer"}, "an empty API key: "),
    ({"Authorization": "Bearer ofa-" + "x" * 43}, "a wrong API key: "),
    ({"Authorization": openai.Omit(), "api-key": "x" * 47}, "a wrong API key: "),
]


@pytest.mark.parametrize(("headers", "told"), KEYS, ids=["no", "empty", "wrong", "api"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_will_not_do(echo, headers, told, stream):
    """Each fault has its own text with a remedy; none repeats what was sent."""
    with pytest.raises(openai.AuthenticationError) as caught:
        echo.chat.completions.create(**ASKED, stream=stream, extra_headers=headers)

    assert caught.value.code == "invalid_api_key"
    assert caught.value.body["message"].startswith(told)
    assert "`ofa " in caught.value.body["message"]
    assert "xxx" not in str(caught.value)
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("name", ["api-key", "x-api-key", "openai-api-key"])
def test_other_headers_carry_the_key(echoing, echo, name):
    """Clients of other clouds send the same key under other names."""
    headers = {"Authorization": openai.Omit(), name: echoing.key}

    got = echo.chat.completions.create(**ASKED, extra_headers=headers)

    assert got.choices[0].message.content == "hi"


def test_R059_no_spelling_gets_in_without_the_key(echoing):
    """Every route, every spelling and method is 401, but for the one probe."""
    for path in PATHS.split():
        for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE"):
            status, _, body = echoing.ask(method, path, headers={"Authorization": ""})
            assert status == 401, (method, path)
            assert b"ofa-hpc" not in body
    assert echoing.ask("GET", "/healthz", headers={"Authorization": ""})[0] == 200


@pytest.mark.parametrize("path", ["/v1/", "", "/", "//v1", "/v1/v1", "/v1//", "/./v1"])
def test_R061_base_urls_as_people_type_them(echoing, path):
    """With too many slashes, /v1 twice or not at all: the same answers."""
    with sdk(echoing, path=path) as client:
        assert len(client.models.list().data) == len(SEED_MODES)
        assert client.models.retrieve("ofa-hpc").id == "ofa-hpc"
        assert said(client, "hello") == "hello"


def test_R062_wrong_methods_are_told_the_right_ones(echoing):
    """405 with Allow as JSON, and OPTIONS answers without a body."""
    for method, path, allow in (
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
        ("PUT", "/v1/chat/completions", "OPTIONS, POST"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
    ):
        status, headers, body = echoing.ask(method, path)
        assert (status, headers["allow"]) == (405, allow)
        assert b'"method_not_allowed"' in body
    status, headers, body = echoing.ask("OPTIONS", "/v1/chat/completions")
    assert (status, headers["allow"], body) == (204, "OPTIONS, POST", b"")
    assert echoing.ask("HEAD", "/v1/models")[0] == 200


def test_an_unknown_model(echo):
    """404 with the models on offer, for a chat and for a look-up."""
    for ask in (
        lambda: echo.chat.completions.create(**{**ASKED, "model": "gpt-5"}),
        lambda: echo.models.retrieve("gpt-5"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert all(mode.id in caught.value.message for mode in SEED_MODES)


def test_an_endpoint_that_is_not_served(echo):
    """Another API of the client's is 404 as JSON that names what there is."""
    with pytest.raises(openai.NotFoundError) as caught:
        echo.moderations.create(input="x")

    assert caught.value.code == "not_found"
    assert "/v1/chat/completions" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"n": 129}, "n"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream": "yes"}, "stream"),
    ],
    ids=str,
)
def test_a_bad_value_is_named(echo, fields, param):
    """400 as the client's own error; the field is in param and heads the message."""
    with pytest.raises(openai.BadRequestError) as caught:
        echo.chat.completions.create(**ASKED, extra_body=fields)

    assert caught.value.param == param
    assert caught.value.body["message"].startswith(f"{param}: ")
    assert caught.value.type == "invalid_request_error"


def test_R040_an_image_is_refused_by_name(echo):
    """Where nobody can see it: a code of its own and the very part, no guess."""
    parts = [
        {"type": "text", "text": "what is this"},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
        },
    ]
    message = {"role": "user", "content": parts, "refusal": None}

    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            echo.chat.completions.create(
                model="ofa-hpc", messages=[message], stream=stream
            )
        assert caught.value.code == "image_not_supported"
        assert caught.value.param.startswith("messages[0].content[1].image_url")


class Impatient(openai.OpenAI):
    """Notes how long it would wait before it tries again, and does not wait."""

    def __init__(self, *args, meanwhile, **options):
        super().__init__(*args, **options)
        self.waits = []
        self._meanwhile = meanwhile

    def _calculate_retry_timeout(self, *args):
        self.waits.append(super()._calculate_retry_timeout(*args))
        self._meanwhile()
        return 0.0


def test_a_full_queue_says_when_to_come_back(start):
    """429 at once; the client waits as long as it is told to and is then answered."""
    server, client = start(ENDLESS, "later", server__running=1, server__waiting=0)
    first = client.chat.completions.create(**ASKED, stream=True)

    def leave():
        first.close()
        until(lambda: server.running.queue.depth() == (0, 0))

    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**ASKED)
    with Impatient(
        base_url=client.base_url,
        api_key=server.key,
        max_retries=2,
        http_client=openai.DefaultHttpxClient(trust_env=False),
        meanwhile=leave,
    ) as patient:
        got = patient.chat.completions.create(**ASKED)

    assert caught.value.code == "queue_full"
    told = caught.value.response.headers["retry-after"]
    assert patient.waits == [float(told)]
    assert 1 <= float(told) <= 60
    assert got.choices[0].message.content == "later"


@pytest.mark.parametrize("times", [2, 4000])
def test_a_body_over_the_limit(start, times):
    """413 also where most of the body is still to be sent when it is refused."""
    _, client = start(server__max_body_bytes=2000)

    with pytest.raises(openai.APIStatusError) as caught:
        said(client, "x" * 1000 * times)

    assert caught.value.status_code == 413
    assert caught.value.code == "request_too_large"


def test_R013_a_failure_midway_is_raised(start):
    """What came stays; the error has the server's code and words. Never a quiet end."""
    _, client = start([{"text": "half"}, {"fail": "the engine failed"}], strict=False)
    seen = []

    with pytest.raises(openai.APIError) as caught:
        for chunk in client.chat.completions.create(**ASKED, stream=True):
            seen.append(chunk)

    assert contents(seen) == ["half"]
    assert [c.choices[0].finish_reason for c in seen] == [None, None, "error"]
    assert (caught.value.code, caught.value.message) == (
        "engine_error",
        "the engine failed",
    )


def test_R013_a_failure_midway_is_raised_to_the_strict(start):
    """A strict client stumbles over the finish reason first; it raises all the same."""
    _, client = start([{"text": "half"}, {"fail": "the engine failed"}])

    with pytest.raises(openai.APIError):
        streamed(client)


def test_a_failure_of_a_whole_answer(start):
    """A status, and nothing of the half answer."""
    _, client = start([{"text": "half"}, {"fail": "the engine failed"}])

    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**ASKED)

    assert (caught.value.status_code, caught.value.code) == (502, "engine_error")
    assert "half" not in str(caught.value)


# --- time --------------------------------------------------------------------------

# By the case, one second for a stream and two for a whole answer; on a busy machine
# 0.26 and 0.07 were measured. The first write to a client that left is after ten.
LEFT_WITHIN_S = 3.0


def test_R008_leaving_a_stream_stops_the_work(start):
    """The place is free and the engine's reply closed while the client lives on."""
    server, client = start(ENDLESS, "next")
    queue = server.running.queue
    stream = client.chat.completions.create(**ASKED, stream=True)

    for chunk in stream:
        if contents([chunk]) == ["first "]:
            break
    assert queue.depth() == (1, 0)
    stream.close()
    until(lambda: queue.depth() == (0, 0), LEFT_WITHIN_S)

    assert server.engine.closed_replies == 1
    assert said(client, "and now?") == "next"


def test_R008_giving_up_on_a_whole_answer_stops_the_work(start):
    """A client that ran out of patience isn't worked for any longer."""
    server, client = start(ENDLESS, "next")
    queue = server.running.queue

    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.0).chat.completions.create(**ASKED)
    until(lambda: queue.depth() == (0, 0), LEFT_WITHIN_S)

    assert server.engine.closed_replies == 1
    assert said(client, "and now?") == "next"


def test_R008_leaving_the_line_gives_the_place_back(start):
    """One who waits behind another and leaves never reaches the engine's thread."""
    server, client = start(ENDLESS, server__running=1)
    queue = server.running.queue
    first = client.chat.completions.create(**ASKED, stream=True)
    second = client.chat.completions.create(**ASKED, stream=True)
    until(lambda: queue.depth() == (1, 1))

    second.close()
    until(lambda: queue.depth() == (1, 0), LEFT_WITHIN_S)
    first.close()
    until(lambda: queue.depth() == (0, 0), LEFT_WITHIN_S)

    assert server.engine.closed_replies == 2


def test_R010_comments_keep_a_silent_stream_alive(start):
    """They are on the wire between whole events, and the client takes no notice."""
    silent = [{"wait_s": 1.0}, {"text": "a"}, {"wait_s": 1.0}, {"text": "b"}]
    _, client = start(silent, server__keep_alive_s=0.2)
    create = client.chat.completions.with_streaming_response.create

    chunks = streamed(client)
    with create(**ASKED, stream=True) as response:
        lines = list(response.iter_lines())

    assert contents(chunks) == ["a", "b"]
    assert all(line[:6] in ("", "data: ", ": keep") for line in lines)
    comments = [at for at, line in enumerate(lines) if line == ": keep-alive"]
    first = next(at for at, line in enumerate(lines) if '"content":"a"' in line)
    assert sum(at < first for at in comments) >= 1
    assert sum(at > first for at in comments) >= 1
    assert all(lines[at + 1] == "" for at in comments)


def test_R005_no_answer_holds_anothers_words(start):
    """Sixteen streams at once, a thousand in all: each says its own word, twice."""
    script = [{"echo": "last_user"}, {"wait_s": 0.002}, {"echo": "last_user"}]
    server, client = start(script, server__running=8)
    rounds = 63

    def ask(number):
        wrong = []
        for round_ in range(rounds):
            word = f"CANARY-{number}-{round_};"
            asked = [{"role": "user", "content": word}]
            pieces = contents(streamed(client, messages=asked))
            if pieces != [word, word]:
                wrong.append((word, pieces))
        return wrong

    with ThreadPoolExecutor(16) as threads:
        wrong = [each for found in threads.map(ask, range(16)) for each in found]

    assert wrong == []
    assert len(server.engine.asked) == 16 * rounds
    assert server.running.queue.depth() == (0, 0)


def test_R005_the_asynchronous_client_reads_many_at_once(echoing):
    """Sixteen streams in one thread, as agents in asyncio open them."""
    words = [f"CANARY-{number};" for number in range(16)]

    async def ask(client, word):
        asked = {**ASKED, "messages": [{"role": "user", "content": word}]}
        chunks = await client.chat.completions.create(**asked, stream=True)
        return "".join(contents([chunk async for chunk in chunks]))

    async def ask_all():
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{echoing.port}/v1",
            api_key=echoing.key,
            max_retries=0,
            timeout=60,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
            _strict_response_validation=True,
        ) as client:
            return await asyncio.gather(*(ask(client, word) for word in words))

    assert asyncio.run(ask_all()) == words
