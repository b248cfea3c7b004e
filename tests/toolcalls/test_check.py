"""Whether arguments fit, and what is told if they don't."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ofa.toolcalls.check import MOST_PROBLEMS, fits, problems
from ofa.toolcalls.check_words import MOST
from ofa.toolcalls.schema import resolved

from .catalogue import catalogue
from .strategies import ANYTHING, conforming, schemas
from .test_schema import JUNK

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
LONG = "sEcReT" * 20


def of_value(value, schema):
    """Return what is wrong with *value* as the argument ``p``."""
    return problems({"p": value}, {"properties": {"p": schema}})


@pytest.mark.parametrize(
    ("value", "schema", "told"),
    [
        ("3", {"type": "integer"}, "p: must be integer, not string"),
        (True, {"type": "integer"}, "p: must be integer, not boolean"),
        (1.5, {"type": "integer"}, "p: must be integer, not number"),
        (None, {"type": ["string", "array"]}, "p: must be string or array, not null"),
        ("c", {"enum": ["a", "b"]}, 'p: must be one of ["a", "b"]'),
        ("c", {"const": "a"}, 'p: must be "a"'),
        ({}, {"required": ["a"]}, "p: 'a' is missing"),
        ({"b": 1}, {"required": ["a", "c"]}, "p: 'a', 'c' are missing"),
        (
            {"x": 1},
            {"properties": {"a": {}}, "additionalProperties": False},
            "p: no key 'x' is allowed; known are: 'a'",
        ),
        ([1, {"k": 1}], {"items": {"type": "integer"}}, "p[1]: must be integer, not"),
        ({"k": [1]}, {"properties": {"k": {"items": {"minimum": 2}}}}, "p.k[0]: must"),
        ("a", {"pattern": "^[0-9]+$"}, "p: must match the pattern ^[0-9]+$"),
        ("a", {"minLength": 2}, "p: must have at least 2 characters"),
        ([], {"minItems": 1}, "p: must have at least 1 items"),
        (1, {"minimum": 2}, "p: must be at least 2"),
        (1, {"exclusiveMinimum": 1}, "p: must be more than 1"),
        ([1, 1.0], {"uniqueItems": True}, "p: must have no item twice"),
        (1, False, "p: is not allowed"),
        (1, {"not": {"type": "integer"}}, "p: has a form that is not allowed"),
        ({"a": 1}, {"propertyNames": {"maxLength": 0}}, "p: its keys: must have at"),
        ({"a": 1}, {"dependentRequired": {"a": ["b"]}}, "p: breaks the schema's rule"),
        (
            1,
            {"anyOf": [{"type": "string"}, {"type": "array"}]},
            "p: must be string or array, not integer",
        ),
        (
            ["a", 1],
            {"anyOf": [{"type": "string"}, {"items": {"type": "string"}}]},
            "p[1]: must be string, not integer",
        ),
        (1, {"anyOf": [False, {"type": "null"}]}, "p: fits none of the allowed"),
        (1, {"$ref": "#/properties/p/x", "x": False}, "p: is not allowed"),
        (
            1,
            {"$ref": "#/properties/p/x", "x": {"anyOf": [False, {"type": "null"}]}},
            "p: fits none of the allowed",
        ),
        (1, {"anyOf": [{"minimum": 2}, {"minimum": 3}]}, "p: fits none of the allowed"),
        (3, {"oneOf": [{"minimum": 2}, {"minimum": 3}]}, "p: fits several of the"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_rule(value, schema, told):
    """A model reads where it went wrong and what is allowed there."""
    assert of_value(value, schema)[0].startswith(told)


def test_what_is_told_is_short_and_quotes_no_arguments():
    """At most five lines of 200 characters, without what the model wrote."""
    schema = {
        "properties": {f"n{n}": {"enum": ["x" * 90] * 9} for n in range(9)},
        "additionalProperties": False,
    }

    told = problems({LONG: LONG, **{f"n{n}": LONG for n in range(9)}}, schema)

    assert len(told) == MOST_PROBLEMS
    assert all(len(line) <= MOST for line in told)
    assert not [line for line in told if LONG[:41] in line]


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, {"$ref": "https://example.org/never-fetched"}),
        (1, {"$ref": "#/$defs/none"}),
        (1, {"$id": 3, "type": "number"}),
        ({}, {"required": "abc"}),
        ({}, {"required": True}),
        ("a", {"enum": "b"}),
        ("a", {"pattern": "("}),
        ("a", {"pattern": "a" * 3000}),
        ("a", {"type": "what"}),
        ("a", {"minLength": "x"}),
        (1, {"multipleOf": 0}),
        ({"a": 1}, {"properties": []}),
        ("a", {"format": "date"}),
        ([1], {"items": [{"type": "integer"}]}),
        (3.0, {"type": "integer"}),
        ([1, 1], {"uniqueItems": False}),
        (1, {"$id": "http://[", "type": "number"}),
        (None, {"type": "string", "nullable": True}),
        (None, {"$ref": "#/$defs/none", "type": "string", "nullable": True}),
    ],
)
def test_what_makes_no_sense_in_a_schema_refuses_nothing(value, schema):
    """A broken keyword is left out, nothing is fetched, and formats don't count."""
    assert fits(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ([1, "a"], {"items": [{}, {"type": "integer"}]}),
        ("a", {"type": "INT"}),
        (1, {"minimum": 1, "exclusiveMinimum": True}),
        ("a", {"pattern": "(", "maxLength": 0}),
        ("a", {"$schema": "http://json-schema.org/draft-04/schema#", "type": "int"}),
        ({"ab": 1}, {"patternProperties": {"^a": {"type": "string"}}}),
        (
            {"ab": 1, "b": 1},
            {"patternProperties": {"^a": {}}, "additionalProperties": False},
        ),
        ({"b": 1}, {"additionalProperties": {"type": "string"}}),
    ],
)
def test_the_rest_of_a_schema_still_holds(value, schema):
    """Older drafts, other spellings of types and what stands beside nonsense count."""
    assert not fits(value, schema)


