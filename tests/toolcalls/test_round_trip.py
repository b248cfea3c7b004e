"""A call in a family's syntax reads back equal, wherever its text is cut."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofa.chat import Tool, ToolCall
from ofa.toolcalls.reader import Reader

from .catalogue import catalogue
from .forms import FAMILIES, FORMS, call, check_same, told, typed
from .strategies import TOOL_NAMES, conforming, schemas

PAIRS = 2000
TOOLS = catalogue()


@st.composite
def pairs(draw):
    """Draw a random tool, and a call that fits its schema."""
    tool = Tool(draw(TOOL_NAMES), "A tool.", draw(schemas()))
    return tool, call(tool.name, draw(conforming(tool.parameters)))


@pytest.mark.timeout(300)
@settings(
    max_examples=PAIRS,
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)
@given(pairs())
def test_random_calls_read_back_in_every_family_at_every_cut(pair):
    """2,000 random schemas, each with a random call that fits it."""
    tool, one = pair
    for form in FORMS.values():
        text = form.said(form.format.calls([one]))

        check_same(form.read(text), [one])
        form.check_cuts(text)
    for family in FAMILIES:
        assert tool.name in told(FORMS[family], [tool])


@pytest.mark.parametrize("family", FORMS)
@settings(max_examples=15, database=None, deadline=None)
@given(data=st.data())
def test_several_calls_of_a_turn_stay_apart(family, data):
    """In their order, none lost, none read twice."""
    form = FORMS[family]
    drawn = data.draw(st.lists(pairs(), min_size=2, max_size=4))
    calls = [one for _, one in drawn]

    text = form.said(form.format.calls(calls))

    check_same(form.read(text), calls)
    form.check_cuts(text)


@pytest.mark.parametrize("name", TOOLS)
@settings(max_examples=3, database=None, deadline=None)
@given(data=st.data())
def test_calls_of_real_tools_pass_the_reader_and_its_check(name, data):
    """Every tool of every client, in every family."""
    tool = TOOLS[name]
    arguments = data.draw(conforming({"type": "object", **tool.parameters}))
    one = call(tool.name, arguments)

    for form in FORMS.values():
        reader = Reader(form.format, [tool])
        text = form.said(form.format.calls([one]))
        (found,) = [*reader.feed(text), *reader.finish(cut=False)]
        assert isinstance(found, ToolCall), found
        assert (found.name, typed(found.arguments)) == (one.name, typed(one.arguments))


@pytest.mark.parametrize("name", TOOLS)
def test_real_tools_are_told_with_every_name_in_their_schema(name):
    """A property that a model is not told of is one it can't use."""
    tool = TOOLS[name]
    properties = tool.parameters.get("properties", {})

    for form in (FORMS[family] for family in FAMILIES):
        text = told(form, [tool])
        assert tool.name in text
        for named in properties:
            assert named in text, (form.format.name, named)


@pytest.mark.parametrize("family", FORMS)
def test_what_is_told_of_tools_does_not_depend_on_their_order(family):
    """The same prefix whatever order a client sends them in."""
    tools = list(TOOLS.values())[:40]

    assert told(FORMS[family], tools) == told(FORMS[family], tools[::-1])


@pytest.mark.parametrize("family", FORMS)
@settings(max_examples=40, database=None, deadline=None)
@given(pair=pairs(), size=st.integers(1, 9))
def test_random_calls_leave_the_reader_as_they_were_written(family, pair, size):
    """Fed in pieces, behind a sentence: the sentence, then the call, checked."""
    form, (tool, one) = FORMS[family], pair
    text = "So be it:\n\n" + form.said(form.format.calls([one]))
    reader = Reader(form.format, [tool])

    given_out = []
    for at in range(0, len(text), size):
        given_out += reader.feed(text[at : at + size])
    given_out += reader.finish(cut=False)

    assert "".join(p for p in given_out if isinstance(p, str)).strip() == "So be it:"
    (found,) = (piece for piece in given_out if not isinstance(piece, str))
    assert isinstance(found, ToolCall), found
    assert (found.name, typed(found.arguments)) == (one.name, typed(one.arguments))


@pytest.mark.parametrize("family", FORMS)
@settings(max_examples=10, database=None, deadline=None)
@given(pair=pairs())
def test_a_call_that_the_limit_cuts_leaves_nothing(family, pair):
    """At whatever character: no part of it, neither as a call nor as text."""
    form, (tool, one) = FORMS[family], pair
    text = form.said(form.format.calls([one]))
    for cut in range(len(form.opens(text, 0)), len(text)):
        reader = Reader(form.format, [tool])

        assert [*reader.feed(text[:cut]), *reader.finish(cut=True)] == []
