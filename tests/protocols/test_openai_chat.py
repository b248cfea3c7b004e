"""OpenAI's chat requests: the fields other than messages and tools."""

import pytest

from ofa.chat import Output, Sampling, ToolChoice
from ofa.errors import BadRequest
from ofa.protocols import openai_chat
from ofa.protocols.openai_fields import BOOKKEEPING, FIELDS, UNSUPPORTED


def body(**fields):
    """Return a small request with *fields* over it."""
    base = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}
    return {**base, **fields}


def parse(**fields):
    """Parse a small request with *fields* over it."""
    return openai_chat.parse(body(**fields))


def refusal(*, refuse_unknown=False, **fields):
    """Return the error that a request with *fields* is refused with."""
    with pytest.raises(BadRequest) as caught:
        openai_chat.parse(body(**fields), refuse_unknown=refuse_unknown)
    return caught.value


def test_the_smallest_request_asks_for_nothing_special():
    """What isn't given stays open, for the mode and the engine to fill."""
    chat = parse()

    assert chat.model == "ofa-hpc"
    assert chat.sampling == Sampling()
    assert chat.tools == ()
    assert chat.tool_choice == ToolChoice("auto")
    assert chat.parallel_calls is True
    assert chat.thinking is None
    assert chat.ignored == ()


def test_all_sampling_fields_come_through():
    """Each value reaches the engine under its own name."""
    chat = parse(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"5": -100, "17": 3.5},
        seed=2**64 - 1,
        stop=["\n\n", "", "END"],
        max_tokens=5,
        parallel_tool_calls=False,
    )

    assert chat.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias=((5, -100), (17, 3.5)),
        seed=2**64 - 1,
        stop=("\n\n", "END"),
        max_tokens=5,
    )
    assert chat.parallel_calls is False


def test_R065_null_is_absent_for_every_optional_field():
    """A client that writes out its defaults as null asks for nothing."""
    every = {*FIELDS, *UNSUPPORTED, *BOOKKEEPING, "tools", "tool_choice", "new_field"}

    assert parse(**dict.fromkeys(every)) == parse()
    assert openai_chat.delivery(body(**dict.fromkeys(every))) == (
        openai_chat.Delivery(stream=False, usage=False)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("temperature", 1.0),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("top_k", 1),
        ("top_k", 256),
        ("top_k", 16.0),
        ("min_p", 0),
        ("min_p", 1),
        ("repetition_penalty", 0.001),
        ("presence_penalty", 2),
        ("frequency_penalty", -2),
        ("seed", 0),
        ("seed", 2**64 - 1),
        ("max_tokens", 1),
        ("max_tokens", 10**9),
        ("max_completion_tokens", 32768),
        ("n", 1),
        ("n", 1.0),
        ("n", 128),
        ("logprobs", False),
        ("logprobs", True),
        ("top_logprobs", 0),
        ("stop", "x"),
        ("stop", ""),
        ("stop", []),
        ("stop", ["a"] * 16),
        ("stop", "\t\r\n"),
        ("logit_bias", {}),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("parallel_tool_calls", True),
        ("stream_options", {}),
        ("stream_options", {"include_usage": None, "include_obfuscation": False}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("chat_template_kwargs", {}),
    ],
)
def test_values_in_range_are_accepted(field, value):
    """The ends of each range belong to it."""
    assert parse(**{field: value}).model == "ofa-hpc"


