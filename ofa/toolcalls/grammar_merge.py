"""
Several JSON Schemas that all hold as one, as far as a grammar can say it.

Knows the keywords that a grammar is made of; of two values for one of them that do not
go together one is kept, and the keyword named as left to the check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from .schema import modern

SAID = ("title", "description", "default", "examples", "$schema", "$defs", "$comment")

Schema = Mapping[str, Any]


class Impossible(ValueError):
    """No value fits."""


class Merger:
    """Merges schemas; what it can't is added to *left*."""

    def __init__(self, left: set[str]) -> None:
        self._left = left

    def flat(self, schema: Schema) -> Schema:
        """Return *schema* with the parts of its `allOf` in it."""
        schema = modern(dict(schema))
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return schema
        base = {name: value for name, value in schema.items() if name != "allOf"}
        return self.merged([base, *(self._flat_part(part) for part in parts)])

    def _flat_part(self, part: object) -> object:
        return self.flat(part) if isinstance(part, Mapping) else part

    def merged(self, parts: Sequence[object]) -> dict[str, Any]:
        """Return one schema for what fits all *parts*, as far as that can be said."""
        out: dict[str, Any] = {}
        for part in parts:
            if part is False:
                raise Impossible
            if not isinstance(part, Mapping):
                continue
            if "properties" in out and "properties" in part:
                self._close(out, part)
            for key, value in part.items():
                out[key] = self._met(key, out[key], value) if key in out else value
        return out

    def _close(self, one: Schema, other: Schema) -> None:
        """Note where one part forbids the other's properties."""
        if False in (
            one.get("additionalProperties"),
            other.get("additionalProperties"),
        ):
            self._left.add("additionalProperties")

    def _met(self, key: str, one: Any, other: Any) -> Any:  # noqa: ANN401
        """Return what a keyword says that is in two parts."""
        if one == other:
            return one
        if key == "required" and isinstance(one, list) and isinstance(other, list):
            return [*one, *other]
        if key == "properties" and isinstance(one, Mapping | dict):
            inner = other if isinstance(other, Mapping) else {}
            return {
                name: self.merged([s[name] for s in (one, inner) if name in s])
                for name in (*one, *(name for name in inner if name not in one))
            }
        if key == "type":
            return self._common_types(one, other)
        if key not in SAID:
            self._left.add(key)
        return other

    def _common_types(self, one: object, other: object) -> list[str]:
        sets = [
            {kind} if isinstance(kind, str) else set(kind)
            for kind in (one, other)
            if isinstance(kind, str | list)
        ]
        sets = [kinds | {"integer"} if "number" in kinds else kinds for kinds in sets]
        found = sorted(set.intersection(*sets)) if sets else []
        if not found:
            raise Impossible
        return [kind for kind in found if kind != "integer" or "number" not in found]


def find(root: Schema, ref: str) -> object | None:
    """Return what *ref* names within *root*."""
    at: Any = root
    if ref != "#" and not ref.startswith("#/"):
        return None
    for part in ref.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, Mapping) else None
    found: object = at
    return found
