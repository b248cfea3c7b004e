"""
Writing the call syntax that Gemma's tool-trained models share.

Knows values, JSON Schemas and how the models were shown both; nothing of reading.
Objects look like JSON's with bare keys, strings stand between two equal control
tokens and have no escapes. What an author wrote is kept apart from our syntax, so
that control tokens spelled in it stay characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

from ..chat import Tool
from .base import Markup, Piece
from .schema import resolved
from .shown import NOISE

BARE = re.compile(r"[\w.$-]+")  # a key that needs no quotes

# Keywords that hold schemas and that the models were not trained on outside of
# items: shown under their own key, in the syntax of every other schema.
_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")

_NO_MORE: Mapping[str, Any] = {
    "not": {}
}  # behind a tuple's own items, which says it for itself

# Keywords the trained form leaves out; they are told in the description instead.
_TOLD: Mapping[str, str] = {
    "default": "default",
    "minimum": "minimum",
    "exclusiveMinimum": "more than",
    "maximum": "maximum",
    "exclusiveMaximum": "less than",
    "multipleOf": "multiple of",
    "format": "format",
    "pattern": "pattern",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "minItems": "minimum items",
    "maxItems": "maximum items",
    "uniqueItems": "unique items",
    "additionalProperties": "other keys",
    "patternProperties": "keys by pattern",
    "not": "not",
}
_ENDLESS = 2**53 - 1  # JavaScript's largest integer: what zod bounds every one by
_TOLD_CHARACTERS = 160  # longer ones cost more than they tell; the check still holds


class Writer:
    """Collects pieces of one markup; *quote* is the token on both sides of strings."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._pieces: list[Piece] = []

    def markup(self) -> Markup:
        """Return what was written, neighbours of one origin joined."""
        runs = groupby(self._pieces, key=lambda piece: piece.ours)
        return tuple(Piece("".join(p.text for p in run), ours) for ours, run in runs)

    def ours(self, text: str) -> None:
        """Write syntax and control tokens."""
        self._pieces.append(Piece(text))

    def theirs(self, text: str) -> None:
        """Write an author's text, in which nothing is more than characters."""
        if text:
            self._pieces.append(Piece(text, ours=False))

    def string(self, text: str) -> None:
        """Write *text* between quotes."""
        self.ours(self._quote)
        self.theirs(text)
        self.ours(self._quote)

    def key(self, name: str) -> None:
        """Write a key, bare where the syntax allows it."""
        (self.theirs if BARE.fullmatch(name) else self.string)(name)

    def value(self, value: object, key: Callable[[str], None] | None = None) -> None:
        """Write a JSON value, whose keys *key* writes."""
        again = partial(self.value, key=key)
        if isinstance(value, str):
            self.string(value)
        elif isinstance(value, Mapping):
            self.members(value, again, key)
        elif isinstance(value, list | tuple):
            self.sequence(value, again)
        else:
            self.ours(json.dumps(value))

    def members(
        self,
        mapping: Mapping[str, Any],
        write: Callable[[Any], None],
        key: Callable[[str], None] | None = None,
    ) -> None:
        """Write an object in the trained order; *write* writes each of its values."""
        self.ours("{")
        for n, name in enumerate(sorted(mapping, key=lambda k: (k.lower(), k))):
            self.ours("," if n else "")
            (key or self.key)(name)
            self.ours(":")
            write(mapping[name])
        self.ours("}")

    def sequence(self, values: Iterable[Any], write: Callable[[Any], None]) -> None:
        """Write a list; *write* writes each of *values*."""
        self.ours("[")
        for n, value in enumerate(values):
            self.ours("," if n else "")
            write(value)
        self.ours("]")


def write_declaration(writer: Writer, tool: Tool) -> None:
    """Write what tells a model of *tool*, without the tokens around it."""
    schema = resolved(tool.parameters)
    parameters = _fields(writer, schema)
    parameters.pop("description", None)  # the trained form has none here
    if not schema["properties"]:
        del parameters["properties"]
    writer.ours("declaration:")
    writer.theirs(tool.name)
    writer.ours("{description:")
    writer.string(tool.description)
    writer.ours(",parameters:")
    writer.members(parameters, _run)
    writer.ours("}")


Fields = dict[str, Callable[[], None]]  # a schema's keys, and what writes their values


def _run(write: Callable[[], None]) -> None:
    write()


def _write_schema(writer: Writer, schema: Mapping[str, Any]) -> None:
    writer.members(_fields(writer, schema), _run)


def _fields(writer: Writer, schema: Mapping[str, Any]) -> Fields:
    fields: Fields = {}
    if description := _description(schema):
        fields["description"] = partial(writer.string, description)
    if schema.get("enum"):
        fields["enum"] = partial(writer.value, schema["enum"])
    if schema.get("nullable"):
        fields["nullable"] = partial(writer.ours, "true")
    if schema.get("required"):
        fields["required"] = partial(writer.value, schema["required"])
    if "type" in schema:
        fields["type"] = partial(writer.value, _upper(schema["type"]))
    return {**fields, **_inner(writer, schema)}


def _inner(writer: Writer, schema: Mapping[str, Any]) -> Fields:
    """Return the keys of *schema* whose values are schemas themselves."""
    fields: Fields = {}
    again = partial(_write_schema, writer)
    if isinstance(schema.get("properties"), Mapping):
        fields["properties"] = partial(writer.members, schema["properties"], again)
    items = schema.get("items")
    if isinstance(items, Mapping) and items and items != _NO_MORE:
        fields["items"] = partial(_write_items, writer, items)
    for name in _LISTS_OF_SCHEMAS:
        if schema.get(name):
            fields[name] = partial(writer.sequence, schema[name], again)
    return fields


def _write_items(writer: Writer, items: Mapping[str, Any]) -> None:
    """
    Write the schema of a list's items, whole.

    In training its keys were shown whatever they are, and what stands in most of them
    as a plain value: with quoted keys, and inner types as the author wrote them.
    """
    fields: Fields = {
        name: partial(writer.value, value, writer.string)
        for name, value in items.items()
        if name not in NOISE and _tells(name, value)
    }
    known = _fields(writer, items)
    own = ("nullable", "properties", "required", "type", *_LISTS_OF_SCHEMAS)
    writer.members(fields | {name: known[name] for name in own if name in known}, _run)


def _upper(types: object) -> object:
    if isinstance(types, list | tuple):
        return [str(each).upper() for each in types]
    return str(types).upper()


def _description(schema: Mapping[str, Any]) -> str:
    """Return what is said of *schema*, and what its own keys can't say."""
    told = []
    for name, words in _TOLD.items():
        value = schema.get(name)
        if not _tells(name, value):
            continue
        text = value if isinstance(value, str) and name != "default" else _json(value)
        if len(text) <= _TOLD_CHARACTERS:
            told.append(f"{words} {text}")
    description = str(schema.get("description") or "")
    if not told:
        return description
    return f"{description} ({'; '.join(told)})" if description else "; ".join(told)


def _tells(name: str, value: object) -> bool:
    if name == "additionalProperties":
        return isinstance(value, Mapping) and bool(value)
    if isinstance(value, int) and abs(value) >= _ENDLESS:
        return name == "default"
    return value is not None and (name == "default" or value is not False)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
