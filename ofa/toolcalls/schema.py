"""
What a tool's JSON Schema is, for a model to read: one plain form for all of them.

Knows JSON Schema; nothing of how a family writes one. What a client sent is never
refused here (see `strict`) and never changed: what can't be told is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from ..chat import Tool
from .schema_merge import Schema, conjunct, united, without
from .values import KINDS, kind_of, unique

MAX_DEPTH = 48  # of schemas in schemas; what clients send stays under 12
MAX_EXPANDED = (
    60_000  # characters that references may add; 40 tools of an editor have 56k
)
_NESTED = 2  # how often a type is told within itself

# Other spellings of types that are sent: Gemini's capitals, Python's names. "any" and
# what nobody knows is no constraint.
_ALIASES = {
    "dict": "object", "map": "object", "list": "array", "tuple": "array",
    "set": "array", "str": "string", "int": "integer", "long": "integer",
    "float": "number", "double": "number", "bool": "boolean", "none": "null",
}  # fmt: skip
# Where schemas stand in schemas.
MAPS = ("properties", "patternProperties", "dependentSchemas")
LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
SINGLES = ("items", "contains", "propertyNames", "not", "if", "then", "else")
# A boolean of these says something that no schema says shorter.
SINGLES_OR_BOOLEANS = (
    "additionalProperties", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
DEFINITIONS = ("$defs", "definitions")
_DROPPED = {
    *MAPS, "type", "enum", "const", "required", "nullable", "additionalItems",
    "$ref", *DEFINITIONS, "$schema", "$id", "id", "$anchor", "$vocabulary",
    "$comment", "$dynamicAnchor",
}  # fmt: skip


def resolved(parameters: object) -> Schema:
    """
    Return *parameters* as a schema of an object in the one form that models are shown.

    * Local references are resolved in place. A type within itself is told twice, then
      by its name; so is what would pass `MAX_EXPANDED` characters or `MAX_DEPTH`.
    * ``type`` is a known name, or several where the value may be of several; absent
      where it may be any. ``null`` among them becomes ``nullable: true``.
    * ``const`` is an ``enum`` of one; a union of strings is an ``enum``; a union with
      null, or of one, is no union; an ``allOf`` is merged where that says the same.
    * Objects have ``properties``; ``required`` is there only with names in it.

    Takes any JSON value, raises nothing, changes nothing; a second time is the same.
    """
    top: Schema = {"not": {}} if parameters is False else {}
    if isinstance(parameters, dict):
        top = without(parameters, "nullable")
    return _Resolver(parameters).node({**top, "type": "object"}, 0, ())


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types *schema* allows by its ``type``, null included; () for any."""
    value = schema.get("type")
    names = value if isinstance(value, list) else [value]
    known = [_type(name) for name in names if isinstance(name, str)]
    if not known or "" in known:
        return ()
    if schema.get("nullable") is True:
        known.append("null")
    return tuple(dict.fromkeys(known))


def required_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the properties an object must have, each once, in order."""
    value = schema.get("required")
    names = value if isinstance(value, list) else []
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def properties_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of *schema*, whatever stands in their place."""
    value = schema.get("properties")
    return value if isinstance(value, dict) else {}