WRONG_VALUES = [
    ("model", None, "model"),
    ("model", 5, "model"),
    ("model", "", "model"),
    ("model", ["ofa-hpc"], "model"),
    ("model", "a\nb", "model"),
    ("model", "a\x00", "model"),
    ("model", "m" * 257, "model"),
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "0.7", "temperature"),
    ("temperature", True, "temperature"),
    ("temperature", [], "temperature"),
    ("temperature", float("nan"), "temperature"),
    ("temperature", float("inf"), "temperature"),
    ("temperature", 10**400, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.01, "top_p"),
    ("top_p", -1, "top_p"),
    ("top_k", -2, "top_k"),
    ("top_k", 1.5, "top_k"),
    ("top_k", True, "top_k"),
    ("min_p", -0.01, "min_p"),
    ("min_p", 2, "min_p"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("repetition_penalty", -1, "repetition_penalty"),
    ("presence_penalty", 2.5, "presence_penalty"),
    ("frequency_penalty", -2.5, "frequency_penalty"),
    ("seed", -1, "seed"),
    ("seed", 2**64, "seed"),
    ("seed", 0.5, "seed"),
    ("seed", "7", "seed"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 16.5, "max_tokens"),
    ("max_tokens", True, "max_tokens"),
    ("max_tokens", "16", "max_tokens"),
    ("max_tokens", float("inf"), "max_tokens"),
    ("max_completion_tokens", 0, "max_completion_tokens"),
    ("n", 0, "n"),
    ("n", 129, "n"),
    ("n", "1", "n"),
    ("n", True, "n"),
    ("logprobs", 1, "logprobs"),
    ("top_logprobs", False, "top_logprobs"),
    ("top_logprobs", -1, "top_logprobs"),
    ("top_logprobs", 21, "top_logprobs"),
    ("top_logprobs", 1, "top_logprobs"),
    ("stop", 5, "stop"),
    ("stop", [1], "stop[0]"),
    ("stop", ["a", None], "stop[1]"),
    ("stop", ["a"] * 17, "stop"),
    ("stop", "x" * 5000, "stop"),
    ("stop", "a\x00b", "stop"),
    ("stop", {"a": 1}, "stop"),
    ("logit_bias", [], "logit_bias"),
    ("logit_bias", {"a": 1}, "logit_bias"),
    ("logit_bias", {"-1": 1}, "logit_bias"),
    ("logit_bias", {"1": 101}, "logit_bias.1"),
    ("logit_bias", {"1": None}, "logit_bias.1"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "logit_bias"),
    ("response_format", {}, "response_format.type"),
    ("response_format", {"type": None}, "response_format.type"),
    ("response_format", {"type": 7}, "response_format.type"),
    ("response_format", {"type": ["text"]}, "response_format.type"),
    ("response_format", {"type": "xml"}, "response_format.type"),
    ("response_format", "json_object", "response_format"),
    ("response_format", [], "response_format"),
    ("response_format", True, "response_format"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
    *(
        (
            "response_format",
            {"type": "json_schema", "json_schema": given},
            f"response_format.json_schema{param}",
        )
        for given, param in (
            (None, ""),
            ([], ""),
            ("object", ""),
            ({}, ".name"),
            ({"name": None}, ".name"),
            ({"name": 5}, ".name"),
            ({"name": ""}, ".name"),
            ({"name": "a b"}, ".name"),
            ({"name": "naïve"}, ".name"),
            ({"name": "a\n"}, ".name"),
            ({"name": "a" * 65}, ".name"),
            ({"name": "a", "description": 1}, ".description"),
            ({"name": "a", "schema": True}, ".schema"),
            ({"name": "a", "schema": "object"}, ".schema"),
            ({"name": "a", "schema": []}, ".schema"),
            ({"name": "a", "schema": {"type": "object"}, "strict": 1}, ".strict"),
            ({"name": "a", "strict": True}, ".schema"),
            ({"name": "a", "schema": {}, "strict": True}, ".schema"),
        )
    ),
    ("modalities", "text", "modalities"),
    ("modalities", [1], "modalities"),
    ("stream", "yes", "stream"),
    ("stream", 1, "stream"),
    ("stream_options", [], "stream_options"),
    ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
    ("parallel_tool_calls", "no", "parallel_tool_calls"),
    ("reasoning_effort", "huge", "reasoning_effort"),
    ("reasoning_effort", 1, "reasoning_effort"),
    ("verbosity", "loud", "verbosity"),
    ("chat_template_kwargs", [], "chat_template_kwargs"),
    (
        "chat_template_kwargs",
        {"enable_thinking": "yes"},
        "chat_template_kwargs.enable_thinking",
    ),
]


@pytest.mark.parametrize(("field", "value", "param"), WRONG_VALUES)
def test_wrong_values_are_refused_by_name(field, value, param):
    """A wrong type or range is the client's mistake, and it is told where."""
    error = refusal(**{field: value})

    assert (error.status, error.code, error.param) == (400, "invalid_value", param)
    assert str(error).startswith(f"{param}: ")


UNSUPPORTED_VALUES = [
    ("modalities", ["text", "audio"]),
    ("audio", {}),
    ("functions", []),
    ("function_call", "auto"),
    ("prediction", {"type": "content"}),
    ("web_search_options", {}),
]


@pytest.mark.parametrize(("field", "value"), UNSUPPORTED_VALUES)
def test_meanings_that_cannot_be_honoured_are_refused(field, value):
    """A field that would change the answer is never silently dropped."""
    error = refusal(**{field: value})

    assert (error.status, error.code, error.param) == (400, "unsupported_value", field)


def test_choices_and_logprobs_come_through():
    """How many answers, and how many alternatives a token: none is not zero."""
    assert (parse().choices, parse().logprobs) == (1, None)
    assert parse(n=3).choices == 3
    assert parse(logprobs=True).logprobs == 0
    assert parse(logprobs=True, top_logprobs=20).logprobs == 20
    assert parse(logprobs=False, top_logprobs=0).logprobs is None


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def format_of(**json_schema):
    """Return what is read of a json_schema format with these fields."""
    given = {"type": "json_schema", "json_schema": {"name": "x", **json_schema}}
    return parse(response_format=given)


def test_formats_come_through():
    """Text is no form at all; JSON is some object, or what a schema allows."""
    assert parse(response_format={"type": "text"}).output is None
    assert parse(response_format={"type": "json_object"}).output == Output()
    for strict in (True, False, None):
        chat = format_of(schema=SCHEMA, strict=strict)
        assert chat.output == Output("json_schema", SCHEMA, "response_format")
        assert chat.ignored == ()


def test_a_format_without_a_schema_is_any_object():
    """OpenAI's reference wants the name only; what it says then is JSON."""
    for chat in (format_of(), format_of(schema=None), format_of(schema={})):
        assert chat.output == Output("json_object", {}, "response_format")


def test_a_formats_description_goes_with_its_schema():
    """It is for the model to read, and what the schema says of itself is nearer."""
    own = {**SCHEMA, "description": "its own"}

    assert format_of(schema=SCHEMA, description="D").output.schema == {
        "description": "D",
        **SCHEMA,
    }
    assert format_of(schema=own, description="D").output.schema == own
    assert format_of(description="D").ignored == (
        "response_format.json_schema.description",
    )


def test_what_a_format_has_besides_is_told():
    """Another server's way to give a schema is not dropped in silence."""
    chat = parse(response_format={"type": "json_object", "schema": SCHEMA, "x": None})

    assert chat.output == Output()
    assert chat.ignored == ("response_format.schema",)
    assert format_of(schema=SCHEMA, kind="b").ignored == (
        "response_format.json_schema.kind",
    )


def test_max_completion_tokens_wins():
    """The newer name is the one that counts where both are given."""
    chat = parse(max_completion_tokens=7, max_tokens=900)

    assert chat.sampling.max_tokens == 7
    assert refusal(max_completion_tokens=0, max_tokens=9).param == (
        "max_completion_tokens"
    )


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_off_is_not_the_same_as_absent(off):
    """Zero says "off" even where the mode has a default."""
    assert parse(top_k=off).sampling.top_k == 0
    assert parse(top_k=off).sampling.over(Sampling(top_k=64)).top_k == 0


@pytest.mark.parametrize(
    ("effort", "thinking"),
    [
        ("none", False),
        ("minimal", False),
        ("low", True),
        ("medium", True),
        ("high", True),
        ("xhigh", True),
    ],
)
def test_reasoning_effort_switches_thinking(effort, thinking):
    """An effort is kept for engines with levels, and is on or off for the others."""
    chat = parse(reasoning_effort=effort)

    assert (chat.thinking, chat.reasoning_effort) == (thinking, effort)


def test_the_templates_own_switch_beats_the_effort():
    """enable_thinking says exactly what is meant."""
    chat = parse(
        reasoning_effort="high",
        chat_template_kwargs={"enable_thinking": False, "date": "today"},
    )

    assert chat.thinking is False
    assert chat.ignored == ("chat_template_kwargs.date",)


def test_bookkeeping_is_accepted_in_silence():
    """Fields about the caller's account change nothing and are not worth a word."""
    chat = parse(**{**dict.fromkeys(BOOKKEEPING, "x"), "store": False})

    assert chat == parse()


def test_unknown_fields_are_ignored_and_told():
    """Clients send extras; the answer says which had no effect."""
    chat = parse(zeta=1, alpha={}, verbosity="low")

    assert chat.ignored == ("alpha", "zeta", "verbosity")


def test_unknown_fields_are_refused_where_the_site_says_so():
    """A strict site names them all, sorted and bounded, and the first as param."""
    error = refusal(refuse_unknown=True, zeta=1, alpha={}, temperature="hot")

    assert (error.status, error.code) == (400, "unknown_parameter")
    assert error.param == "alpha"
    assert "alpha, zeta" in str(error)


def test_many_long_unknown_names_stay_short():
    """At most eight names are told, each cut at 64 bytes."""
    names = {f"{i:02}" + "e\u0301" * 500: 1 for i in range(11)}

    error = refusal(refuse_unknown=True, **names)

    assert str(error).endswith("and 3 more")
    assert len(str(error).encode()) < 8 * 72 + 60
    assert len(error.param.encode()) <= 67


def test_unsupported_beats_unknown_beats_wrong_types():
    """The complaint that explains most comes first."""
    fields = {"temperature": "hot", "mystery": 1}

    assert refusal(refuse_unknown=True, **fields, audio={}).param == "audio"
    assert refusal(refuse_unknown=True, **fields).param == "mystery"
    assert refusal(**fields).param == "temperature"


def test_delivery_is_read_apart():
    """How the answer is sent is no part of what is asked."""
    asked = body(stream=True, stream_options={"include_usage": True})

    assert openai_chat.delivery(asked) == openai_chat.Delivery(stream=True, usage=True)
    assert openai_chat.parse(asked) == parse()
    assert openai_chat.delivery(body()) == openai_chat.Delivery()


def test_J9_wrong_types_never_escape_as_another_error():
    """Every known field with every JSON type is read or refused, nothing else."""
    samples = (True, 0, -1, 2, 1.5, "x", "", [], [1], {}, {"a": 1}, [[]], [{}])
    for field in {*FIELDS, *UNSUPPORTED, "model", "messages", "tools", "tool_choice"}:
        for value in samples:
            try:
                parse(**{field: value})
            except BadRequest as exc:
                assert exc.param, (field, value)
