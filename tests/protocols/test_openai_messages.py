"""Messages and tools as clients send them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Image, Message, Tool, ToolCall, ToolChoice
from ofa.errors import BadRequest
from ofa.protocols import openai_chat

# No deadline: the machine may be busy with other things.
QUICK = settings(deadline=None, max_examples=60)
PIXEL = "data:image/png;base64,iVBORw0KGgo="
USER = {"role": "user", "content": "hi"}


def call(call_id="c1", name="read_note", arguments="{}", **more):
    """Return a tool call as clients send it."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def calling(*calls, **more):
    """Return an assistant's message that makes *calls*."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(call_id="c1", content="done", **more):
    """Return a tool's message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def read(*messages, **fields):
    """Return the messages of a parsed request."""
    asked = {"model": "ofa-hpc", "messages": list(messages), **fields}
    return openai_chat.parse(asked).messages


def refusal(*messages, **fields):
    """Return the error that *messages* are refused with."""
    with pytest.raises(BadRequest) as caught:
        read(*messages, **fields)
    return caught.value


def function(name="read_note", **more):
    """Return a tool declaration."""
    return {"type": "function", "function": {"name": name, **more}}


def with_tools(*tools, **fields):
    """Return a parsed request that offers *tools*."""
    asked = {"model": "ofa-hpc", "messages": [USER], "tools": list(tools), **fields}
    return openai_chat.parse(asked)


