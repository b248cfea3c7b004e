"""The bench's forms: each shows what it reads, and differs in one thing."""

import json

import pytest

from bench import forms
from bench.forms import FORMS, Form, outcome
from ofa.chat import Tool
from ofa.toolcalls.base import plain
from ofa.toolcalls.generic import Generic
from tests.toolcalls.bfcl import Question
from tests.toolcalls.forms import call

AREA = Tool(
    "area",
    "Area of a triangle.",
    {
        "type": "object",
        "properties": {"base": {"type": "number"}, "unit": {"type": "string"}},
        "required": ["base"],
    },
)
MEET = Tool("meet", "Plan a meeting.", {"type": "object", "properties": {}})
TOOLS = (MEET, AREA)
QUESTION = Question(
    "q",
    "How large is it?",
    TOOLS,
    (call("area", {"base": 3}),),
    ({"area": {"base": [3, 3.0], "unit": ["square metres", ""]}},),
)

each = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def written(form, name, arguments):
    """Return a call as *form* asks for it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"{form.opener}\n{body}\n{form.closer}"


def test_the_first_form_is_the_products():
    """What is compared with is what ofa sends, to the letter."""
    assert FORMS[0].declare(TOOLS) == plain(Generic().declare(TOOLS))


@each
def test_a_form_shows_what_it_reads(form):
    """Both tools and the block stand in it; only the thing of its name is exchanged."""
    told = form.declare(TOOLS)

    assert "area" in told and "meet" in told
    assert f"{form.opener}\n{form.example(TOOLS)}\n{form.closer}" in told
    assert ("A question mark" in told) is not form.as_json
    assert ('"properties": {"base"' in told) is form.as_json
    assert ('{"name": "area", "arguments": {"base": 1.5}}' in told) is (not form.shown)


@each
@pytest.mark.parametrize(
    ("name", "arguments", "what"),
    [
        ("area", {"base": 3}, "right"),
        ("area", {"base": 3.0, "unit": "Square-metres"}, "right"),
        ("area", {"base": 4}, "other arguments"),
        ("area", {"base": 3, "unit": "feet"}, "other arguments"),
        ("meet", {}, "another tool"),
        ("area", {"base": "wide"}, "a call that can't be used"),
    ],
)
def test_an_answer_is_judged(form, name, arguments, what):
    """Any of the gold values is right; nothing else is."""
    assert outcome(form, QUESTION, written(form, name, arguments)) == what


@each
def test_prose_and_two_calls_are_no_right_answer(form):
    """One call was asked for; where none is, a call is the fault."""
    one = written(form, "area", {"base": 3})
    two = written(form, "meet", {})
    idle = Question("i", "How are you?", TOOLS)

    assert outcome(form, QUESTION, "It is three.") == "no call"
    assert outcome(form, QUESTION, f"{one}\n{two}") == "several calls"
    assert outcome(form, idle, "Well.") == "no call"
    assert outcome(form, idle, one) == "a call"


def test_a_brace_in_an_argument_ends_no_call():
    """The closer within a string is text."""
    form = Form("fence", opener="```json")
    found = forms.Tried(form).read(written(form, "area", {"unit": "a\n```\nb"}))

    assert found[0].arguments == {"unit": "a\n```\nb"}


def test_bfcls_questions_are_evenly_taken():
    """Over several functions with one gold call; irrelevant ones have none."""
    asked = forms.questions(20)
    idle = forms.questions(10, irrelevant=True)

    assert len({one.id for one in asked}) == 20
    assert all(len(one.tools) > 1 and one.accepts(one.calls[0]) for one in asked)
    assert len(idle) == 10 and not any(one.calls for one in idle)
