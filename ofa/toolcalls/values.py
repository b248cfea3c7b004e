"""JSON values as JSON sees them: ``1`` is ``1.0`` but never ``true``."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable

KINDS = ("object", "array", "string", "integer", "number", "boolean", "null")


def kind_of(value: object) -> str:
    """Return the JSON type of *value*; a whole number is an integer, not a number."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    for kind, python in (("string", str), ("integer", int), ("array", list)):
        if isinstance(value, python):
            return kind
    return "null" if value is None else "object"


def identity(value: object) -> Hashable:
    """Return what two values share exactly if JSON Schema calls them equal."""
    if isinstance(value, list):
        return ("array", *map(identity, value))
    if isinstance(value, dict):
        return frozenset((name, identity(one)) for name, one in value.items())
    kind = kind_of(value)
    return ("number" if kind == "integer" else kind, value)


def is_same(first: object, second: object) -> bool:
    """Tell whether JSON Schema calls *first* and *second* equal."""
    return identity(first) == identity(second)


def unique(values: Iterable[object]) -> list[object]:
    """Return *values*, each once, in the order of their first."""
    return list({identity(value): value for value in values}.values())


def shortened(text: str, limit: int) -> str:
    """Return *text* in one line of at most *limit* characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_json(value: object) -> str:
    """Return *value* in JSON's own spelling, with the keys in order."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
