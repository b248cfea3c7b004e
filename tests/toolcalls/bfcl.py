"""
The Berkeley Function Calling Leaderboard's questions, functions and gold calls.

Read out of the installed package's files; none of its code is run. Apache-2.0, Sky
Computing Lab. A gold call lists, for each parameter, the values that are right; one of
them is taken. Types are those of several languages and become JSON Schema's here.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ofa.chat import Tool, ToolCall

from .forms import call

CALLING = (
    "simple_python", "simple_java", "simple_javascript", "multiple", "parallel",
    "parallel_multiple", "live_simple", "live_multiple", "live_parallel",
    "live_parallel_multiple",
)  # fmt: skip
IRRELEVANT = ("irrelevance", "live_irrelevance")

# "any" and what a Java or JavaScript class would be says nothing that JSON could keep.
_TYPES = {
    "dict": "object", "HashMap": "object", "Map": "object",
    "array": "array", "tuple": "array", "Array": "array", "ArrayList": "array",
    "string": "string", "String": "string", "char": "string",
    "integer": "integer", "long": "integer",
    "float": "number", "double": "number", "number": "number",
    "boolean": "boolean", "Boolean": "boolean",
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A question, the functions there are, and the calls that answer it."""

    id: str
    text: str
    tools: tuple[Tool, ...]
    calls: tuple[ToolCall, ...] = ()
    gold: tuple[dict[str, dict[str, list[Any]]], ...] = ()  # as BFCL has it

    def accepts(self, made: ToolCall) -> bool:
        """Return whether *made* is the one gold call, with any of the right values."""
        right = self.gold[0].get(made.name)
        return right is not None and _same(made.arguments, right)


def questions(*categories: str) -> list[Question]:
    """Return the questions of *categories*, in their order."""
    return [one for category in categories for one in _category(category)]


@cache
def _category(category: str) -> tuple[Question, ...]:
    name = f"BFCL_v4_{category}.json"
    rows = _rows(_folder() / name)
    gold = _folder() / "possible_answer" / name
    answers = (
        {row["id"]: row["ground_truth"] for row in _rows(gold)} if gold.exists() else {}
    )
    return tuple(_question(row, answers.get(row["id"], ())) for row in rows)


def _folder() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("bfcl_eval is not installed: run scripts/test")
    return Path(spec.submodule_search_locations[0]) / "data"


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def _question(row: dict[str, Any], gold: Any) -> Question:
    tools = tuple(_tool(function) for function in row["function"])
    calls = [
        call(name, _arguments(told), number)
        for number, entry in enumerate(gold)
        for name, told in entry.items()
    ]
    text = "\n".join(m["content"] for turn in row["question"] for m in turn)
    return Question(row["id"], text, tools, tuple(calls), tuple(gold))


# --- gold calls ---------------------------------------------------------------------


def _arguments(told: dict[str, list[Any]]) -> dict[str, Any]:
    """Return one of the right sets of arguments; "" among the values means left out."""
    return {
        name: _value(right)
        for name, values in told.items()
        if (right := _first(values)) is not None
    }


def _first(values: Any) -> Any:
    """Return the first value that is one; None where the parameter may be left out."""
    if not isinstance(values, list):
        return values
    return next((value for value in values if value != ""), None)


def _value(right: Any) -> Any:
    """Return *right*; in it, too, an object has a list of right values for each key."""
    if isinstance(right, dict):
        return _arguments(right)
    return [_value(one) for one in right] if isinstance(right, list) else right


def _same(made: Any, right: Any) -> bool:
    """Return whether *made* is *right* but for case, blanks and marks, as BFCL's own
    checker has it; in objects each key has a list of right values."""
    if isinstance(made, str) and isinstance(right, str):
        return _plain(made) == _plain(right)
    if isinstance(made, list) and isinstance(right, list):
        return len(made) == len(right) and all(map(_same, made, right))
    if isinstance(made, dict) and isinstance(right, dict):
        return not made.keys() - right.keys() and all(
            any(_same(made.get(name, ""), value) for value in values)
            for name, values in right.items()
        )
    return bool(made == right)


def _plain(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


# --- functions ----------------------------------------------------------------------


def _tool(function: dict[str, Any]) -> Tool:
    return Tool(
        function["name"], function["description"], _schema(function["parameters"])
    )


def _schema(told: dict[str, Any]) -> dict[str, Any]:
    """Return a function's schema in JSON Schema's words."""
    made = dict(_keywords(told))
    if isinstance(made.get("properties"), dict):
        made["properties"] = {n: _schema(p) for n, p in made["properties"].items()}
    if isinstance(made.get("items"), dict):
        made["items"] = _schema(made["items"])
    return made


def _keywords(told: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in told.items():
        if keyword != "type":
            yield keyword, value
        elif value in _TYPES:
            yield "type", _TYPES[value]