def test_roles_of_all_kinds_anywhere():
    """Developer text is system text, and it may stand anywhere."""
    messages = read(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        USER,
        {"role": "system", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    )

    assert [(m.role, m.text) for m in messages] == [
        ("system", "a"),
        ("system", "b"),
        ("user", "hi"),
        ("system", "c"),
        ("assistant", "d"),
        ("user", "e"),
    ]


def test_R032_runs_of_one_role_are_fine():
    """VS Code opens each turn with two user messages; nobody is asked to alternate."""
    assert [m.text for m in read(USER, USER, USER)] == ["hi"] * 3


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
def test_no_content_is_empty_text(role, content):
    """Null, empty and absent are three spellings of nothing."""
    (message,) = read({"role": role, **content})

    assert message.text == ""


def test_text_parts_are_joined_without_separator():
    """Parts are pieces of one text, other keys in them are not looked at."""
    parts = [
        {"type": "text", "text": "a\r\n", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": ""},
        {"type": "text", "text": "b"},
    ]

    assert read({"role": "user", "content": parts})[0].text == "a\r\nb"
    assert read({"role": "user", "content": []})[0].text == ""


def test_a_refusal_part_of_the_assistant_is_its_text():
    """What a model once declined with stays in the history."""
    parts = [{"type": "refusal", "refusal": "no"}]

    assert read({"role": "assistant", "content": parts})[0].text == "no"
    assert refusal({"role": "user", "content": parts}).code == "unsupported_content"


def test_images_are_kept_with_their_place():
    """A data URL of a user or a tool comes through untouched, with where it stood."""
    part = {"type": "image_url", "image_url": {"url": PIXEL, "media_type": "image/png"}}
    text = {"type": "text", "text": "look"}

    messages = read(
        {"role": "user", "content": [text, part]},
        calling(call()),
        result(content=[part, text]),
    )

    assert messages[0].text == "look"
    assert messages[0].images == (Image(PIXEL, "messages[0].content[1].image_url.url"),)
    assert messages[2].images == (Image(PIXEL, "messages[2].content[0].image_url.url"),)


@pytest.mark.parametrize(
    ("image_url", "code", "below"),
    [
        (None, "invalid_message", ""),
        (PIXEL, "invalid_message", ""),
        ([], "invalid_message", ""),
        ({}, "invalid_message", ".url"),
        ({"url": None}, "invalid_message", ".url"),
        ({"url": 5}, "invalid_message", ".url"),
        ({"url": "https://example.org/a.png"}, "unsupported_image", ".url"),
        ({"url": "file:///etc/passwd"}, "unsupported_image", ".url"),
        ({"url": "data:text/html;base64,AAAA"}, "unsupported_image", ".url"),
        ({"url": ""}, "unsupported_image", ".url"),
        ({"url": "data:image/png,AAAA"}, "invalid_image_url", ".url"),
        ({"url": "data:image/png"}, "invalid_image_url", ".url"),
        ({"url": PIXEL, "detail": "huge"}, "invalid_value", ".detail"),
        ({"url": PIXEL, "detail": 1}, "invalid_value", ".detail"),
    ],
)
def test_wrong_images_are_named(image_url, code, below):
    """Nothing is fetched, and a wrong shape is told with its place."""
    part = {"type": "image_url", "image_url": image_url}

    error = refusal(USER, {"role": "user", "content": [part]})

    assert error.code == code
    assert error.param == f"messages[1].content[0].image_url{below}"


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_images_of_other_roles_are_refused(role):
    """Only people and tools show pictures."""
    part = {"type": "image_url", "image_url": {"url": PIXEL}}

    error = refusal({"role": role, "content": [part]})

    assert error.code == "unsupported_content"
    assert error.param == "messages[0].content[0].image_url"


WRONG_MESSAGES = [
    (5, "invalid_message", "messages[0]"),
    (None, "invalid_message", "messages[0]"),
    ([], "invalid_message", "messages[0]"),
    ({}, "invalid_message", "messages[0].role"),
    ({"role": None}, "invalid_message", "messages[0].role"),
    ({"role": 1}, "invalid_message", "messages[0].role"),
    ({"role": ["user"]}, "invalid_message", "messages[0].role"),
    ({"role": "robot"}, "invalid_message", "messages[0].role"),
    ({"role": "User"}, "invalid_message", "messages[0].role"),
    ({"role": "function", "name": "f"}, "invalid_message", "messages[0].role"),
    ({"role": "user", "content": 5}, "invalid_message", "messages[0].content"),
    ({"role": "user", "content": {}}, "invalid_message", "messages[0].content"),
    ({"role": "user", "content": True}, "invalid_message", "messages[0].content"),
    (
        {"role": "user", "content": ["x"]},
        "invalid_message",
        "messages[0].content[0]",
    ),
    (
        {"role": "user", "content": [{}]},
        "invalid_message",
        "messages[0].content[0].type",
    ),
    (
        {"role": "user", "content": [{"type": "text"}]},
        "invalid_message",
        "messages[0].content[0].text",
    ),
    (
        {"role": "user", "content": [{"type": "text", "text": None}]},
        "invalid_message",
        "messages[0].content[0].text",
    ),
    (
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        "unsupported_content",
        "messages[0].content[0].type",
    ),
    (
        {"role": "user", "content": [{"type": "file", "file": {}}]},
        "unsupported_content",
        "messages[0].content[0].type",
    ),
    (
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        "unsupported_value",
        "messages[0].function_call",
    ),
    (
        {"role": "assistant", "content": "x", "reasoning_content": 5},
        "invalid_message",
        "messages[0].reasoning_content",
    ),
    (
        {**USER, "tool_calls": [call()]},
        "invalid_tool_call",
        "messages[0].tool_calls",
    ),
    (
        {"role": "assistant", "tool_calls": {}},
        "invalid_tool_call",
        "messages[0].tool_calls",
    ),
    (
        {"role": "assistant", "tool_calls": "x"},
        "invalid_tool_call",
        "messages[0].tool_calls",
    ),
    (calling(None), "invalid_tool_call", "messages[0].tool_calls[0]"),
    (calling({}), "invalid_tool_call", "messages[0].tool_calls[0].function"),
    (
        calling(call(), call()),
        "invalid_tool_call",
        "messages[0].tool_calls[1].id",
    ),
    (calling(call("")), "invalid_tool_call", "messages[0].tool_calls[0].id"),
    (calling(call(None)), "invalid_tool_call", "messages[0].tool_calls[0].id"),
    (calling(call("a\nb")), "invalid_tool_call", "messages[0].tool_calls[0].id"),
    (
        calling(call(type="custom")),
        "invalid_tool_call",
        "messages[0].tool_calls[0].type",
    ),
    (
        calling(call(name="")),
        "invalid_tool_call",
        "messages[0].tool_calls[0].function.name",
    ),
    (
        calling(call(name="a b")),
        "invalid_tool_call",
        "messages[0].tool_calls[0].function.name",
    ),
    (
        calling(call(name="n" * 65)),
        "invalid_tool_call",
        "messages[0].tool_calls[0].function.name",
    ),
    (
        {"role": "tool", "content": "x"},
        "invalid_tool_result",
        "messages[0].tool_call_id",
    ),
    (result(""), "invalid_tool_result", "messages[0].tool_call_id"),
    (result(5), "invalid_tool_result", "messages[0].tool_call_id"),
]


@pytest.mark.parametrize(("message", "code", "param"), WRONG_MESSAGES)
def test_wrong_messages_are_named(message, code, param):
    """Each refusal has a code for programs and a place for people."""
    error = refusal(message)

    assert (error.status, error.code, error.param) == (400, code, param)


@pytest.mark.parametrize("value", [None, "hi", 5, {}, True, []])
def test_messages_must_be_a_filled_array(value):
    """A request without messages is refused as one."""
    with pytest.raises(BadRequest) as caught:
        openai_chat.parse({"model": "ofa-hpc", "messages": value})

    assert (caught.value.code, caught.value.param) == ("invalid_message", "messages")


def test_J13_ten_thousand_messages_are_the_most():
    """The limit is told with both numbers, and its last one fits."""
    assert len(read(*[USER] * 10_000)) == 10_000
    assert "10001" in str(refusal(*[USER] * 10_001))


@pytest.mark.parametrize(
    "arguments",
    ["{", "[]", "5", "null", '"x"', "NaN", '{"a": NaN}', '{"a": 1, "a": 2}', "{}{}"],
)
def test_broken_arguments_are_named(arguments):
    """History with arguments that are no JSON object is refused, never emptied."""
    error = refusal(USER, calling(call("a"), call("b", arguments=arguments)))

    assert error.code == "invalid_tool_arguments"
    assert error.param == "messages[1].tool_calls[1].function.arguments"


@pytest.mark.parametrize("arguments", [None, {}, 5, []])
def test_arguments_must_be_a_string(arguments):
    """An object in place of the string is another API's form."""
    error = refusal(calling(call(arguments=arguments)))

    assert error.code == "invalid_tool_arguments"


@pytest.mark.parametrize("arguments", ["", " ", "{}", " {} \n"])
def test_empty_arguments_are_none(arguments):
    """Clients send the empty string for a call without arguments."""
    (message,) = read(calling(call(arguments=arguments)))

    assert message.calls == (ToolCall("c1", "read_note", {}),)


def test_calls_and_results_come_through():
    """A tool round: text beside calls, exact integers, results in any order."""
    first = call("a", "add", '{"n": 9007199254740993, "s": "ü\\n"}')
    messages = read(
        USER,
        calling(first, call("b", "file-path"), content="let me see"),
        result("b", None),
        result("a", [{"type": "text", "text": "4"}], name="add"),
    )

    assert messages[1:] == (
        Message(
            "assistant",
            "let me see",
            calls=(
                ToolCall("a", "add", {"n": 9007199254740993, "s": "ü\n"}),
                ToolCall("b", "file-path", {}),
            ),
        ),
        Message("tool", "", answers="b"),
        Message("tool", "4", answers="a", name="add"),
    )


def test_R028_an_orphan_result_is_let_through():
    """Editors trim old turns: a result whose call is gone is no reason to refuse."""
    messages = read(USER, result("call_gone", "late result"))

    assert messages[1] == Message("tool", "late result", answers="call_gone")


def test_a_second_result_for_one_call_is_refused():
    """Which of two results is meant can't be known."""
    error = refusal(USER, calling(call()), result(), result())

    assert error.code == "invalid_tool_result"
    assert error.param == "messages[3].tool_call_id"


def test_call_ids_are_unique_over_the_whole_request():
    """A result must belong to one call only."""
    error = refusal(calling(call()), result(), calling(call()))

    assert error.param == "messages[2].tool_calls[0].id"


def test_reasoning_comes_back_as_a_thought():
    """The AI SDK echoes an assistant's reasoning; it is no part of the text."""
    (message,) = read({"role": "assistant", "content": "4", "reasoning_content": "2+2"})

    assert (message.text, message.thought) == ("4", "2+2")


def test_R040_extras_in_messages_are_not_looked_at():
    """refusal: null and the like are for other servers."""
    assert read({**USER, "refusal": None, "annotations": [], "x": {"y": 1}}) == read(
        USER
    )


def test_R073_text_is_unchanged():
    """Line ends, tabs, separators and trailing blanks are the user's own."""
    text = "int x;\r\n\tint z;\r \u2028\u2029\x85\0 end  \n"

    assert read({"role": "user", "content": text})[0].text == text


@QUICK
@given(st.text(), st.text())
def test_any_text_survives_in_parts(first, second):
    """Two parts are the text of both."""
    parts = [{"type": "text", "text": first}, {"type": "text", "text": second}]

    assert read({"role": "user", "content": parts})[0].text == first + second


def test_tools_come_through():
    """A declaration is kept whole; what is null or absent is empty."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    chat = with_tools(
        function(description="Read.", parameters=schema, strict=True, x_extra=1),
        function("bare-name_2"),
        function("nulls", description=None, parameters=None, strict=None),
    )

    assert chat.tools == (
        Tool("read_note", "Read.", schema, strict=True),
        Tool("bare-name_2"),
        Tool("nulls"),
    )
    assert chat.tool_choice == ToolChoice("auto")
    assert chat.ignored == ()


WRONG_TOOLS = [
    (5, "invalid_value", "tools[0]"),
    ({}, "invalid_value", "tools[0].type"),
    ({"type": None}, "invalid_value", "tools[0].type"),
    ({"type": "function"}, "invalid_value", "tools[0].function"),
    (function(""), "invalid_tool_name", "tools[0].function.name"),
    (function("a b"), "invalid_tool_name", "tools[0].function.name"),
    (function("a.b"), "invalid_tool_name", "tools[0].function.name"),
    (function("ü"), "invalid_tool_name", "tools[0].function.name"),
    (function("n" * 65), "invalid_tool_name", "tools[0].function.name"),
    (function("a\n"), "invalid_tool_name", "tools[0].function.name"),
    (function(None), "invalid_tool_name", "tools[0].function.name"),
    (
        function(parameters=[]),
        "invalid_tool_schema",
        "tools[0].function.parameters",
    ),
    (
        function(parameters="{}"),
        "invalid_tool_schema",
        "tools[0].function.parameters",
    ),
    (
        function(parameters=True),
        "invalid_tool_schema",
        "tools[0].function.parameters",
    ),
    (function(description=5), "invalid_value", "tools[0].function.description"),
    (function(strict="yes"), "invalid_value", "tools[0].function.strict"),
]


@pytest.mark.parametrize(("tool", "code", "param"), WRONG_TOOLS)
def test_wrong_tools_are_named(tool, code, param):
    """A declaration that could not be shown to a model is refused with its place."""
    with pytest.raises(BadRequest) as caught:
        with_tools(tool)

    assert (caught.value.code, caught.value.param) == (code, param)
    assert len(str(caught.value)) < 250


def test_two_tools_of_one_name_are_refused():
    """A call could mean either."""
    with pytest.raises(BadRequest, match="names two tools"):
        with_tools(function(), function())


def test_J13_tools_have_a_limit():
    """256 fit, one more is refused."""
    assert len(with_tools(*(function(f"f{i}") for i in range(256))).tools) == 256
    with pytest.raises(BadRequest, match="257"):
        with_tools(*(function(f"f{i}") for i in range(257)))


def test_tools_of_other_types_are_told():
    """Codex sends web_search and namespaces: without effect, and said so."""
    asked = [{"type": "web_search"}, function(), {"type": "namespace", "tools": []}]

    chat = with_tools(*asked, {"type": "web_search"})

    assert [tool.name for tool in chat.tools] == ["read_note"]
    assert chat.ignored == ("tools.web_search", "tools.namespace")


def test_a_strict_site_refuses_tools_of_other_types():
    """Where unknown fields are refused, so are these."""
    asked = {
        "model": "ofa-hpc",
        "messages": [USER],
        "tools": [{"type": "web_search"}],
    }
    with pytest.raises(BadRequest) as caught:
        openai_chat.parse(asked, refuse_unknown=True)

    assert (caught.value.code, caught.value.param) == (
        "unsupported_tool",
        "tools[0].type",
    )


def named(name="read_note"):
    """Return the choice of one tool."""
    return {"type": "function", "function": {"name": name}}


def allowed(*names, mode="auto"):
    """Return the choice among some of the tools."""
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (None, ToolChoice("auto"), ["read_note", "b"]),
        ("auto", ToolChoice("auto"), ["read_note", "b"]),
        ("none", ToolChoice("none"), ["read_note", "b"]),
        ("required", ToolChoice("required"), ["read_note", "b"]),
        (named("b"), ToolChoice("named", "b"), ["read_note", "b"]),
        (allowed("b"), ToolChoice("auto"), ["b"]),
        (allowed("b", mode="required"), ToolChoice("required"), ["b"]),
    ],
)
def test_the_choice_among_tools(choice, expected, names):
    """Each way to choose becomes one of four, over the tools that it leaves."""
    chat = with_tools(function(), function("b"), tool_choice=choice)

    assert chat.tool_choice == expected
    assert [tool.name for tool in chat.tools] == names


def test_tools_that_may_not_be_called_are_no_reason_to_refuse():
    """With tool_choice none a broken declaration is left out."""
    assert with_tools({"type": "function"}, tool_choice="none").tools == ()


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        5,
        [],
        {},
        {"type": "function"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": 5}},
        named("missing"),
        {"type": "custom", "custom": {"name": "x"}},
        allowed(),
        allowed("missing"),
        allowed("b", mode="none"),
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}},
    ],
)
def test_wrong_choices_are_refused(choice):
    """A choice that can't be kept is the client's mistake."""
    with pytest.raises(BadRequest) as caught:
        with_tools(function(), function("b"), tool_choice=choice)

    assert caught.value.param.startswith("tool_choice")


@pytest.mark.parametrize("choice", ["required", named()])
def test_a_demanded_call_needs_tools(choice):
    """Nothing can be called where nothing is offered."""
    with pytest.raises(BadRequest) as caught:
        with_tools(tool_choice=choice)

    assert caught.value.param == "tool_choice"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "tool_calls",
                    "type",
                    "text",
                    "function",
                    "name",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@QUICK
@given(JSON)
def test_any_message_is_read_or_refused(message):
    """No JSON value in place of a message raises anything but a named refusal."""
    try:
        read(json.loads(json.dumps(message)))
    except BadRequest as exc:
        assert exc.param
