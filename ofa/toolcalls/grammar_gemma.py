"""
JSON Schemas as grammars of values in Gemma's own syntax.

`{key:value,...}` with bare keys in alphabetical order, strings verbatim between quote
tokens, numbers and words as in JSON, no blanks. What can't be said in rules is left to
the check afterwards and named in `Translator.left`; a translation never allows what
the keywords it does read forbid, and never fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .grammar_merge import SAID, Impossible, Merger, Schema, find
from .grammar_regex import searched
from .schema import types_of

_MOST_PARTS = 3000  # of a schema; options beside options multiply
_DEEPEST = 40
_MOST_ITEMS = 64  # an array's bounds beyond are left to the check
_MOST_CHARS = 2000  # a string's likewise
_MOST_VALUES = 1000  # of an enum
_KEY = re.compile(r"[\w$.-]+")
_FREE_KEY = r"[A-Za-z_$][A-Za-z0-9_$.-]{0,63}"
_UNHELD = frozenset(
    ("not", "if", "dependentSchemas", "dependentRequired", "dependencies", "format")
    + ("uniqueItems", "contains", "propertyNames", "patternProperties", "$dynamicRef")
    + ("unevaluatedProperties", "unevaluatedItems")
)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_BY_KEY = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": BOUNDS,
}


@dataclass(frozen=True)
class Quoted:
    """A syntax with a token around strings."""

    mark: str


class Translator:
    """
    Makes rules of one tool's schema, named after *prefix*; *quote* is the token.

    The rules refer to those of `common`, which stand once in a grammar.
    """

    def __init__(self, quote: str, prefix: str) -> None:
        self._quote = quote
        self._prefix = prefix
        self._made: dict[str, str] = {}
        self._depth = 0
        self._parts = 0
        self._patterns = True
        self._root: Schema = {}
        self._referred_to: dict[str, str] = {}
        self.lines: list[str] = []
        self.left: set[str] = set()
        self._merger = Merger(self.left)

    def common(self) -> list[str]:
        """Return the rules that all translations share."""
        return [
            "any: any_string | NUMBER | any_word | any_array | any_object",
            f"any_string: {self._quote} ANY_TEXT {self._quote}",
            'any_word: "true" | "false" | "null"',
            'any_array: "[" (any ("," any)*)? "]"',
            'any_object: "{" (any_pair ("," any_pair)*)? "}"',
            "any_pair: ANY_KEY any",
            f"ANY_KEY: /{_FREE_KEY}:/",
            "ANY_TEXT: /(?s:.*)/",
            # Bounded, as a weak model may write digits for ever.
            "INTEGER: /-?(0|[1-9][0-9]{0,17})/",
            "NUMBER: /-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/",
        ]

    def arguments(self, schema: Schema, *, patterns: bool = True) -> str:
        """Return an expression for the arguments that fit *schema*."""
        self._patterns, self._root = patterns, schema
        try:
            return self._rule(
                self._one(self._merger.flat({**schema, "type": "object"}))
            )
        except Impossible:
            self.left.add("schema")
            return "any_object"

    # -- any value -----------------------------------------------------------------

    def _value(self, schema: object) -> str:
        """Return the name of a rule for what fits *schema*."""
        if schema is False:
            raise Impossible
        if not isinstance(schema, Mapping) or not schema:
            return "any"
        if self._depth >= _DEEPEST or self._parts >= _MOST_PARTS:
            self.left.add("schema")
            return "any"
        self._depth += 1
        self._parts += 1
        try:
            return self._rule(self._one(self._merger.flat(schema)))
        finally:
            self._depth -= 1

    def _one(self, schema: Schema) -> str:
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema)
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list) and options:
                return self._options(schema, key, options)
        if "const" in schema:
            return self._literals([schema["const"]], schema)
        if isinstance(schema.get("enum"), list):
            return self._literals(schema["enum"], schema)
        types = self._types(schema)
        if not types:
            self.left.update(_UNHELD & schema.keys())
            return "any"
        return self._either(types, lambda kind: self._by_type(kind, schema))

    def _referred(self, schema: Schema) -> str:
        """Return the rule of a definition, which may come in itself again."""
        base = {
            key: value for key, value in schema.items() if key not in ("$ref", *SAID)
        }
        ref = schema["$ref"]
        target = find(self._root, ref)
        if target is None:
            self.left.add("$ref")
            return "any"
        if base:
            return self._value(self._merger.merged([target, base]))
        if ref not in self._referred_to:
            name = f"{self._prefix}_ref{len(self._referred_to)}"
            self._referred_to[ref] = name
            try:
                body = self._value(target)
            except Impossible:  # it may be named in other rules by now
                self.left.add("$ref")
                body = "any"
            self.lines.append(f"{name}: {body}")
        return self._referred_to[ref]

    def _options(self, schema: Schema, key: str, options: Sequence[Any]) -> str:
        base = {name: value for name, value in schema.items() if name != key}
        merged = self._merger.merged
        return self._either(options, lambda one: self._value(merged([base, one])))

    def _either(self, options: Sequence[Any], make: Callable[[Any], str]) -> str:
        """Return what any of *options* allows; no rule is made of what can't be."""
        found = []
        for option in options:
            try:
                found.append(make(option))
            except Impossible:
                continue
        if not found:
            raise Impossible
        return " | ".join(dict.fromkeys(found))

    def _by_type(self, kind: str, schema: Schema) -> str:
        self.left.update(_UNHELD & schema.keys())
        match kind:
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(kind, schema)
            case "boolean":
                return '("true" | "false")'
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
        return '"null"'

    def _types(self, schema: Schema) -> list[str]:
        """Return the types that *schema* tells or means; none for any."""
        found = list(types_of(schema))
        if "number" in found and "integer" in found:
            found.remove("integer")
        if found or "type" in schema:
            return found
        return [
            kind for kind, keys in _BY_KEY.items() if any(key in schema for key in keys)
        ]

    # -- values of one type --------------------------------------------------------

    def _literals(self, values: Sequence[Any], schema: Schema) -> str:
        kinds = self._types(schema) if "type" in schema else []
        fitting = [value for value in values if not kinds or _is_of(value, kinds)]
        if schema.get("nullable") is True and None not in fitting:
            fitting.append(None)
        if not fitting:
            raise Impossible
        if len(fitting) > _MOST_VALUES:
            self.left.add("enum")
            return "any"
        return self._either(fitting, self._literal)

    def _literal(self, value: Any) -> str:  # noqa: ANN401 - JSON
        """Return the one way to write *value*."""
        if isinstance(value, str):
            return self._rule(f"{self._quote} {json.dumps(value)} {self._quote}")
        if isinstance(value, list):
            items = ' "," '.join(self._literal(item) for item in value)
            return self._rule(f'"[" {items} "]"')
        if isinstance(value, Mapping):
            pairs = ' "," '.join(
                f"{self._key(key)} {self._literal(value[key])}"
                for key in sorted(value, key=_order)
            )
            return self._rule(f'"{{" {pairs} "}}"')
        return json.dumps(json.dumps(value))

    def _string(self, schema: Schema) -> str:
        least, most = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        if most is not None and most < least:
            raise Impossible
        parts = []
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            made = searched(pattern) if self._patterns else None
            if made is None:
                self.left.add("pattern")
            else:
                parts.append(f"/{made}/")
        if max(least, most or 0) > _MOST_CHARS:
            self.left.add("maxLength" if least <= _MOST_CHARS else "minLength")
            most, least = None, min(least, 1)
        if least or most is not None:
            bound = "" if most is None else str(most)
            parts.append(f"/(?s:.{{{least},{bound}}})/")
        content = self._terminal(" & ".join(parts)) if parts else "ANY_TEXT"
        return self._rule(f"{self._quote} {content} {self._quote}")

    def _number(self, kind: str, schema: Schema) -> str:
        bounds = {key: schema[key] for key in BOUNDS if key in schema}
        if not bounds:
            return "INTEGER" if kind == "integer" else "NUMBER"
        if not self._patterns or not all(map(_is_exact, bounds.values())):
            self.left.update(bounds)
            return "INTEGER" if kind == "integer" else "NUMBER"
        return self._rule("%json " + json.dumps({"type": kind, **bounds}))

    def _array(self, schema: Schema) -> str:
        first = schema.get("prefixItems")
        heads = [self._value(item) for item in first] if isinstance(first, list) else []
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if least > _MOST_ITEMS or len(heads) > _MOST_ITEMS:
            self.left.add("minItems")
            least, heads = 1, []
        if most is not None and most > _MOST_ITEMS:
            self.left.add("maxItems")
            most = None
        item = ""
        try:
            item = self._value(schema.get("items", not heads or not first))
        except Impossible:
            most = len(heads) if most is None else min(most, len(heads))
        if most is not None and most < least:
            raise Impossible
        return self._rule(f'"[" {self._items(heads, item, least, most)} "]"')

    def _items(self, heads: list[str], item: str, least: int, most: int | None) -> str:
        """Return *heads* and then *item* again and again, *least* to *most* in all."""
        if most == 0:
            return ""
        heads = heads if most is None else heads[:most]
        one, *others = heads or [item]
        rest = f'("," {item})' if item else ""
        need = max(least - 1 - len(others), 0)
        room = "" if most is None else str(most - 1 - len(others))
        tail = f"{rest}{{{need},{room}}}" if rest and room != "0" else ""
        for at in range(len(others), 0, -1):
            step = f'"," {others[at - 1]} {tail}'
            tail = step if at < least else f"({step})?"
        return f"{one} {tail}" if least else f"({one} {tail})?"

    def _object(self, schema: Schema) -> str:
        named, required, more = _members(schema)
        pairs = []
        for name in sorted(named, key=_order):
            try:
                pair = f"{self._key(name)} {self._value(named[name])}"
            except Impossible:
                if name in required:
                    raise
                continue
            pairs.append((pair, name in required))
        if "minProperties" in schema or "maxProperties" in schema:
            self.left.add("minProperties")
        extra = self._extra(named, more) if more is not False else ""
        return self._rule(f'"{{" {self._pairs(pairs, extra)} "}}"')

    def _key(self, name: str) -> str:
        if _KEY.fullmatch(name):
            return json.dumps(f"{name}:")
        return f'{self._literal(name)} ":"'

    def _extra(self, named: Schema, more: object) -> str:
        """Return a pair whose key is none of *named*."""
        try:
            value = self._value(more)
        except Impossible:
            return ""
        key = "ANY_KEY"
        if named:
            taken = "|".join(re.escape(name).replace("/", "\\/") for name in named)
            key = self._terminal(f"/{_FREE_KEY}:/ & ~/({taken}):/")
        return self._rule(f"{key} {value}")

    def _pairs(self, pairs: Sequence[tuple[str, bool]], extra: str) -> str:
        """Return *pairs* in their order, those left out that need not be there."""
        rest = f'("," {extra})*' if extra else ""
        firsts = [f"{extra} {rest}"] if extra else []
        is_needed = False
        for pair, needed in reversed(pairs):
            here = f"{pair} {rest}"
            firsts = [here] if needed else [here, *firsts]
            is_needed = is_needed or needed
            further = f'"," {pair} {rest}'
            rest = self._rule(further if needed else f'("," {pair})? {rest}')
        if not firsts:
            return ""
        found = f"({' | '.join(firsts)})"
        return found if is_needed else found + "?"

    # -- rules ---------------------------------------------------------------------

    def _rule(self, body: str) -> str:
        """Return the name of the rule that is *body*, the same one for the same."""
        if re.fullmatch(r"\w+", body):
            return body
        if body not in self._made:
            self._made[body] = f"{self._prefix}_{len(self._made)}"
            self.lines.append(f"{self._made[body]}: {body}")
        return self._made[body]

    def _terminal(self, body: str) -> str:
        if body not in self._made:
            self._made[body] = f"{self._prefix}_{len(self._made)}".upper()
            self.lines.append(f"{self._made[body]}: {body}")
        return self._made[body]


def _members(schema: Schema) -> tuple[dict[str, Any], set[str], object]:
    """Return an object's named properties, the required ones, and what others are."""
    told, needed = schema.get("properties"), schema.get("required")
    named = dict(told) if isinstance(told, Mapping) else {}
    required = {name for name in needed if isinstance(name, str)} if needed else set()
    more = schema.get("additionalProperties")
    for name in required - named.keys():
        named[name] = True if more is None else more
    if more is None:
        more = not named  # nothing is made up beside what is told
    return named, required, more


def _order(name: str) -> tuple[str, str]:
    return name.lower(), name


def _is_of(value: Any, kinds: Sequence[str]) -> bool:  # noqa: ANN401 - JSON
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, int | float):
        return "number" in kinds or ("integer" in kinds and value == int(value))
    of = {str: "string", list: "array", dict: "object", type(None): "null"}
    return of.get(type(value)) in kinds


def _is_exact(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= 2**53
    )


def _count(schema: Schema, key: str) -> int | None:
    value = schema.get(key)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None
