"""Schemas that are too much, without end, or would be got wrong; and all others."""

from __future__ import annotations

import json

import pytest

from ofa.engine.mlx.schema import check_schema
from ofa.errors import BadRequest

from .grammars import INTEGER, SCHEMAS, STRING, obj

PARAM = "response_format.json_schema.schema"


def refused(schema):
    """Return why *schema* is refused."""
    with pytest.raises(BadRequest) as caught:
        check_schema(schema, PARAM)
    assert caught.value.param == PARAM
    assert str(caught.value).startswith(f"{PARAM}: ")
    return caught.value


def wrapped(depth, schema=None):
    """Return a schema of so many levels, one object each."""
    for _ in range(depth - 1):
        schema = {"items": schema or {}}
    return schema


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_usual_schema_passes_as_it_is(schema):
    """The text is the schema, in its own order."""
    assert list(json.loads(check_schema(schema, PARAM))) == list(schema)
    assert json.loads(check_schema(schema, PARAM)) == schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ([], "JSON object"),
        (True, "JSON object"),
        (wrapped(101), "100 levels"),
        (wrapped(100_000), "100 levels"),
        ({"enum": [[]] * 2000}, "2000 objects and arrays"),
        ({"description": "x" * 2**17}, "131072 characters"),
        ({"const": float("nan")}, "a number that JSON has not"),
        ({"maximum": float("inf")}, "2^53|JSON has not"),
    ],
)
def test_too_much(schema, named):
    """Limits are told with their number."""
    assert any(part in str(refused(schema)) for part in named.split("|"))


@pytest.mark.parametrize(
    "schema",
    [
        wrapped(100),
        {"enum": [[]] * 1998},
        {"description": "x" * (2**17 - 100)},
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
        {"type": "number", "multipleOf": 0.01},
        {"type": "number", "multipleOf": 1e6},
        {"type": "integer", "multipleOf": 9973},
        {"type": "integer", "multipleOf": True},
        {"minProperties": 1},
        {"minProperties": 3, "required": ["a", "b"]},
        {"patternProperties": {f"^{n}": {} for n in range(64)}},
    ],
)
def test_just_not_too_much(schema):
    """Each limit is where it is said to be."""
    check_schema(schema, PARAM)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "multipleOf": 99_991}, "multipleOf"),
        ({"allOf": [{"multipleOf": 97}, {"multipleOf": 1.07}]}, "multipleOf"),
        ({"anywhere": {"multipleOf": 99_991}, "$ref": "#/anywhere"}, "multipleOf"),
        ({"minimum": 2**53 + 1}, "2^53"),
        ({"const": 10**30}, "2^53"),
        ({"enum": [1e300]}, "2^53"),
        ({"patternProperties": {f"^{n}": {} for n in range(65)}}, "patternProperties"),
        ({"minProperties": 2}, "minProperties"),
        ({"minProperties": 4, "required": ["a", "b"]}, "minProperties"),
    ],
)
def test_what_would_be_got_wrong(schema, named):
    """It is named, as something that can't be done here."""
    error = refused(schema)

    assert named in str(error)
    assert error.code == "unsupported_value"


LINK = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#", "type": "object"},
        obj({"a": {"$ref": "#"}}),
        {"allOf": [STRING, {"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": LINK}, **LINK},
        {"$defs": {"a": obj({"x": LINK})},
         "type": "array", "items": LINK, "minItems": 2},
        {"$defs": {"a": obj({"x": {"$ref": "#/$defs/b"}}), "b": obj({"y": LINK})},
         **LINK},
        {"$defs": {"a/b~c d": {"$ref": "#/$defs/a~1b~0c%20d"}},
         "$ref": "#/$defs/a~1b~0c%20d"},
        {"anyOf": [STRING, {"oneOf": [{"$ref": "#/anyOf/1"}]}], "$ref": "#/anyOf/1"},
    ],
)  # fmt: skip
def test_no_value_comes_to_its_end(schema):
    """A model would write on to its limit; the schema can't have been meant so."""
    assert "no finite value" in str(refused(schema))


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMAS["tree"],
        SCHEMAS["list"],
        obj({"a": {"$ref": "#"}}, []),
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}},
         "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [INTEGER, {"$ref": "#"}], "minItems": 1},
        {"anyOf": [{"$ref": "#"}, STRING]},
        {"$defs": {"a": obj({"x": {"anyOf": [LINK, INTEGER]}})}, **LINK},
        {"$defs": {f"n{n}": {"$ref": f"#/$defs/n{n + 1}"} for n in range(400)}
         | {"n400": STRING}, "$ref": "#/$defs/n0"},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#anchor"},
        {"$ref": "https://example.org/schema"},
        {"$ref": 5, "allOf": 5, "required": 5, "properties": 5, "type": "object"},
    ],
)  # fmt: skip
def test_some_value_comes_to_its_end(schema):
    """Recursion with a way out passes, and so does what is wrong in other ways."""
    check_schema(schema, PARAM)