def canonical(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Return *tools* in the one order they are told in, whatever a client's order."""
    return tuple(sorted(tools, key=lambda tool: tool.name))


class _Resolver:
    """Resolves one tool's schema; *root* is where its references begin."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._anchors: dict[str, object] | None = None
        self._left = MAX_EXPANDED

    def node(self, schema: object, depth: int, within: tuple[str, ...]) -> Schema:
        """Return one schema; *within* are the references that led to it."""
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict):
            return {}
        if depth >= MAX_DEPTH:
            return _named(schema, "")
        if within:
            self._left -= _weight(schema)
        node = _typed(self._children(schema, depth, within), schema)
        for key in ("anyOf", "oneOf"):
            if key in node:
                node = united(node, key)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = self._target(reference, depth, within)
            node = {**node, "allOf": [*node.get("allOf", ()), target]}
        if "allOf" in node:
            node = conjunct(node)
        return _with_properties(node)

    def _children(self, schema: Schema, depth: int, within: tuple[str, ...]) -> Schema:
        """Return *schema* with every schema in it resolved, and no definitions."""
        node: Schema = {}
        for key, value in modern(schema).items():
            if key in MAPS and isinstance(value, dict):
                node[key] = {
                    str(name): self.node(one, depth + 1, within)
                    for name, one in value.items()
                }
            elif key in LISTS:
                if isinstance(value, list) and value:
                    node[key] = [self.node(one, depth + 1, within) for one in value]
            elif key in SINGLES or (
                key in SINGLES_OR_BOOLEANS and not isinstance(value, bool)
            ):
                node[key] = self.node(value, depth + 1, within)
            elif key not in _DROPPED:
                node[key] = value
        return node

    def _target(self, reference: str, depth: int, within: tuple[str, ...]) -> Schema:
        found = self._find(reference)
        name = reference.rpartition("/")[2].strip("#")[:64]
        if found is None:
            return {"description": name} if name else {}
        if within.count(reference) >= _NESTED or self._left <= 0:
            return _named(found, name)
        return self.node(found, depth + 1, (*within, reference))

    def _find(self, reference: str) -> object:
        """Return what *reference* points at; None if that is not in this schema."""
        document, _, pointer = reference.partition("#")
        root = self._root
        if document and not (isinstance(root, dict) and root.get("$id") == document):
            return None
        if pointer and not pointer.startswith("/"):
            if self._anchors is None:
                self._anchors = dict(_anchors(root))
            return self._anchors.get(pointer)
        here: Any = root
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict):
                here = here.get(key)
            elif isinstance(here, list) and key.isdecimal() and len(key) < 6:
                here = here[int(key)] if int(key) < len(here) else None
            else:
                return None
        return here


def modern(schema: Schema) -> Schema:
    """Return *schema* with the older spelling of tuples in the newer one."""
    items = schema.get("items")
    if not isinstance(items, list):
        return schema
    node = {**without(schema, "items"), "prefixItems": items}
    if "additionalItems" in schema:
        node["items"] = schema["additionalItems"]
    return node


def _typed(node: Schema, schema: Schema) -> Schema:
    """Return *node* with *schema*'s ``type``, ``enum``, ``required``, ``nullable``."""
    kinds, values = list(types_of(without(schema, "nullable"))), _values(schema)
    if not kinds:
        kinds = _implied(node, values)
    is_nullable = schema.get("nullable") is True or ("null" in kinds and len(kinds) > 1)
    if len(kinds) > 1:
        kinds = [kind for kind in kinds if kind != "null"]
    if kinds != ["null"]:
        values = [value for value in values if value is not None]
    parts = {
        "type": kinds[0] if len(kinds) == 1 else kinds,
        "enum": [] if kinds == ["null"] else values,
        "required": list(required_of(schema)),
        "nullable": is_nullable and kinds != ["null"],
    }
    return _with_properties(node | {key: one for key, one in parts.items() if one})


def _with_properties(node: Schema) -> Schema:
    """
    Return *node*, with ``properties`` if it is an object.

    A template that finds none takes the node's own keywords for them.
    """
    return {"properties": {}, **node} if node.get("type") == "object" else node


def _values(schema: Schema) -> list[Any]:
    """Return what ``enum`` or ``const`` leave as the only values; empty for any."""
    if "const" in schema:
        return [schema["const"]]
    enum = schema.get("enum")
    return unique(enum) if isinstance(enum, list) else []


def _implied(node: Schema, values: list[Any]) -> list[str]:
    """Return the types that a schema without ``type`` means."""
    if values:
        kinds = list(dict.fromkeys(map(kind_of, values)))
        return [kind for kind in kinds if kind != "integer" or "number" not in kinds]
    if "properties" in node:
        return ["object"]
    return ["array"] if "items" in node or "prefixItems" in node else []


def _type(name: str) -> str:
    """Return the JSON type that *name* means; empty if it is none."""
    known = _ALIASES.get(name.lower(), name.lower())
    return known if known in KINDS else ""


def _named(schema: object, name: str) -> Schema:
    """Return what stands for *schema* where it is not told: its type and its *name*."""
    if not isinstance(schema, dict):
        return {}
    kept = {key: schema[key] for key in ("type", "nullable") if key in schema}
    if isinstance(schema.get("properties"), dict):
        kept["properties"] = {}
    node = _typed(kept if "properties" in kept else {}, kept)
    text = schema.get("description")
    text = text if isinstance(text, str) else ""
    if name and not text.endswith(f"({name})"):
        text = f"{text} ({name})" if text else name
    return node | {"description": text} if text else node


def _anchors(root: object) -> Iterator[tuple[str, object]]:
    """Yield every schema under *root* that has a name of its own, and the name."""
    stack = [root]
    while stack:
        here = stack.pop()
        if isinstance(here, dict):
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(here.get(key), str):
                    yield here[key], here
        if isinstance(here, dict | list):
            stack += here.values() if isinstance(here, dict) else here


def _weight(schema: Schema) -> int:
    """Return about how many characters *schema* takes without the schemas in it."""
    inner = {*MAPS, *LISTS, *SINGLES, *SINGLES_OR_BOOLEANS, *DEFINITIONS}
    total, stack = 0, [value for key, value in schema.items() if key not in inner]
    while stack:
        here = stack.pop()
        total += 10 + (len(here) if isinstance(here, str) else 0)
        if isinstance(here, dict | list):
            stack += here.values() if isinstance(here, dict) else here
    return total + 10 * len(properties_of(schema))
