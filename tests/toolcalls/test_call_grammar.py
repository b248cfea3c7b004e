"""The rules that calls are held to, as text: what is in them and what is left out."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.chat import Tool
from ofa.toolcalls.grammar import SYNTAXES, Hold, call_rules, tightened
from ofa.toolcalls.grammar_gemma import Translator
from ofa.toolcalls.grammar_regex import searched


def token(spelled):
    """Return how a rule names a control token, as in an engine."""
    return f"<[{len(spelled)}]>"


def rules_of(schema, format_name="gemma4", **how):
    """Return the rules of one tool's calls."""
    tools = [Tool("one", "", schema, strict=how.pop("strict", False))]
    return call_rules(format_name, tools, token, **how)


def translated(schema):
    """Return (the rules of arguments that fit *schema* as a table, what is left)."""
    translator = Translator("Q", "t")
    start = translator.arguments(schema)
    table = dict(line.split(": ", 1) for line in translator.lines)
    return start, table, translator.left


def written(schema, depth=12):
    """Return texts that the rules of *schema* allow, blanks as in the rules."""
    start, table, _ = translated(schema)
    text = start
    for _ in range(depth):
        text = re.sub(r"t_\d+", lambda found: f"({table[found[0]]})", text)
    return text


def matches(schema, text):
    """Return whether the rules of *schema* allow *text*, digits for integers."""
    rules = written(schema).replace("INTEGER", "[0-9]+")
    pattern = re.sub(
        r'"((?:[^"\\]|\\.)*)"',
        lambda found: re.escape(json.loads(found[0])).replace(" ", "_"),
        rules,
    )
    return re.fullmatch(pattern.replace(" ", ""), text) is not None


I = {"type": "integer"}  # noqa: E741 - short, as tables are made of it
NAMED = {"b": I, "A": I, "c": I}


@pytest.mark.parametrize(
    ("required", "right", "wrong"),
    [
        (
            [],
            ["{}", "{A:1}", "{b:1}", "{c:1}", "{A:1,b:2}", "{A:1,c:2}", "{b:1,c:2}"],
            ["{,A:1}", "{A:1,}", "{b:1,A:1}", "{A:1b:1}", "{A:1,A:1}", "{d:1}"],
        ),
        (
            ["b"],
            ["{b:1}", "{A:1,b:1}", "{b:1,c:1}", "{A:1,b:1,c:1}"],
            ["{}", "{A:1}", "{c:1}", "{A:1,c:1}", "{,b:1}"],
        ),
        (["A", "b", "c"], ["{A:1,b:1,c:1}"], ["{A:1,b:1}", "{b:1,c:1}", "{A:1,b:1,}"]),
    ],
)
def test_commas_and_order(required, right, wrong):
    """Bare keys in alphabetical order, whatever is left out, and commas between."""
    schema = {"type": "object", "properties": NAMED, "required": required}

    assert [text for text in right if not matches(schema, text)] == []
    assert [text for text in wrong if matches(schema, text)] == []


@pytest.mark.parametrize(
    ("bounds", "right"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"minItems": 1}, [1, 2, 3, 4, 5]),
        ({"maxItems": 2}, [0, 1, 2]),
        ({"minItems": 2, "maxItems": 3}, [2, 3]),
        ({"maxItems": 0}, [0]),
        ({"prefixItems": [I, I], "minItems": 1}, [1, 2, 3, 4, 5]),
        ({"prefixItems": [I, I, I], "items": False}, [0, 1, 2, 3]),
        ({"prefixItems": [I, I, I], "items": False, "minItems": 2}, [2, 3]),
        ({"prefixItems": [I], "minItems": 3, "maxItems": 4}, [3, 4]),
    ],
)
def test_how_many_items(bounds, right):
    """As many as the bounds say, tuples included."""
    item = {"type": "array", "items": I, **bounds}
    schema = {"type": "object", "properties": {"a": item}, "required": ["a"]}

    texts = {count: "{a:[" + ",".join("1" * count) + "]}" for count in range(6)}

    assert [count for count, text in texts.items() if matches(schema, text)] == right


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"properties": {"a": {"type": "string", "format": "date"}}}, {"format"}),
        ({"properties": {"a": {"not": {}}}}, {"not"}),
        ({"properties": {"a": {"type": "array", "contains": I}}}, {"contains"}),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, {"pattern"}),
        ({"properties": {"a": {"$ref": "https://example.org"}}}, {"$ref"}),
        ({"properties": {"a": False}, "required": ["a"]}, {"schema"}),
        ({"allOf": [{"properties": {"a": I}, "additionalProperties": False},
                    {"properties": {"b": I}}]}, {"additionalProperties"}),
        ({"properties": {"a": {"type": "string", "maxLength": 9}}}, set()),
    ],
)  # fmt: skip
def test_what_is_left_to_the_check_is_named(schema, left):
    """Each keyword that the rules do not hold; nothing fails for one."""
    assert translated({"type": "object", **schema})[2] == left


