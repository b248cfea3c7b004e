"""
Writes tools as short signatures, as in TypeScript, for models without a tool format.

Knows JSON Schema in its plain form; nothing of prompts. What types can't say, limits
and descriptions, stands behind the parameter's name in a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..chat import Tool
from . import shown, written
from .schema import properties_of, required_of, types_of

_LIMITS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "format", "minItems", "maxItems",
    "uniqueItems", "minProperties", "maxProperties", "not",
)  # fmt: skip

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_INNER = re.compile(r"\([^(){}\[\]]*\)|\{[^(){}\[\]]*\}|\[[^(){}\[\]]*\]")


def render(tool: Tool) -> str:
    """Return *tool* as one line, and one more for each parameter that is described."""
    schema = shown.schema(tool)
    head = f"{tool.name}({_members(schema)})"
    about = _flat(tool.description)
    lines = [f"{head} - {about}" if about else head]
    lines += [f"  {path}: {words}" for path, words in _notes(schema, "")]
    return "\n".join(lines)


def kind(schema: object) -> str:
    """Return the type of what fits *schema*, as TypeScript writes it."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return "|".join(written.dump(value) for value in schema["enum"])
    for union, mark in (("anyOf", "|"), ("oneOf", "|"), ("allOf", "&")):
        if isinstance(schema.get(union), list) and schema[union]:
            return _union(schema, union, mark)
    types = types_of(schema)
    return "|".join(_of_type(name, schema) for name in types) or "any"


def _union(schema: Mapping[str, Any], union: str, mark: str) -> str:
    """Return the branches of a union, and what stands beside it."""
    kinds = dict.fromkeys(kind(one) for one in schema[union])
    parts = [_grouped(one) for one in kinds] if mark == "&" else list(kinds)
    text = mark.join(parts)
    if not properties_of(schema):
        return text
    beside = _of_type("object", schema)
    return f"{beside}&{text if len(parts) == 1 else f'({text})'}"


def _of_type(name: str, schema: Mapping[str, Any]) -> str:
    if name == "array":
        return _array(schema)
    if name == "object":
        return f"{{{members}}}" if (members := _members(schema)) else "object"
    return name


def _array(schema: Mapping[str, Any]) -> str:
    if isinstance(schema.get("prefixItems"), list):
        return f"[{', '.join(kind(one) for one in schema['prefixItems'])}]"
    return f"{_grouped(kind(schema.get('items')))}[]"


def _grouped(text: str) -> str:
    """Return *text* so that what stands beside it holds for all of it."""
    flat, before = _STRINGS.sub("", text), ""
    while flat != before:
        flat, before = _INNER.sub("", flat), flat
    return f"({text})" if "|" in flat or "&" in flat else text


def _members(schema: Mapping[str, Any]) -> str:
    required = required_of(schema)
    members = [
        _member(name, one, optional=name not in required)
        for name, one in properties_of(schema).items()
    ]
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        members.append(f"[name]: {kind(others)}")
    return ", ".join(members)


def _member(name: str, schema: object, *, optional: bool) -> str:
    text = f"{name}{'?' if optional else ''}: {kind(schema)}"
    if isinstance(schema, Mapping) and "default" in schema:
        text += f" = {written.dump(schema['default'])}"
    return text


def _notes(schema: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each described part of *schema*, and what is said of it."""
    if not isinstance(schema, Mapping):
        return
    if path and (words := _words(schema)):
        yield path, words
    for name, one in properties_of(schema).items():
        yield from _notes(one, f"{path}.{name}" if path else name)
    yield from _notes(schema.get("items"), f"{path}[]")
    others = schema.get("additionalProperties")
    yield from _notes(others, f"{path}.[name]" if path else "[name]")
    for union in ("anyOf", "oneOf", "allOf", "prefixItems"):
        branches = schema.get(union)
        for one in branches if isinstance(branches, list) else ():
            yield from _notes(one, path or "")


def _words(schema: Mapping[str, Any]) -> str:
    about = _flat(schema.get("description"))
    limits = ", ".join(
        f"{key} {written.dump(schema[key])}" for key in _LIMITS if key in schema
    )
    return f"{about} ({limits})" if about and limits else about or limits


def _flat(text: object) -> str:
    return " ".join(text.split()) if isinstance(text, str) else ""
