"""The form of Qwen and Hermes: what is told of tools, what is read of an answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Tool
from ofa.toolcalls.base import Piece, Unreadable, plain
from ofa.toolcalls.hermes import Hermes

from .forms import Form, call, check_same, hidden
from .offered import TOOLS
from .strategies import TOOL_NAMES, conforming, schemas

FORMS = {"tokens": Form(Hermes(hidden), hidden), "letters": Form(Hermes(str))}
READ = call("read_file", {"path": "a.py"})


def block(body):
    """Return *body* as a block."""
    return f"<tool_call>\n{body}\n</tool_call>"


def test_declarations_are_json_lines_in_order_of_name():
    """One a line, between tags, with the keys in the order of the training."""
    text = plain(Hermes(str).declare(TOOLS[::-1]))

    lines = text.split("<tools>\n")[1].split("</tools>")[0].splitlines()
    told = [json.loads(line) for line in lines]
    assert [one["function"]["name"] for one in told] == sorted(t.name for t in TOOLS)
    for one in told:
        assert list(one) == ["type", "function"]
        assert list(one["function"]) == ["name", "description", "parameters"]
        assert list(one["function"]["parameters"])[:2] == ["type", "properties"]
    assert plain(Hermes(str).declare(TOOLS)) == text


def test_no_tools_no_words():
    """Nothing to call: nothing is said of calling."""
    assert Hermes(str).declare([]) == ()


def test_what_authors_wrote_is_marked_as_theirs():
    """A tag in a description, an argument or a result is text, never a token."""
    tag = "</tool_call><tool_call>"
    tool = Tool("t", tag, {"properties": {tag: {"description": tag}}})
    shaped = Hermes(str)

    pieces = (
        *shaped.declare([tool]),
        *shaped.calls([call("t", {tag: tag})]),
        *shaped.results([("t", tag)]),
    )

    assert not any(tag in piece.text for piece in pieces if piece.ours)
    assert sum(piece.text.count(tag) for piece in pieces) == 6


def test_noise_of_schemas_is_left_out():
    """What only validators and editors read; but no parameter that is named so."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Arguments",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "title": {"type": "string", "title": "Title", "description": ""},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}},
            "none": {"type": ["string", "null"]},
            "left": {"$ref": "#/$defs/side"},
        },
        "$defs": {"side": {"enum": ["a", "b"], "title": "Side"}},
    }

    text = plain(Hermes(str).declare([Tool("t", "d", schema)]))

    line = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])
    told = line["function"]["parameters"]
    assert set(told) == {"type", "properties"}
    properties = told["properties"]
    assert properties["title"] == {"type": "string"}
    assert properties["more"]["additionalProperties"] == {"type": "integer"}
    assert properties["none"] == {"type": ["string", "null"]}
    assert properties["left"]["enum"] == ["a", "b"]
    assert "$" not in json.dumps(told)


def test_calls_and_results_look_as_trained():
    """A block each, a line break between two."""
    two = [READ, call("get_time", {})]

    assert plain(Hermes(str).calls(two)) == (
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    )
    assert plain(Hermes(str).results([("read_file", "1\n2"), ("get_time", "")])) == (
        "<tool_response>\n1\n2\n</tool_response>\n<tool_response>\n\n</tool_response>"
    )
    assert Hermes(str).calls([READ])[0] == Piece("<tool_call>")


@st.composite
def turns(draw):
    """Draw the calls of a turn."""
    calls = []
    for _ in range(draw(st.integers(1, 2))):
        arguments = draw(conforming(draw(schemas())))
        calls.append(call(draw(TOOL_NAMES), arguments))
    return calls


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(calls=turns())
@settings(max_examples=100, database=None, deadline=None)
def test_calls_read_back_at_every_cut(form, calls):
    """What is rendered is read, and known to end at its last character only."""
    text = form.said(form.format.calls(calls))

    check_same(form.read(text), calls)
    form.check_cuts(text)


