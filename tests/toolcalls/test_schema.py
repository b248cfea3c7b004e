"""Schemas in the one form that models are shown."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofa.chat import Tool
from ofa.toolcalls.schema import (
    MAX_DEPTH,
    MAX_EXPANDED,
    canonical,
    required_of,
    resolved,
    types_of,
)

from .catalogue import catalogue
from .strategies import schemas

EMPTY = {"type": "object", "properties": {}}
STRING = {"type": "string"}
OBJECT_A = {"type": "object", "properties": {"a": STRING}}

_KEYS = (
    "type", "properties", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "const",
    "enum", "required", "nullable", "additionalProperties", "prefixItems", "not",
    "minimum", "pattern", "description", "if", "patternProperties", "a", "b",
)  # fmt: skip
_WORDS = ("string", "object", "null", "integer", "#", "#/$defs/a", "#/anyOf/0", "a")


def _grown(inner):
    """Return junk that looks more and more like a schema."""
    return st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["object", "string", ["string", "null"]])},
            optional={
                "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
                "anyOf": st.lists(inner, max_size=3),
                "allOf": st.lists(inner, max_size=3),
                "$ref": st.sampled_from(["#", "#/$defs/a", "#/allOf/0"]),
                "additionalProperties": inner,
                "enum": st.lists(inner, max_size=3),
            },
        ),
    )


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(_WORDS)),
    _grown,
    max_leaves=14,
)


def of_property(schema):
    """Return what becomes of *schema* as a property's."""
    return resolved({"type": "object", "properties": {"p": schema}})["properties"]["p"]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (True, {}),
        (False, {"not": {}}),
        ("junk", {}),
        ({"properties": {"a": STRING}}, OBJECT_A),
        ({"type": "object"}, EMPTY),
        ({"type": "object", "properties": []}, EMPTY),
        ({"type": "STRING"}, STRING),
        ({"type": "dict"}, EMPTY),
        ({"type": "any"}, {}),
        ({"type": ["string"]}, STRING),
        ({"type": ["null", "string"]}, {"type": "string", "nullable": True}),
        ({"type": ["integer", "string"]}, {"type": ["integer", "string"]}),
        ({"type": "null"}, {"type": "null"}),
        ({"items": STRING}, {"type": "array", "items": STRING}),
        ({"items": [STRING]}, {"type": "array", "prefixItems": [STRING]}),
        (
            {"items": [STRING], "additionalItems": False},
            {"type": "array", "prefixItems": [STRING], "items": {"not": {}}},
        ),
        ({"const": 3}, {"type": "integer", "enum": [3]}),
        ({"enum": ["a", "b", "a"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"enum": [1, 1.5]}, {"type": "number", "enum": [1, 1.5]}),
        ({"enum": [1, True]}, {"type": ["integer", "boolean"], "enum": [1, True]}),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
        ({"type": "string", "required": []}, STRING),
        ({"type": "string", "nullable": False}, STRING),
        (
            {"anyOf": [STRING, {"type": "null"}], "default": None},
            {"type": "string", "nullable": True, "default": None},
        ),
        ({"anyOf": [STRING]}, STRING),
        ({"anyOf": [{"type": "null"}] * 2}, {"anyOf": [{"type": "null"}] * 2}),
        (
            {
                "allOf": [
                    {"type": ["string", "number"]},
                    {"type": ["integer", "number"]},
                ]
            },
            {"type": "number"},
        ),
        (
            {"allOf": [{"contains": STRING}, {"contains": {}}]},
            {"contains": STRING, "allOf": [{"contains": {}}]},
        ),
        (
            {"allOf": [{"if": {"minimum": 1}, "then": {"maximum": 2}}, {"else": {}}]},
            {
                "if": {"minimum": 1},
                "then": {"maximum": 2},
                "allOf": [{"else": {}}],
            },
        ),
        (
            {"anyOf": [STRING, {"type": "integer"}, {"type": "null"}]},
            {"anyOf": [STRING, {"type": "integer"}], "nullable": True},
        ),
        (
            {"oneOf": [{"const": "x", "description": "the x"}, {"const": "y"}]},
            {"type": "string", "enum": ["x", "y"], "description": "x: the x"},
        ),
        (
            {"oneOf": [{"enum": ["x", "y"]}, {"enum": ["y", "z"]}]},
            {"type": "string", "enum": ["x", "z"]},
        ),
        (
            {"allOf": [OBJECT_A, {"properties": {"b": STRING}, "required": ["b"]}]},
            {
                "type": "object",
                "properties": {"a": STRING, "b": STRING},
                "required": ["b"],
            },
        ),
        (
            {"allOf": [{"type": "number"}, {"type": "integer", "minimum": 1}]},
            {"type": "integer", "minimum": 1},
        ),
        (
            {"allOf": [{"minimum": 1}, {"minimum": 2}]},
            {"minimum": 1, "allOf": [{"minimum": 2}]},
        ),
        (
            {"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}], "title": "T"},
            {"title": "T", "type": "string", "enum": ["b"]},
        ),
        (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            {"type": "string", "allOf": [{"type": "integer"}]},
        ),
        (
            {"allOf": [OBJECT_A, {"properties": {"a": {"minLength": 1}}}]},
            {"type": "object", "properties": {"a": {**STRING, "minLength": 1}}},
        ),
        (
            {"allOf": [OBJECT_A, {"properties": {"a": {"type": "null"}}}]},
            {
                **OBJECT_A,
                "allOf": [{"type": "object", "properties": {"a": {"type": "null"}}}],
            },
        ),
        (
            {"allOf": [{"items": STRING}, {"prefixItems": [STRING]}]},
            {
                "type": "array",
                "items": STRING,
                "allOf": [{"type": "array", "prefixItems": [STRING]}],
            },
        ),
        (
            {"allOf": [{"type": ["string", "null"]}, {"minLength": 1}]},
            {"type": "string", "minLength": 1, "nullable": True},
        ),
        (
            {"allOf": [{"type": ["string", "null"]}, STRING]},
            STRING,
        ),
        (
            {"allOf": [{"type": "array", "uniqueItems": True}, {"items": STRING}]},
            {"type": "array", "uniqueItems": True, "items": STRING},
        ),
        (
            {"allOf": [{**EMPTY, "unevaluatedProperties": False}, OBJECT_A]},
            {**EMPTY, "unevaluatedProperties": False, "allOf": [OBJECT_A]},
        ),
        (
            {"type": "string", "anyOf": [{"type": "integer"}]},
            {"type": "string", "anyOf": [{"type": "integer"}]},
        ),
        (
            {"anyOf": [{"type": "string", "enum": [1]}, STRING]},
            {"anyOf": [{"type": "string", "enum": [1]}, STRING]},
        ),
        (
            {"anyOf": [{"enum": ["x"]}, {"enum": ["y"], "minLength": 1}]},
            {
                "anyOf": [
                    {"type": "string", "enum": ["x"]},
                    {"type": "string", "enum": ["y"], "minLength": 1},
                ]
            },
        ),
        (
            {"oneOf": [{"const": "x"}, {"const": "x"}]},
            {"oneOf": [{"type": "string", "enum": ["x"]}] * 2},
        ),
    ],
)
def test_a_schema_has_one_plain_form(sent, shown):
    """Whatever a client's spelling, a family reads one form of it."""
    assert of_property(sent) == shown


