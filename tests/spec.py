"""docs/openapi.yaml as tests use it: parsed, its references followed, its schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

SPEC = yaml.safe_load(
    (Path(__file__).parent.parent / "docs" / "openapi.yaml").read_text("utf-8")
)


def valid(value: object, schema: Mapping[str, Any] | str) -> None:
    """Raise unless *value* fits a schema, or the component of that name."""
    _validator(schema).validate(value)


def fits(value: object, schema: Mapping[str, Any] | str) -> bool:
    """Return whether it does."""
    return bool(_validator(schema).is_valid(value))


def _validator(schema: Mapping[str, Any] | str) -> Draft202012Validator:
    if isinstance(schema, str):
        schema = {"$ref": f"#/components/schemas/{schema}"}
    return Draft202012Validator({**schema, "components": SPEC["components"]})


def resolved(node: Any) -> Any:
    """Return what *node* stands for, if it is a reference."""
    while isinstance(node, dict) and "$ref" in node:
        at = SPEC
        for part in node["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        node = at
    return node


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping of the document."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from nodes(child)
