"""
Random schemas, and random arguments that fit a schema.

`conforming` covers what `schemas` makes and what the catalogue's tools hold; what it
gives is checked with jsonschema, so that a keyword it does not know fails loudly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

Schema = Mapping[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

# No halves of pairs, as JSON text in UTF-8 has none; no private characters, which stand
# for control tokens in tests.
_CHARACTERS = st.characters(exclude_categories=("Cs", "Co"))
TEXT = st.text(_CHARACTERS, max_size=8)
# What writes or ends a call in one family or another: in a string it is text.
_MARKUP = (
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<escape>",
    "<end_function_call>",
    "<tool_call>",
    "</tool_call>",
    "```",
    "```json\n{}\n```",
    "call:x{y:1}",
    '{"name": "x", "arguments": {}}',
)
_AWKWARD = ("", '"', "\\", "\\n", "{", "}}", "[1,", "a:b,c", "null", "3", "\n\n", " x ")
STRINGS = st.one_of(TEXT, TEXT, st.sampled_from(_AWKWARD + _MARKUP))
INTEGERS = st.one_of(st.integers(-9, 99), st.integers(-(2**70), 2**70))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.one_of(INTEGERS, FLOATS)
_ATOMS = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, STRINGS)
ANYTHING = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(TEXT, inner, max_size=2)
    ),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(TEXT, ANYTHING, max_size=2)
_FORMATS = {
    "date": "2026-02-28",
    "date-time": "2026-02-28T23:59:59Z",
    "email": "a.b@example.org",
    "uri": "https://example.org/a?b=c#d",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}
_ENOUGH = 4  # deeper than this only what is required


@st.composite
def conforming(draw: Draw, schema: Schema) -> Any:
    """Draw a value that *schema* allows: the arguments of a call, for a tool's."""
    value = _Filling(draw, schema).value(schema, 0)
    _validator(_Frozen(schema)).validate(value)
    return value