# fmt: off
MENDED = {
    "one brace too many": (
        block('{"name": "read_file", "arguments": {"path": "a.py"}}}'), ["brackets"]),
    "twice encoded": (
        block('{"name": "read_file", "arguments": "{\\"path\\": \\"a.py\\"}"}'),
        ["encoded"]),
    "single quotes": (
        block("{'name': 'read_file', 'arguments': {'path': 'a.py'}}"), ["quotes"]),
    "a trailing comma": (
        block('{"name": "read_file", "arguments": {"path": "a.py",}}'), ["comma"]),
    "a fence within": (
        block('```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```'),
        ["fence"]),
    "no closing tag": (
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n',
        ["unclosed"]),
    "parameters for arguments": (
        block('{"name": "read_file", "parameters": {"path": "a.py"}}'), []),
    "a function object": (
        block('{"type": "function", "function": '
              '{"name": "read_file", "arguments": {"path": "a.py"}}}'), []),
    "the XML of later models": (
        block("<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>"),
        []),
}
# fmt: on


@pytest.mark.parametrize("case", MENDED)
def test_usual_slips_are_read(case):
    """And told, where something had to be mended."""
    text, repairs = MENDED[case]

    [found] = Hermes(str).read(text)

    assert (found.name, found.arguments) == ("read_file", {"path": "a.py"})
    assert list(found.repairs) == repairs


@pytest.mark.parametrize("between", ["\n", "", "\n</tool_call>\n<tool_call>\n", ","])
def test_several_calls_in_a_block_are_read(between):
    """Lines, lists, and blocks that lack a closing tag."""
    one = '{"name": "read_file", "arguments": {"path": "</tool_call><tool_call>"}}'
    text = block(one + between + one)

    found = Hermes(str).read(text)

    assert [call.arguments for call in found] == [
        {"path": "</tool_call><tool_call>"}
    ] * 2


def test_forgotten_closing_tag_between_two_calls():
    """The second opening tag ends the first call."""
    one = '<tool_call>\n{"name": "get_time", "arguments": {}}\n'

    text = f"{one}{one}</tool_call>"

    assert Hermes(str).length(text) == len(text)
    assert [found.name for found in Hermes(str).read(text)] == ["get_time"] * 2


@pytest.mark.parametrize(
    "body",
    [
        "", "{", '{"name": "read_file"', '{"arguments": {}}', '{"name": 3}', "[]",
        "[1]",
        '{"name": "a", "path": "b"}', '{"name": "a", "arguments": [1]}',
        '{"name": "a", "arguments": "x"}', '{"name": "a", "arguments": {"b": NaN}}',
        '{"name": "a", "arguments": {}} and more', '{"name": "a", "arguments": {}, '
        '"parameters": {}}', "<function=a>x", '{"name": "a", "arguments": 1e999}',
        '{"name": "a", "arguments": ' + '{"b":' * 200 + "1" + "}" * 201,
    ],
)  # fmt: skip
def test_what_is_no_call_is_unreadable(body):
    """Never a guess, never another error."""
    with pytest.raises(Unreadable):
        Hermes(str).read(block(body))


def test_string_that_was_never_closed_ends_with_the_tag():
    """A tag alone in its line behind a bracket: strings of JSON have no line breaks."""
    text = block('{"name": "read_file", "arguments": {"path": "a.py}}')

    assert Hermes(str).length(text + ' and a "quote"') == len(text)


@pytest.mark.parametrize(
    "text",
    ["<tool_call> is a tag", "<tool_call>`x", "<tool_call>\n\nname", "<tool_call><b>"],
)
def test_tag_in_prose_is_no_call(text):
    """What can't be JSON is let go at once."""
    assert Hermes(str).length(text) == 0


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>\n <func", "<tool_call>``"]
)
def test_tag_that_may_become_a_call_waits(text):
    """Until its first characters are there."""
    assert Hermes(str).length(text) is None


def test_values_of_xml_stay_text():
    """Their types are the schema's business, and a text may look like JSON."""
    [found] = Hermes(str).read(
        block('<function=a>\n<parameter=b>\n{"c": 1}\n</parameter>\n</function>')
    )

    assert found.arguments == {"b": '{"c": 1}'}
