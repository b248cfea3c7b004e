"""Names resolved, arguments mended, and what may go out in the end."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofa.chat import Tool, ToolCall
from ofa.toolcalls.base import Found
from ofa.toolcalls.check import fits, problems
from ofa.toolcalls.mend import mend
from ofa.toolcalls.repair import Refused, Settled, new_call_id, resolve_name, settle

from .strategies import ANYTHING, conforming, schemas

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
READ_NOTE = Tool(
    "read_note",
    "Read one note",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    },
)


def tools(*names):
    """Return tools of these names."""
    return [Tool(name) for name in names]


@pytest.mark.parametrize(
    ("name", "offered", "meant"),
    [
        ("read", ["read"], ("read", False)),
        ("a.read", ["a.read", "read"], ("a.read", False)),
        ("functions.read", ["read", "write"], ("read", True)),
        ("google:mcp:read", ["read"], ("read", True)),
        ("mcp__notes__read", ["notes__read"], ("notes__read", True)),
        ("tools/read", ["read"], ("read", True)),
        ("ReadNote", ["read_note"], ("read_note", True)),
        ("read-note", ["read_note"], ("read_note", True)),
        ("api:ReadNote", ["read_note", "note"], ("read_note", True)),
        ("x:read_note", ["read_note", "readNote"], ("read_note", True)),
        ("read", ["read", "read"], ("read", False)),
        ("READ", ["read", "Read"], None),
        ("a__b__c", ["b__c", "c"], None),
        ("readnotes", ["read_note"], None),
        ("read", ["mcp__read"], None),
        ("note", ["read_note"], None),
        ("read:", ["read"], None),
        ("", ["read"], None),
        ("read", [], None),
    ],
)
def test_a_name_is_resolved_where_it_can_mean_one_tool_only(name, offered, meant):
    """A name is never guessed: two candidates, or a near miss, are none."""
    assert resolve_name(name, tools(*offered)) == meant


@given(st.text("ab_-:.A", max_size=6), st.lists(st.text("ab_-A", min_size=1)))
@FEW
def test_a_resolved_name_is_an_offered_one(name, offered):
    """Nothing but the request's own names comes out."""
    meant = resolve_name(name, tools(*offered))

    assert meant is None or meant[0] in offered
    assert (meant == (name, False)) == (name in offered)


def of_value(value, schema):
    """Return *value* mended as the argument ``p``, and the repairs."""
    arguments, repairs = mend({"p": value}, {"properties": {"p": schema}})
    return arguments.get("p", "left out"), repairs


STRINGS = {"type": "array", "items": {"type": "string"}}
INTEGERS = {"type": "array", "items": {"type": "integer"}}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "isFar": {"type": "boolean"}},
    "required": ["x", "isFar"],
}