class _Frozen:
    """A schema as a key, by identity: validators are made once for each."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and other.schema is self.schema


@lru_cache(maxsize=512)
def _validator(of: _Frozen) -> Draft202012Validator:
    return Draft202012Validator(of.schema)


class _Filling:
    """Draws what fits the parts of one schema, whose references it follows."""

    def __init__(self, draw: Draw, root: Schema) -> None:
        self._draw = draw
        self._root = root

    def value(self, schema: Schema | bool, depth: int) -> Any:
        """Draw a value for *schema*."""
        if isinstance(schema, bool):
            return self._draw(ANYTHING)
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return self._combined(keyword, schema, depth)
        kind = self._kind(schema)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        return self._atom(kind, schema)

    def _combined(self, keyword: str, schema: Schema, depth: int) -> Any:
        told = schema[keyword]
        match keyword:
            case "$ref":
                return self.value(self._resolved(told), depth)
            case "const":
                return told
            case "enum":
                return self._draw(st.sampled_from(told))
            case "anyOf" | "oneOf":
                rest = {k: v for k, v in schema.items() if k not in ("anyOf", "oneOf")}
                chosen = told[0] if depth > _ENOUGH else self._one_of(told)
                return self._both(rest, chosen, depth)
        rest = {k: v for k, v in schema.items() if k != "allOf"}
        merged = self._both(rest, told[0], depth)
        for part in told[1:]:
            merged = {**merged, **self.value(part, depth)}
        return merged

    def _both(self, rest: Schema, chosen: Schema, depth: int) -> Any:
        """Draw for *chosen* and, where it is about objects, for what stands beside."""
        if "properties" in rest:
            return {**self.value(rest, depth), **self.value(chosen, depth)}
        narrowing = {k: v for k, v in rest.items() if k in ("minimum", "maxLength")}
        return self.value({**narrowing, **chosen}, depth)

    def _one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self._draw(st.integers(0, len(choices) - 1))]

    def _resolved(self, pointer: str) -> Any:
        found: Any = self._root
        for part in pointer.removeprefix("#").split("/")[1:]:
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return found

    def _kind(self, schema: Schema) -> str:
        told = schema.get("type")
        if isinstance(told, list):
            return str(self._one_of(told))
        if told is None:
            return "object" if "properties" in schema else "any"
        return str(told)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        made = {
            name: self.value(part, depth + 1)
            for name, part in properties.items()
            if name in required or (depth <= _ENOUGH and self._draw(st.booleans()))
        }
        more = schema.get("additionalProperties", None if properties else True)
        if more and depth <= _ENOUGH:
            for name in self._draw(st.lists(TEXT, max_size=2)):
                if name not in properties:
                    made[name] = self.value(more, depth + 1)
        return made

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        made = [self.value(part, depth + 1) for part in schema.get("prefixItems", ())]
        items = schema.get("items", True)
        if items is False:
            return made
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", 99), least + (2 if depth <= _ENOUGH else 0))
        while len(made) < most and (len(made) < least or self._draw(st.booleans())):
            new = self.value(items, depth + 1)
            if not (schema.get("uniqueItems") and new in made):
                made.append(new)
            elif len(made) >= least:
                break
        return made

    def _atom(self, kind: str, schema: Schema) -> Any:
        match kind:
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(kind, schema)
            case "boolean":
                return self._draw(st.booleans())
            case "null":
                return None
            case "any":
                return self._draw(ANYTHING)
        raise NotImplementedError(f"type {kind!r}")

    def _string(self, schema: Schema) -> str:
        if "pattern" in schema:
            return str(self._draw(_matching(schema["pattern"])))
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        text = str(self._draw(STRINGS))
        text += "x" * (least - len(text))
        return text if most is None else text[:most]

    def _number(self, kind: str, schema: Schema) -> int | float:
        whole = kind == "integer"
        lows = [schema[k] for k in ("minimum", "exclusiveMinimum") if k in schema]
        highs = [schema[k] for k in ("maximum", "exclusiveMaximum") if k in schema]
        low, high = max(lows, default=None), min(highs, default=None)
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if step := schema.get("multipleOf"):
            first = math.ceil((low or 0) / step)
            return step * int(self._draw(st.integers(first, first + 99)))
        if low is None and high is None:
            return self._draw(INTEGERS if whole else NUMBERS)
        if whole:
            low = low if low is None else low + (low == above)
            high = high if high is None else high - (high == below)
            return int(self._draw(_between(low, high)))
        return float(self._draw(_floats(low, high, low == above, high == below)))


@cache
def _matching(pattern: str) -> st.SearchStrategy[str]:
    whole = pattern.startswith("^") and pattern.endswith("$")
    text = pattern[1:-1] if whole else pattern
    return st.from_regex(re.compile(text, re.ASCII), fullmatch=whole)


@cache
def _between(low: int | None, high: int | None) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@cache
def _floats(
    low: float | None, high: float | None, above: bool, below: bool
) -> st.SearchStrategy[float]:
    return st.floats(
        low,
        high,
        exclude_min=low is not None and above,
        exclude_max=high is not None and below,
        allow_nan=False,
        allow_infinity=False,
    )


# --- schemas ------------------------------------------------------------------------

_NAMES = st.one_of(
    st.sampled_from(
        (
            "path",
            "n",
            "file-path",
            "a.b",
            "größe",
            "日本",
            "type",
            "properties",
            "items",
        )
    ),
    st.text("abcXYZ_09", min_size=1, max_size=6),
)
TOOL_NAMES = st.one_of(
    st.sampled_from(("run", "read-file", "fs_read", "mcp__fs__list", "math.add")),
    st.from_regex(re.compile("[a-zA-Z][a-zA-Z0-9_-]{0,11}"), fullmatch=True),
)
_ENUMS: tuple[tuple[Any, ...], ...] = (
    ("a", "b c", "ü"),
    (1, 2.5, -3),
    (True, None, "x"),
    ("",),
    (0, "0"),
)
_ATOMIC: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"type": ["integer", "string"]},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "integer", "minimum": -3, "maximum": 300},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "string", "pattern": "^[a-z]{1,4}-\\d+$"},
    {"type": "string", "format": "date"},
    {"const": "fixed"},
    {"$ref": "#/$defs/shared"},
    {},
)


@st.composite
def schemas(draw: Draw) -> dict[str, Any]:
    """Draw the schema of a tool's arguments: an object, three levels deep at most."""
    root = _Making(draw).object(0)
    root["$defs"] = {
        "shared": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "tag": {"type": "string"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    }
    return root


class _Making:
    """Draws the parts of one schema."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def object(self, depth: int) -> dict[str, Any]:
        """Draw an object's schema."""
        few = st.lists(_NAMES, min_size=not depth, max_size=4 - depth, unique=True)
        names = self._draw(few)
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._part(depth + 1) for name in names},
            "required": [name for name in names if self._draw(st.booleans())],
        }
        if self._draw(st.booleans()):
            made["additionalProperties"] = False
        return made

    def _part(self, depth: int) -> dict[str, Any]:
        last = 5 if depth < 3 else 1
        match self._draw(st.integers(-2, last)):
            case -2 | -1 | 0:
                return dict(self._draw(st.sampled_from(_ATOMIC)))
            case 1:
                return {"enum": list(self._draw(st.sampled_from(_ENUMS)))}
            case 2:
                return self.object(depth)
            case 3:
                return {"type": "array", "items": self._part(depth + 1)}
            case 4:
                two = [self._part(depth + 1), self._part(depth + 1)]
                return {"anyOf": two}
        return {"type": "object", "additionalProperties": self._part(depth + 1)}
