"""The form for models without one: signatures, and calls in fenced blocks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Tool
from ofa.toolcalls import signature
from ofa.toolcalls.base import Unreadable, plain
from ofa.toolcalls.generic import Generic

from .forms import Form, call, check_same
from .offered import TOOLS
from .strategies import TOOL_NAMES, conforming, schemas

FORM = Form(Generic())
TEXT = {"type": "string"}


def tool(required=(), **properties):
    """Return a tool with *properties*."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool("t", "", schema)


# fmt: off
SIGNATURES = {
    "t()": tool(),
    "t(a: string)": tool(["a"], a=TEXT),
    "t(a?: string)": tool(a=TEXT),
    't(a?: "r"|"w" = "r")': tool(a={"enum": ["r", "w"], "default": "r"}),
    "t(a?: integer, b?: number)": tool(a={"type": "integer"}, b={"type": "number"}),
    "t(a?: string|null)": tool(a={"type": ["string", "null"]}),
    "t(a?: string[])": tool(a={"type": "array", "items": TEXT}),
    "t(a?: (string|integer)[])": tool(
        a={"type": "array", "items": {"type": ["string", "integer"]}}),
    "t(a?: {b: string, c?: {d?: boolean}}[])": tool(
        a={"type": "array", "items": {
            "type": "object", "required": ["b"],
            "properties": {"b": TEXT, "c": {
                "type": "object", "properties": {"d": {"type": "boolean"}}}}}}),
    "t(a?: object)": tool(a={"type": "object"}),
    "t(a?: {[name]: integer})": tool(
        a={"type": "object", "additionalProperties": {"type": "integer"}}),
    "t(a?: string|integer[])": tool(
        a={"anyOf": [TEXT, {"type": "array", "items": {"type": "integer"}}]}),
    "t(a?: any)": tool(a={}),
    "t(a?: [string, integer])": tool(
        a={"type": "array", "prefixItems": [TEXT, {"type": "integer"}]}),
    't(a?: ("a|b"|"c")[])': tool(a={"type": "array", "items": {"enum": ["a|b", "c"]}}),
    "t(a?: 1|2)": tool(a={"enum": [1, 2]}),
}
# fmt: on


@pytest.mark.parametrize("text", SIGNATURES)
def test_signature_says_what_the_schema_says(text):
    """In one line, as types of TypeScript."""
    assert signature.render(SIGNATURES[text]) == text


def test_descriptions_and_limits_have_lines_of_their_own():
    """By the parameter's path, in one line each."""
    told = Tool(
        "edit",
        "Changes\n  files.",
        {
            "type": "object",
            "properties": {
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "description": "What to change.",
                    "items": {
                        "type": "object",
                        "properties": {"at": {"type": "integer", "minimum": 1}},
                    },
                }
            },
        },
    )

    assert signature.render(told).splitlines() == [
        "edit(edits?: {at?: integer}[]) - Changes files.",
        "  edits: What to change. (minItems 1)",
        "  edits[].at: minimum 1",
    ]


def test_declarations_are_in_order_of_name():
    """A client's order makes no new prefix."""
    text = plain(Generic().declare(TOOLS))

    assert plain(Generic().declare(TOOLS[::-1])) == text
    places = [text.index(f"\n{one}(") for one in sorted(t.name for t in TOOLS)]
    assert places == sorted(places)
    assert Generic().declare([]) == ()


@given(parameters=schemas())
@settings(max_examples=100, database=None, deadline=None)
def test_any_schema_has_a_signature(parameters):
    """With every parameter's name in it."""
    text = signature.render(Tool("t", "", parameters))

    assert text.startswith("t(")
    assert all(name in text for name in parameters.get("properties", {}))


def test_what_authors_wrote_is_marked_as_theirs():
    """No control token of any model can come of it."""
    shaped = Generic()
    tag = "<end_of_turn>"
    pieces = (
        *shaped.declare([Tool("t", tag)]),
        *shaped.calls([call("t", {"a": tag})]),
        *shaped.results([("t", tag)]),
    )

    assert not any(tag in piece.text for piece in pieces if piece.ours)
    assert sum(piece.text.count(tag) for piece in pieces) == 3


def test_result_can_not_end_its_block():
    """Its fence is longer than any in it."""
    text = plain(Generic().results([("read", "```\na\n````"), ("b", "x")]))

    assert text == (
        "`````tool_result read\n```\na\n````\n`````\n```tool_result b\nx\n```"
    )


@st.composite
def turns(draw):
    """Draw the calls of a turn."""
    return [
        call(draw(TOOL_NAMES), draw(conforming(draw(schemas()))))
        for _ in range(draw(st.integers(1, 2)))
    ]


@given(calls=turns())
@settings(max_examples=150, database=None, deadline=None)
def test_calls_read_back_at_every_cut(calls):
    """What is rendered is read, and known to end at its last character only."""
    text = FORM.said(FORM.format.calls(calls))

    check_same(FORM.read(text), calls)
    FORM.check_cuts(text)


@pytest.mark.parametrize(
    "text", ["```tool_calls\n", "```tool_call x", "```tool_call\nread", "```tool_callx"]
)
def test_other_blocks_are_no_calls(text):
    """Nor is one whose first character is none of JSON's."""
    assert Generic().length(text) == 0


@pytest.mark.parametrize("text", ["```tool_call", "```tool_call \n", "```tool_call\n{"])
def test_block_that_may_become_a_call_waits(text):
    """Until it can be told."""
    assert Generic().length(text) is None


def test_block_without_its_last_line_is_read():
    """Models stop behind the JSON."""
    [found] = Generic().read('```tool_call\n{"name": "a", "arguments": {"b": 1}}')

    assert (found.name, found.arguments) == ("a", {"b": 1})
    assert found.repairs == ("unclosed",)


@pytest.mark.parametrize("body", ["", "{", "{}", '{"name": "a"', "[]", "{a}"])
def test_what_is_no_call_is_unreadable(body):
    """Never a guess, never another error."""
    with pytest.raises(Unreadable):
        Generic().read(f"```tool_call\n{body}\n```")