@pytest.mark.parametrize(
    ("value", "schema", "mended", "repairs"),
    [
        ("3", {"type": "integer"}, 3, ["type"]),
        (" -12 ", {"type": "integer"}, -12, ["type"]),
        ("2.50", {"type": "number"}, 2.5, ["type"]),
        ("3", {"type": ["integer", "null"]}, 3, ["type"]),
        ("True", {"type": "boolean"}, True, ["type"]),
        ("null", {"type": ["integer", "null"]}, None, ["type"]),
        (3, {"type": "string"}, "3", ["type"]),
        (10**30, {"type": "string"}, str(10**30), ["type"]),
        (False, {"type": "string"}, "false", ["type"]),
        ("2", {"enum": [1, 2]}, 2, ["type"]),
        (1, {"enum": ["1", "2"]}, "1", ["type"]),
        ("FAST", {"enum": ["fast", "slow"]}, "fast", ["enum"]),
        (True, {"enum": ["True", "False"]}, "True", ["type", "enum"]),
        ("a", STRINGS, ["a"], ["list"]),
        ("3", INTEGERS, [3], ["list", "type"]),
        ('["a", "b"]', STRINGS, ["a", "b"], ["encoded"]),
        ("['1',]", INTEGERS, [1], ["encoded", "quotes", "comma", "type"]),
        (["1", 2], INTEGERS, [1, 2], ["type"]),
        ('{"x": "1", "is_far": "true"}', POINT, {"x": 1, "isFar": True},
         ["encoded", "type", "key"]),
        ({"X": 1, "isfar": True}, POINT, {"x": 1, "isFar": True}, ["key"]),
        (POINT, {"type": "array", "items": {"type": "object"}}, [POINT], ["list"]),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "object"}]}, 3, ["type"]),
        ([{"x": "1", "isFar": True}], {"items": {"allOf": [POINT, {"minItems": 1}]}},
         [{"x": 1, "isFar": True}], ["type"]),
        ({"p": "1"}, {"allOf": [{"minProperties": 1}, {"minProperties": 0},
         {"properties": {"p": {"type": "integer"}}}]}, {"p": 1}, ["type"]),
        ({"a": "1"}, {"additionalProperties": {"type": "integer"}}, {"a": 1}, ["type"]),
        (["x", "1"], {"type": "array", "prefixItems": [{"type": "string"},
         {"type": "integer"}]}, ["x", 1], ["type"]),
        (None, {"type": "string"}, "left out", ["null"]),
    ],
)  # fmt: skip
def test_what_fits_in_one_reading_only_is_mended(value, schema, mended, repairs):
    """A value gets the type its schema wants if there is no second way to read it."""
    got, told = of_value(value, schema)

    assert (json.dumps(got), sorted(told)) == (json.dumps(mended), sorted(repairs))


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("3", {"type": "string"}),
        ("3", {"type": ["string", "integer"]}),
        ("3", {}),
        ("3", {"anyOf": [{"type": "integer"}, INTEGERS]}),
        ("3.0", {"type": "integer", "minimum": 5}),
        ("3", {"type": "integer", "minimum": 5}),
        ("1,2", INTEGERS),
        ("1e999", {"type": "number"}),
        ("yes", {"type": "boolean"}),
        (1, {"type": "boolean"}),
        (3.1, {"type": "string"}),
        (["a"], {"type": "string"}),
        ({"a": 1}, {"type": "string"}),
        ("not json", {"type": "object"}),
        ('{"x": 1', POINT),
        ([None], {"type": "array", "items": STRINGS}),
        ("fas", {"enum": ["fast", "slow"]}),
        ("FAST", {"enum": ["fast", "Fast"]}),
        ({"x": 1, "is_far": True, "IsFar": True}, POINT),
        ({"x": 1, "isFar": True, "other": 1}, POINT | {"additionalProperties": False}),
    ],
)
def test_what_has_no_reading_or_two_stays_as_it_is(value, schema):
    """Nothing is guessed and nothing the model said is dropped."""
    got, _ = of_value(value, schema)

    assert got == value


def test_a_required_null_stays():
    """A key that has to be there is not left out; the check then says why not."""
    schema = {"properties": {"p": {"type": "string"}}, "required": ["p"]}

    assert mend({"p": None}, schema) == ({"p": None}, ())


def test_an_open_object_keeps_its_own_keys():
    """Another spelling of an optional key fits where any key does."""
    schema = {
        "properties": {"filePath": {"type": "string"}, "n": {"type": "integer"}},
    }

    assert mend({"file_path": "a", "n": "1"}, schema) == (
        {"file_path": "a", "n": 1},
        ("type",),
    )


@given(st.data())
@FEW
def test_what_fits_is_left_alone(data):
    """Arguments that conform are never touched."""
    schema = data.draw(schemas())
    arguments = data.draw(conforming(schema))

    assert mend(arguments, schema) == (arguments, ())


