"""
Two schemas as one that says the same, or the insight that there is none.

Works on what `schema` has made plain; a conjunction that can't be told as one schema
stays an ``allOf``, a union that can't stays a union.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .values import KINDS, identity, is_same

Schema = dict[str, Any]

# Where two schemas differ in one of these, no single schema says both; in any other
# keyword the first is as good as the second.
_ASSERTIONS = {
    "additionalProperties", "allOf", "anyOf", "contains", "contentEncoding",
    "contentMediaType", "dependencies", "dependentRequired", "dependentSchemas",
    "else", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items",
    "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains",
    "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf",
    "pattern", "patternProperties", "prefixItems", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
}  # fmt: skip
_TOGETHER = (
    {"if", "then", "else"}, {"items", "prefixItems", "unevaluatedItems"},
    {"contains", "minContains", "maxContains"},
)  # fmt: skip
ANNOTATIONS = {
    "$comment", "default", "deprecated", "description", "examples", "readOnly", "title",
    "writeOnly",
}  # fmt: skip

_MOST_BRANCHES = 64  # each is merged into a copy of all before it


def without(schema: Schema, *keys: str) -> Schema:
    """Return a copy of *schema* that lacks *keys*."""
    return {key: value for key, value in schema.items() if key not in keys}


def merged(first: Schema, second: Schema) -> Schema | None:
    """Return what allows exactly what both allow, told in *first*'s words; or None."""
    if not (_keeps_closed(first, second) and _keeps_closed(second, first)):
        return None
    if not _is_apart(first, second):
        return None
    node = first | second | first  # in the first's order
    for key in first.keys() & second.keys():
        if key in _NARROWED:
            value = _NARROWED[key](first[key], second[key])
            if value is None:
                return None
            node[key] = value
        elif key in _ASSERTIONS and not is_same(first[key], second[key]):
            return None
    node.pop("nullable", None)
    if _is_nullable(first, second):
        node["nullable"] = True
    return node


def conjunct(node: Schema) -> Schema:
    """Return *node* with as much of its ``allOf`` in itself as says the same there."""
    branches, left = node["allOf"], []
    if len(branches) > _MOST_BRANCHES:
        return node
    node = without(node, "allOf")
    for branch in branches:
        both = merged(node, branch)
        if both is None:
            left.append(branch)
        else:
            left += both.pop("allOf", ())
            node = both
    return {**node, "allOf": left} if left else node


def united(node: Schema, key: str) -> Schema:
    """Return *node* with its union under *key* told without one, where that can be."""
    branches, node = node[key], without(node, key)
    some = [branch for branch in branches if branch.get("type") != "null"]
    if some and len(some) < len(branches):
        branches = some
        if "type" not in node:
            node["nullable"] = True
    words = _words(branches, is_exclusive=key == "oneOf")
    if words is not None:
        branches = [words]
    if len(branches) == 1:
        both = merged(node, branches[0])
        if both is not None:
            return both
    return {**node, key: branches}


def _words(branches: list[Schema], *, is_exclusive: bool) -> Schema | None:
    """Return the one schema of a union of nothing but given strings, or None."""
    allowed = {"type", "enum", *ANNOTATIONS}
    words: list[str] = []
    notes = []
    for branch in branches:
        enum = branch.get("enum", (None,))
        if branch.get("type") != "string" or branch.keys() - allowed:
            return None
        if not all(isinstance(word, str) for word in enum):
            return None
        words += enum
        if branch.get("description"):
            notes.append(f"{', '.join(enum)}: {branch['description']}")
    if is_exclusive:  # what two branches allow, a oneOf refuses
        words = [word for word, count in Counter(words).items() if count == 1]
    node: Schema = {"type": "string", "enum": list(dict.fromkeys(words))}
    if notes and len(branches) > 1:
        node["description"] = "\n".join(notes)
    return node if words else None


def _keeps_closed(closed: Schema, other: Schema) -> bool:
    """Tell whether *other* brings nothing that *closed* would then allow as well."""
    if closed.get("unevaluatedProperties", True) is not True:
        return not other.keys() - ANNOTATIONS - {"type", "required"}
    if closed.get("additionalProperties", True) is True:
        return True
    return all(
        (other.get(key) or {}).keys() <= (closed.get(key) or {}).keys()
        for key in ("properties", "patternProperties")
    )


def _is_apart(first: Schema, second: Schema) -> bool:
    """Tell whether keywords that work together come from one of the two."""
    for group in _TOGETHER:
        one, other = first.keys() & group, second.keys() & group
        if one and other and (one != other or not _is_same_in(group, first, second)):
            return False
    return True


def _is_same_in(keys: set[str], first: Schema, second: Schema) -> bool:
    return all(is_same(first.get(key), second.get(key)) for key in keys)


def _is_nullable(first: Schema, second: Schema) -> bool:
    """
    Tell whether both allow null. One without a type says nothing against it; one that
    has only the word `nullable` (OpenAPI writes it beside a reference) asks for it.
    """
    one, other = first.get("nullable"), second.get("nullable")
    untyped = "type" not in first or "type" not in second
    return bool((one and other) or ((one or other) and untyped))


def _narrower(first: object, second: object) -> object:
    """Return the types that both allow; None for none."""
    one = first if isinstance(first, list) else [first]
    other = second if isinstance(second, list) else [second]
    both = [
        kind
        for kind in KINDS
        if (kind in one or (kind == "integer" and "number" in one))
        and (kind in other or (kind == "integer" and "number" in other))
    ]
    if "number" in both and "integer" in both:
        both.remove("integer")
    return (both[0] if len(both) == 1 else both) or None


def _common(first: list[object], second: list[object]) -> list[object] | None:
    others = {identity(value) for value in second}
    return [value for value in first if identity(value) in others] or None


def _all_properties(first: Schema, second: Schema) -> Schema | None:
    node = first | second | first
    for name in first.keys() & second.keys():
        both = merged(first[name], second[name])
        if both is None:
            return None
        node[name] = both
    return node


def _all_names(first: list[str], second: list[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


_NARROWED: dict[str, Any] = {
    "type": _narrower,
    "enum": _common,
    "properties": _all_properties,
    "required": _all_names,
}
