"""
What ``[tools] schema = "strict"`` refuses: schemas that could be told only in part.

Each node has one known type, alone or with null; a union is one of given strings, or
of one form with null. Keywords that narrow a type are not looked at. Checks and
changes nothing; `schema` tells what is let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

from ..chat import Tool
from ..errors import BadRequest
from .schema_merge import ANNOTATIONS, Schema, without
from .values import KINDS, is_same, shortened

_KEY = re.compile(r"[\w.$-]+")
_NULL = {"type": "null"}
_UNIONS = ("anyOf", "oneOf")
_MAX_DEPTH = 64


def check_strict(tool: Tool, param: str = "tools") -> None:
    """
    Raise `BadRequest` (``invalid_tool_schema``) if *tool*'s schema breaks a rule.

    The message names the tool and the place in its schema.
    """
    node = _Strict(tool.name, param)
    node.scan(tool.parameters)
    node.check(tool.parameters, "parameters", 0)
    if tool.parameters.get("type") != "object" or tool.parameters.get("nullable"):
        node.refuse("parameters", "must be of the type object, and not nullable")


class _Strict:
    """The rules, for one tool's schema; *param* is the request field at fault."""

    def __init__(self, tool: str, param: str) -> None:
        self._tool = tool
        self._param = param

    def refuse(self, path: str, why: str) -> NoReturn:
        """Raise what is wrong at *path*."""
        raise BadRequest(
            f"tool '{self._tool}': {shortened(path, 200)}: {why}",
            param=self._param,
            code="invalid_tool_schema",
        )

    def scan(self, schema: object) -> None:
        """Refuse keys and numbers that can't be written, wherever they stand."""
        stack: list[tuple[object, str]] = [(schema, "parameters")]
        while stack:
            here, path = stack.pop()
            if isinstance(here, dict):
                if "properties" in here:
                    self._scan_names(here["properties"], f"{path}.properties")
                stack += [(one, f"{path}.{name}") for name, one in here.items()]
            elif isinstance(here, list):
                stack += [(one, f"{path}[{n}]") for n, one in enumerate(here)]
            elif isinstance(here, int) and not _is_double(here):
                self.refuse(path, "the number is too large to be kept exactly")

    def _scan_names(self, properties: object, path: str) -> None:
        if not isinstance(properties, dict):
            self.refuse(path, "must be an object")
        for name in properties:
            if not _KEY.fullmatch(name):
                self.refuse(
                    path,
                    f"'{shortened(name, 40)}' is no name: letters, digits, _ - . $",
                )

    def check(self, schema: object, path: str, depth: int) -> None:
        """Refuse the node at *path* if it, or a node in it, breaks a rule."""
        if not isinstance(schema, dict):
            self.refuse(path, "must be an object")
        if depth > _MAX_DEPTH:
            self.refuse(path, "is nested too deep")
        if "allOf" in schema:
            self.refuse(path, "allOf is not supported; write one schema")
        if any(key in schema for key in _UNIONS):
            schema = self._without_union(schema, path)
        kind = self._kind(schema, path)
        for key, only in (("properties", "object"), ("items", "array")):
            if key in schema and kind != only:
                self.refuse(path, f"{key} needs the type {only}")
        for name, one in schema.get("properties", {}).items():
            self.check(one, f"{path}.properties.{name}", depth + 1)
        if "items" in schema:
            self.check(schema["items"], f"{path}.items", depth + 1)

    def _kind(self, schema: Schema, path: str) -> str:
        """Return the node's one type beside null."""
        value = schema.get("type")
        kinds = value if isinstance(value, list) else [value]
        if not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
            self.refuse(path, f"needs a type, one of {', '.join(KINDS)}")
        if isinstance(value, list):
            kinds = [kind for kind in kinds if kind != "null"]
            if len(value) != 2 or len(kinds) != 1:
                self.refuse(path, "several types are not supported, but one and null")
            if schema.get("nullable", True) is not True:
                self.refuse(path, "nullable contradicts the type null")
        return str(kinds[0])

    def _without_union(self, schema: Schema, path: str) -> Schema:
        """Return *schema* with its union told without one."""
        key, *more = (key for key in _UNIONS if key in schema)
        branches, rest = schema[key], without(schema, key)
        if more or not isinstance(branches, list) or len(branches) < 2:
            self.refuse(path, f"this use of {key} is not supported")
        words = list(_words(branches))
        if len(words) == len(branches):
            if rest.keys() - ANNOTATIONS:
                self.refuse(path, f"only annotations may stand beside this {key}")
            if key == "oneOf" and len(set(words)) < len(words):
                self.refuse(path, "oneOf has a string twice")
            return {**rest, "type": "string", "enum": words}
        others = [branch for branch in branches if branch != _NULL]
        if len(branches) != 2 or len(others) != 1 or not isinstance(others[0], dict):
            self.refuse(
                path, f"{key} may hold given strings, or one schema and null; no more"
            )
        if key == "oneOf" and _admits_null(others[0]):
            self.refuse(path, "oneOf allows null twice")
        for name in rest.keys() & others[0].keys():
            if name not in ANNOTATIONS and not is_same(rest[name], others[0][name]):
                self.refuse(path, f"{name} differs from that in {key}")
        return self._nested({**others[0], **rest}, path)

    def _nested(self, schema: Schema, path: str) -> Schema:
        if any(key in schema for key in (*_UNIONS, "allOf")):
            self.refuse(path, "a union in a union is not supported")
        return schema


def _words(branches: list[Any]) -> Iterator[str]:
    """Yield the string of each branch that is nothing but one given string."""
    for branch in branches:
        match branch:
            case {"type": "string", "const": str(word)} if len(branch) == 2:
                yield word


def _admits_null(schema: Schema) -> bool:
    kinds = schema.get("type")
    return (
        kinds == "null"
        or (isinstance(kinds, list) and "null" in kinds)
        or schema.get("nullable") is True
    )


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