@given(st.data())
@FEW
def test_mending_twice_is_mending_once(data):
    """Whatever comes in: no error, no change to it, and no second step."""
    schema = data.draw(schemas())
    names = [*schema["properties"], "x"]
    arguments = data.draw(st.dictionaries(st.sampled_from(names), ANYTHING))
    before = json.dumps(arguments)

    mended, repairs = mend(arguments, schema)

    assert json.dumps(arguments) == before
    assert len(set(repairs)) == len(repairs)
    assert mend(mended, schema)[0] == mended
    if fits(arguments, schema):
        assert repairs == ()


@given(st.data())
@FEW
def test_arguments_in_quotes_come_back(data):
    """What a model put in quotes by mistake is read as what it was, or refused."""
    schema = {
        "properties": {
            "n": {"type": "integer"},
            "b": {"type": "boolean"},
            "o": data.draw(schemas()),
        },
        "required": ["n", "b", "o"],
    }
    meant = {
        "n": data.draw(st.integers(-(10**20), 10**20)),
        "b": data.draw(st.booleans()),
        "o": data.draw(conforming(schema["properties"]["o"])),
    }
    quoted = {name: json.dumps(value) for name, value in meant.items()}

    assert mend(quoted, schema) == (meant, ("type", "encoded"))


def test_R023_invented_namespaces():
    """`google:mcp:read_note` is the one tool that ends so; a stranger is refused."""
    found = Found("google:mcp:read_note", {"path": "a, b.txt"}, ("quotes",))

    settled = settle(found, [READ_NOTE], lambda: "call_1")
    refused = settle(Found("google:mcp:write_note", {}), [READ_NOTE])

    call = ToolCall("call_1", "read_note", {"path": "a, b.txt"})
    assert settled == Settled(call, ("quotes", "name"))
    assert refused == Refused(
        "there is no tool 'google:mcp:write_note'; the tools are: read_note"
    )


def test_a_call_that_fits_is_not_touched():
    """The very arguments go out, and no repair is claimed."""
    arguments = {"path": "x", "more": None}

    settled = settle(Found("read_note", arguments), [READ_NOTE])

    assert settled.call.arguments is arguments
    assert settled.repairs == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "read_note: 'path' is missing"),
        ({"path": ["secret"]}, "read_note: path: must be string, not array"),
        ({"path": "\ud800"}, "read_note: a string holds half a character"),
        ({"path": "a", "n": float("nan")}, "read_note: the arguments hold what JSON"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_reason(arguments, why):
    """What can't go out says so in the schema's words, not in the arguments'."""
    refused = settle(Found("read_note", arguments), [READ_NOTE])

    assert isinstance(refused, Refused)
    assert refused.why.startswith(why)


def test_a_refusal_stays_short():
    """Neither a long name nor many tools make a long message."""
    many = tools(*(f"a_tool_with_a_long_name_{n}" for n in range(256)))

    refused = settle(Found("x" * 5000, {}), many)

    assert len(refused.why) < 800


@given(st.data())
@FEW
def test_what_is_settled_always_fits(data):
    """No call goes out under a foreign name or with arguments that do not fit."""
    schema = data.draw(schemas())
    tool = Tool("a_tool", "", schema)
    names = [*schema["properties"], "x"]
    value = st.one_of(ANYTHING, ANYTHING.map(json.dumps))
    arguments = data.draw(st.dictionaries(st.sampled_from(names), value))
    name = data.draw(st.sampled_from(["a_tool", "x:a_tool", "ATool", "b_tool"]))

    settled = settle(Found(name, arguments), [tool, Tool("c_tool")])

    if isinstance(settled, Settled):
        assert settled.call.name == "a_tool"
        assert problems(settled.call.arguments, schema) == ()
    else:
        assert settled.why.startswith(("a_tool: ", "there is no tool 'b_tool'"))


def test_ids_are_unique():
    """No two calls of any conversation share an id."""
    ids = {new_call_id() for _ in range(1000)}

    assert len(ids) == 1000
    assert all(re.fullmatch("call_[0-9a-f]{24}", one) for one in ids)