def test_definitions_become_rules():
    """A tree is as deep as the model wants, and its rules are few."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}, "v": I}}
    schema = {"$defs": {"n": node}, "type": "object", "properties": {"n": node}}

    _, table, left = translated(schema)

    assert left == set()
    assert len(table) < 12


def test_a_large_schema_is_bounded():
    """Options beside options multiply: beyond a bound any value may stand there."""
    options = [{"type": "object", "properties": {f"p{n}": I}} for n in range(9)]
    schema = {"type": "object", "properties": {}}
    for name in ("a", "b", "c", "d", "e", "f"):
        part = {"anyOf": options, "allOf": [{"oneOf": options}]}
        schema["properties"][name] = {"properties": {name: part}, **part}

    _, table, left = translated(schema)

    assert "schema" in left
    assert len(table) < 10_000


def test_nesting_is_bounded():
    """A schema deeper than anyone's is any value from there on."""
    schema = I
    for _ in range(300):
        schema = {"type": "object", "properties": {"a": schema}}

    assert translated(schema)[2] == {"schema"}


@pytest.mark.parametrize("name", SYNTAXES)
def test_each_family_has_rules(name):
    """An opener, a close, a body for each tool, and where its arguments start."""
    made = rules_of({"type": "object", "properties": {"a": I}}, name)

    assert set(made.starts) == {"one"}
    assert made.starts["one"].endswith("{")
    names = [line.split(":")[0] for line in made.lark.splitlines()]
    assert names[:5] == ["calls", "behind", "again", "call", "body"]
    assert bool(made.schemas) == (name in ("hermes", "generic"))
    assert made.left == {"one": ()}


def test_one_call_where_no_more_are_wanted():
    """Without parallel calls nothing follows the first."""
    assert "again call" in rules_of({}).lark
    assert "again call" not in rules_of({}, parallel=False).lark


def test_json_is_spaced_as_in_training():
    """What Python's json writes, and no blanks beside."""
    (schema,) = rules_of({}, "hermes").schemas.values()

    guide = schema["x-guidance"]
    assert (guide["item_separator"], guide["key_separator"]) == (", ", ": ")
    assert guide["whitespace_flexible"] is False


@pytest.mark.parametrize("name", ["gemma4", "hermes"])
def test_fractions_have_exponents_but_for_strict_tools(name):
    """Within bounds no exponent can be written, and 1e-9 must not become 1."""
    schema = {"type": "object", "properties": {"x": {"type": "number", "minimum": 0}}}

    assert rules_of(schema, name).left == {"one": ("minimum",)}
    assert rules_of(schema, name, strict=True).left == {"one": ()}


@pytest.mark.parametrize("name", ["gemma4", "hermes"])
def test_less_is_held_where_all_was_refused(name):
    """Most of it, or only the name."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^a$"}},
    }

    for hold in (Hold.MOST, Hold.NAME):
        assert rules_of(schema, name, holds={"one": hold}).left["one"]
    assert rules_of(schema, name).left == {"one": ()}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({}, True),
        ({"properties": {}}, True),
        ({"properties": {"a": I}}, True),
        ({"properties": {"a": I}, "required": ["b"]}, None),
        ({"properties": {"a": I}, "additionalProperties": True}, True),
        ({"patternProperties": {"a": I}}, None),
        ({"properties": {"a": I}, "anyOf": [{"required": ["a"]}]}, None),
        ({"allOf": [{"properties": {"a": I}}]}, None),
        ({"$ref": "#/$defs/a"}, None),
    ],
)
def test_what_is_told_is_all_there_is(schema, closed):
    """No property is made up, unless the schema may mean others."""
    said = {"additionalProperties": True} if "additionalProperties" in schema else {}
    wanted = said or ({"additionalProperties": False} if closed else {})

    made = tightened(schema)

    assert made["type"] == "object"
    assert {k: v for k, v in made.items() if k == "additionalProperties"} == wanted


PATTERNS = [
    "a", "^a", "a$", "^a$", "^[a-z]+$", r"^\d{2}-\d{2}$", "^(a|b)c?$", "^(?:ab)*$",
    r"^\w+\.\w{1,3}$", "^[^,]*$", r"\$x", "^a.c$", r"^[\w.-]+@[\w-]+$", r"^\S+$",
    "a/b", r"^\/", "^[^\\s]+$", r"^\{a\}$", "a|b", '"', "^\\\\$", r"^[\]a]$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(alphabet='abc01 ,.-@/$"\\{}]\n\u00e9\u2028\u0661\x1c', max_size=6))
def test_a_pattern_allows_no_more_than_it_says(pattern, text):
    """What the whole of a string matches in rules is found in it by Python too."""
    made = searched(pattern)

    assert made is not None
    rust = re.sub(r"\\x\{([0-9a-f]+)\}", lambda m: re.escape(chr(int(m[1], 16))), made)
    rust = rust.replace(r"\p{Nd}", r"\d")
    if re.fullmatch(rust, text):
        assert re.search(pattern, text)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)b", r"(a)\1", r"\bword", "^a|b$", "a^b", "(", "[]", "[^]", "a{,2}", "[a--b]",
     r"\u0041", "a" * 501, r"[\D]", r"\p{L}"],
)  # fmt: skip
def test_patterns_that_may_mean_two_things_are_left(pattern):
    """They are checked afterwards, by who knows JavaScript's rules."""
    assert searched(pattern) is None
