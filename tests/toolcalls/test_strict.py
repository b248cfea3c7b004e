"""The refusals of ``[tools] schema = "strict"``."""

import pytest

from ofa.chat import Tool
from ofa.errors import BadRequest
from ofa.toolcalls.strict import check_strict

STRING = {"type": "string"}
NULL = {"type": "null"}
A = {"type": "string", "const": "a"}
B = {"type": "string", "const": "b"}


def _tool(schema):
    return Tool("t", "", {"type": "object", "properties": {"p": schema}})


@pytest.mark.parametrize(
    "schema",
    [
        STRING,
        {"type": ["null", "integer"]},
        {"type": ["integer", "null"], "nullable": True},
        {"type": "object"},
        {"type": "array", "items": {"type": "array", "items": STRING}},
        {"anyOf": [A, B, A], "description": "d"},
        {"oneOf": [A, B]},
        {"anyOf": [STRING, NULL], "default": None},
        {"oneOf": [NULL, STRING], "type": "string"},
        {"type": "number", "minimum": 1, "not": {}, "prefixItems": [1]},
    ],
)
def test_what_can_be_told_whole_is_let_through(schema):
    """Types, null beside a type, and the two unions are no reason to refuse."""
    check_strict(_tool(schema))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (True, "parameters.properties.p"),
        ({}, "parameters.properties.p"),
        ({"type": "str"}, "parameters.properties.p"),
        ({"type": 3}, "parameters.properties.p"),
        ({"type": ["string"]}, "parameters.properties.p"),
        ({"type": ["string", "number"]}, "parameters.properties.p"),
        ({"type": ["string", "number", "null"]}, "parameters.properties.p"),
        ({"type": ["string", "null"], "nullable": False}, "parameters.properties.p"),
        ({"type": "string", "allOf": []}, "parameters.properties.p"),
        ({"$ref": "#/$defs/a"}, "parameters.properties.p"),
        ({"anyOf": [STRING]}, "parameters.properties.p"),
        ({"anyOf": STRING}, "parameters.properties.p"),
        ({"anyOf": [STRING, {"type": "number"}]}, "parameters.properties.p"),
        ({"anyOf": [STRING, NULL, A]}, "parameters.properties.p"),
        ({"anyOf": [STRING, NULL], "oneOf": [A, B]}, "parameters.properties.p"),
        ({"anyOf": [A, B], "minLength": 1}, "parameters.properties.p"),
        ({"oneOf": [A, B, A]}, "parameters.properties.p"),
        ({"oneOf": [{"type": ["string", "null"]}, NULL]}, "parameters.properties.p"),
        ({"anyOf": [STRING, NULL], "type": "number"}, "parameters.properties.p"),
        ({"anyOf": [{"anyOf": [A, B]}, NULL]}, "parameters.properties.p"),
        ({"type": "string", "properties": {}}, "parameters.properties.p"),
        ({"type": "string", "items": STRING}, "parameters.properties.p"),
        ({"type": "array", "items": [STRING]}, "parameters.properties.p.items"),
        ({"type": "array", "items": {}}, "parameters.properties.p.items"),
        (
            {"type": "object", "properties": {"q": {}}},
            "parameters.properties.p.properties.q",
        ),
        ({"type": "object", "properties": []}, "parameters.properties.p.properties"),
        ({"type": "string", "default": 2**53 + 1}, "parameters.properties.p.default"),
        ({"type": "string", "default": 10**400}, "parameters.properties.p.default"),
        (
            {"type": "string", "examples": [{"properties": {"a b": 1}}]},
            "parameters.properties.p.examples[0].properties",
        ),
        ({"type": "object", "properties": {"": STRING}}, "parameters.properties.p"),
    ],
)
def test_what_could_be_told_in_part_only_is_refused_at_its_place(schema, place):
    """The refusal names the tool and where in its schema the fault is."""
    with pytest.raises(BadRequest) as caught:
        check_strict(_tool(schema))

    assert caught.value.code == "invalid_tool_schema"
    assert caught.value.param == "tools"
    assert f"tool 't': {place}" in str(caught.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "string"},
        {"type": ["object", "null"]},
        {"type": "object", "nullable": True},
        {"anyOf": [{"type": "object"}, NULL]},
    ],
)
def test_arguments_have_to_be_an_object(parameters):
    """At the top only an object that can't be null is let through."""
    with pytest.raises(BadRequest, match="tool 't': parameters: "):
        check_strict(Tool("t", "", parameters), "tools[3]")


def test_depth_is_refused():
    """A schema of a thousand levels is refused, not followed."""
    deep = STRING
    for _ in range(400):
        deep = {"type": "array", "items": deep}

    with pytest.raises(BadRequest, match="nested too deep"):
        check_strict(_tool(deep))