def test_references_are_followed_at_every_depth():
    """A type within itself is checked as deep as the value goes."""
    node = {
        "type": "object",
        "properties": {
            "v": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        },
        "required": ["v"],
    }
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    value = {"v": "x", "next": None}
    for n in range(9):
        value = {"v": n, "next": value}

    assert problems(value, schema) == ("next." * 9 + "v: must be integer, not string",)


def test_a_long_schema_is_checked_by_too():
    """What is too long to be kept compiled holds all the same."""
    schema = {"description": "x" * 20_000, "type": "integer"}

    assert fits(1, schema)
    assert not fits("1", schema)


def test_a_schema_deeper_than_any_request_refuses_nothing():
    """Ten thousand levels can't be checked by, and do not fail."""
    deep: dict = {"not": {}}
    for _ in range(10_000):
        deep = {"items": deep}

    assert fits([], deep)


@pytest.mark.parametrize(
    "definitions",
    [
        {"a0": {"allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/a0"}]}},
        {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(50)},
    ],
    ids=["circle", "doubling"],
)
def test_references_end(definitions):
    """Circles and doublings neither hang nor overflow."""
    began_s = time.thread_time()

    assert fits({}, {"$ref": "#/$defs/a0", "$defs": definitions})

    assert time.thread_time() - began_s < 20


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("a" * 60 + "b", {"pattern": "^(a|aa)+$"}),
        (["a" * 60 + "b"] * 50, {"items": {"pattern": "^(a|aa)+$"}}),
        (
            ["a" * 60 + "b", "a"],
            {
                "anyOf": [
                    {"items": {"pattern": "^(a|aa)+$"}},
                    {"contains": {"pattern": "b$"}},
                ]
            },
        ),
        (
            {"a" * 60 + "b": 1},
            {"patternProperties": {"^(a|aa)+$": {}}, "additionalProperties": False},
        ),
        (
            {"a" * 60 + "b": 1},
            {"patternProperties": {"^(a|aa)+$": {}}, "unevaluatedProperties": True},
        ),
    ],
    ids=["value", "many", "behind", "key", "unevaluated"],
)
def test_a_pattern_that_backtracks_without_end_is_stopped(value, schema):
    """No schema holds a worker: the value counts as one that does not match."""
    began_s = time.thread_time()

    fitting = fits(value, schema)

    assert fitting == ("unevaluatedProperties" in schema)
    assert time.thread_time() - began_s < 20


@given(st.data())
@FEW
def test_what_fits_is_what_the_validator_accepts(data):
    """On ordinary schemas nothing is let through and nothing refused but by rule."""
    schema = data.draw(schemas())
    names = [*schema["properties"], "x"]
    value = data.draw(st.dictionaries(st.sampled_from(names), ANYTHING, max_size=4))

    assert fits(value, schema) == Draft202012Validator(schema).is_valid(value)


@given(st.data())
@FEW
def test_conforming_arguments_fit_in_either_form(data):
    """A schema as sent and as shown to a model allow the same calls."""
    real = [tool.parameters for tool in catalogue().values() if tool.parameters]
    schema = data.draw(st.one_of(schemas(), st.sampled_from(real)))
    value = data.draw(conforming(schema))

    assert problems(value, schema) == ()
    assert problems(value, resolved(schema)) == ()


@given(JUNK, ANYTHING)
@FEW
def test_any_schema_can_be_checked_by(schema, value):
    """Whatever stands in a schema's place, there is an answer."""
    assert all(len(line) <= MOST for line in problems(value, schema))