@pytest.mark.parametrize("sent", [None, True, [], 3, "x", {}, {"type": "string"}])
def test_arguments_are_an_object_whatever_is_sent(sent):
    """At the top there is always an object with properties."""
    assert resolved(sent) == EMPTY


def test_many_branches_are_left_as_they_are():
    """A thousand branches are not merged one by one."""
    branches = [{"type": "number", "minimum": n} for n in range(1000)]

    assert of_property({"allOf": branches}) == {"allOf": branches}


def test_what_allof_closes_stays_apart():
    """A schema that allows nothing but its own properties is never widened."""
    closed = {**OBJECT_A, "additionalProperties": False}
    other = {"type": "object", "properties": {"b": STRING}}

    assert of_property({"allOf": [closed, other]}) == {**closed, "allOf": [other]}


def test_references_are_resolved_with_what_stands_beside_them():
    """The own description counts more than the definition's; escapes are read."""
    sent = {
        "properties": {"p": {"$ref": "#/definitions/a~1b%20c", "description": "own"}},
        "definitions": {"a/b c": {"enum": ["x"], "description": "its"}},
    }

    shown = resolved(sent)

    assert shown == {
        "type": "object",
        "properties": {"p": {"type": "string", "enum": ["x"], "description": "own"}},
    }


@pytest.mark.parametrize(
    "reference",
    [
        "https://example.org/a#/b",
        "#/$defs/none",
        "#nowhere",
        "other",
        "#/type/0",
        "#/required/7",
        "#/required/x",
    ],
)
def test_a_reference_that_leads_nowhere_is_any_value(reference):
    """Nothing is fetched, nothing fails: the value may be anything."""
    shown = of_property({"$ref": reference})

    assert shown.keys() <= {"description"}


