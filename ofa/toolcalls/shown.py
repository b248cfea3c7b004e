"""
What a model is shown of a tool's schema: all that helps to fill it in, and no more.

Knows JSON Schema as clients send it; nothing of how a family writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..chat import Tool
from .schema import LISTS, MAPS, SINGLES, SINGLES_OR_BOOLEANS, resolved, types_of

# Read by validators, editors and generators of code; a model fills in no value better
# for them, and VS Code's 40 tools alone have hundreds.
NOISE = frozenset(
    ("$schema", "$id", "$comment", "title", "examples", "deprecated", "readOnly",
     "writeOnly", "markdownDescription", "enumDescriptions", "$defs", "definitions")
)  # fmt: skip


def schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of *tool*'s arguments without references and noise."""
    shown = _cleaned(resolved(tool.parameters))
    return {"type": "object", "properties": {}} | shown


def _cleaned(schema: Mapping[str, Any]) -> dict[str, Any]:
    clean = {
        key: _cleaner(key)(value)
        for key, value in schema.items()
        if key not in NOISE and not _says_nothing(key, value)
    }
    if clean.pop("nullable", False) and (types := types_of(schema)):
        clean["type"] = list(types)  # JSON Schema's own word for it
    return clean


def _clean(schema: object) -> object:
    return _cleaned(schema) if isinstance(schema, Mapping) else schema


def _says_nothing(key: str, value: object) -> bool:
    if key in ("additionalProperties", "unevaluatedProperties"):
        return isinstance(value, bool)
    return key in ("description", "required") and not value


def _cleaner(key: str) -> Callable[[object], object]:
    if key in MAPS:
        return _clean_map
    if key in LISTS:
        return _clean_list
    return _clean if key in (*SINGLES, *SINGLES_OR_BOOLEANS) else _as_sent


def _as_sent(value: object) -> object:
    return value


def _clean_map(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: _clean(schema) for name, schema in value.items()}


def _clean_list(value: object) -> object:
    return [_clean(one) for one in value] if isinstance(value, list) else value
