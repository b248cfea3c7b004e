"""BFCL's gold calls in every family's syntax; its irrelevant questions are no calls."""

import json
from collections import Counter
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from ofa.chat import Tool
from ofa.toolcalls import rescue
from ofa.toolcalls.reader import Reader

from .bfcl import CALLING, IRRELEVANT, questions
from .forms import FAMILIES, FORMS, PLAIN_FORMS, check_same, told, typed

EVERY = FORMS | PLAIN_FORMS
CUT = 40  # of so many questions one is cut at every character


def test_there_are_over_3000_gold_calls_of_every_kind():
    """Simple, multiple, parallel and nested ones, with values of every type."""
    asked = questions(*CALLING)
    calls = [one for question in asked for one in question.calls]
    kinds = Counter(type(v).__name__ for one in calls for v in one.arguments.values())

    assert len(calls) == 3302
    assert sum(len(question.calls) > 1 for question in asked) > 400
    assert sum(len(question.tools) > 1 for question in asked) > 1000
    assert {"str", "int", "float", "bool", "list", "dict"} <= set(kinds)
    assert len(questions(*IRRELEVANT)) == 1124


def test_gold_calls_are_taken_apart_rightly():
    """
    All but 100 of 3,302 fit the schemas: what lists of right values hide is found.

    Those 100 are the data's own slips: names of variables in place of values, "N/A" or
    "dontcare" beside an enum.
    """
    unfit = 0
    for question in questions(*CALLING):
        schemas = {tool.name: tool.parameters for tool in question.tools}
        for one in question.calls:
            fits = Draft202012Validator(schemas[one.name]).is_valid(one.arguments)
            unfit += not fits

    assert unfit <= 100


@pytest.mark.parametrize("category", CALLING)
@pytest.mark.parametrize("family", EVERY)
def test_gold_calls_read_back_equal(family, category):
    """All calls of an answer behind each other: names, values and their types."""
    form = EVERY[family]
    for question in questions(category):
        text = form.said(form.format.calls(question.calls))

        check_same(form.read(text), question.calls)


@pytest.mark.parametrize("family", EVERY)
def test_gold_calls_end_where_they_end_for_every_cut(family):
    """Of a sample of all kinds, no beginning is taken for the whole."""
    form = EVERY[family]
    for question in questions(*CALLING)[::CUT]:
        form.check_cuts(form.said(form.format.calls(question.calls)))


@pytest.mark.parametrize("category", [*CALLING, *IRRELEVANT])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_function_is_told_with_every_property(family, category):
    """At whatever depth: a model can't use what it does not know."""
    form = FORMS[family]
    for tools in offered(category):
        text = told(form, tools)
        for tool in tools:
            assert tool.name in text
            for name in properties(tool.parameters):
                assert name in text, (tool.name, name)


@cache
def offered(category: str) -> list[tuple[Tool, ...]]:
    """Return the sets of tools that questions come with, each once."""
    sets = {
        json.dumps([(tool.name, tool.parameters) for tool in question.tools]): question
        for question in questions(category)
    }
    return [question.tools for question in sets.values()]


def properties(schema: dict) -> list[str]:
    """Return the names of all properties of *schema*."""
    own = schema.get("properties", {})
    parts = [*own.values(), *([schema["items"]] if "items" in schema else [])]
    return [*own, *(name for part in parts for name in properties(part))]


@pytest.mark.parametrize("category", IRRELEVANT)
def test_irrelevant_questions_hold_no_call(category):
    """
    A text without a call is none, nor is one that only speaks of functions.

    Rescue finds nothing in it, and the reader gives all of it out as the text it is.
    """
    for question in questions(category):
        names = " ".join(tool.name for tool in question.tools)
        for text in (question.text, f"None of {names} helps. {question.text}"):
            assert rescue.find(text, question.tools) is None, question.id
            for form in (EVERY[family] for family in FAMILIES):
                reader = Reader(form.format, question.tools)
                given_out = [*reader.feed(text), *reader.finish(cut=False)]
                assert "".join(given_out) == text, (form.format.name, question.id)


def test_a_gold_call_in_json_is_rescued_and_equal():
    """The other way round: what the irrelevant ones must not be is found."""
    for question in questions("simple_python"):
        (one,) = question.calls
        body = {"name": one.name, "arguments": one.arguments}

        rescued = rescue.find(json.dumps(body), question.tools)

        assert rescued is not None, question.id
        (found,) = rescued.calls
        assert found.name == one.name
        assert typed(found.arguments) == typed(one.arguments)