def test_an_anchor_and_the_own_id_are_found():
    """References by name or by the schema's own address are local ones."""
    sent = {
        "$id": "https://example.org/tool",
        "properties": {
            "a": {"$ref": "#word"},
            "b": {"$ref": "https://example.org/tool#/$defs/w"},
            "c": {"$ref": "#word"},
        },
        "$defs": {"w": {"$anchor": "word", "type": "string"}},
    }

    assert resolved(sent)["properties"] == {"a": STRING, "b": STRING, "c": STRING}


def test_a_type_within_itself_is_told_twice_then_named():
    """Recursion ends with the type's name."""
    node = {
        "type": "object",
        "description": "a node",
        "properties": {"next": {"$ref": "#/$defs/Node"}},
    }

    shown = resolved({"$ref": "#/$defs/Node", "$defs": {"Node": node}})

    last = shown["properties"]["next"]["properties"]["next"]
    assert last == {**EMPTY, "description": "a node (Node)"}


def test_references_into_lists_are_found():
    """A pointer may lead through a union; a boolean there is any value."""
    sent = {
        "properties": {"p": {"$ref": "#/properties/q/anyOf/1"}, "q": {}, "r": {}},
    }
    sent["properties"]["q"] = {"anyOf": [STRING, {"type": "integer"}, True]}
    sent["properties"]["r"] = {"$ref": "#/properties/q/anyOf/2"}

    shown = resolved(sent)["properties"]

    assert shown["p"] == {"type": "integer"}
    assert shown["r"] == {}


def test_references_that_double_are_cut():
    """Sixty definitions that each use the next one twice stay affordable."""
    twice = {
        f"d{n}": {
            "properties": {
                "a": {"$ref": f"#/$defs/d{n + 1}"},
                "b": {"$ref": f"#/$defs/d{n + 1}"},
                "c": {"$ref": "#/$defs/any"},
            }
        }
        for n in range(60)
    }

    shown = resolved({"$ref": "#/$defs/d0", "$defs": {**twice, "any": True}})

    assert len(json.dumps(shown)) < 3 * MAX_EXPANDED


def test_depth_is_cut():
    """Three thousand levels neither fail nor reach a model."""
    deep: dict = {}
    for _ in range(3000):
        deep = {"items": deep}

    shown = resolved({"properties": {"p": deep}})["properties"]["p"]

    levels = 0
    while "items" in shown:
        shown, levels = shown["items"], levels + 1
    assert levels < MAX_DEPTH


@pytest.mark.parametrize("name", catalogue())
def test_real_schemas_keep_what_they_say(name):
    """What clients send keeps every property, at every depth."""
    sent = catalogue()[name].parameters

    shown = resolved(sent)

    assert resolved(shown) == shown
    assert shown["properties"].keys() >= sent.get("properties", {}).keys()
    assert set(required_of(shown)) >= set(required_of(sent))


@given(st.one_of(JUNK, schemas()))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_is_resolved_once_and_for_all(sent):
    """Nothing raises, nothing is changed, and a second time is the same."""
    before = json.dumps(sent)

    shown = resolved(sent)

    assert resolved(shown) == shown
    assert shown["type"] == "object"
    assert json.dumps(sent) == before


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, ()),
        ({"type": "what"}, ()),
        ({"type": ["string", "what"]}, ()),
        ({"type": "integer", "nullable": True}, ("integer", "null")),
        ({"type": ["string", "null"]}, ("string", "null")),
        ({"type": 3}, ()),
    ],
)
def test_types_are_those_allowed(schema, types):
    """An unknown type allows any; null counts however it is written."""
    assert types_of(schema) == types


def test_tools_have_one_order():
    """A client's order makes no new prefix."""
    tools = [Tool("b"), Tool("a"), Tool("B")]

    assert canonical(tools) == (Tool("B"), Tool("a"), Tool("b"))
    assert canonical(reversed(tools)) == canonical(tools)
