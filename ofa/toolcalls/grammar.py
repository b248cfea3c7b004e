"""
Grammars of tool calls: what may stand behind a call's opener, as rules in Lark.

Knows tools, schemas and the syntax of each family, in the dialect of Lark that
llguidance reads, but neither llguidance nor tokens: how a control token is written in
a rule is what *token* says. A grammar allows no more than the schema does, or the
keywords it leaves to the check afterwards are named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..chat import Tool
from .grammar_gemma import BOUNDS, Quoted, Translator

Token = Callable[[str], str]  # from a control token's text to how rules name it

# A weak model may call for ever; no agent that was recorded sends more at once.
_MOST_CALLS = 16
# Spaced as models were trained on, and no blanks beside: a weak one writes no end.
_SPACED = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
_LENIENT = {**_SPACED, "lenient": True, "coerce_one_of": True}
_BRANCHING = ("allOf", "anyOf", "oneOf", "$ref", "if", "not", "dependentSchemas")
_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")


class Hold(IntEnum):
    """How much of a tool's schema its grammar holds; the rest is checked afterwards."""

    ALL = 0
    MOST = 1  # what the library can express
    NAME = 2  # any object


@dataclass(frozen=True)
class Syntax:
    """What stands around the calls of one family."""

    opener: str
    close: str
    between: str  # behind one call's close and before the next one's opener
    quoted: Quoted | None = None  # the family's own syntax of values; None: JSON
    begin: str = ""  # behind the opener
    end: str = ""  # before the close


SYNTAXES: Mapping[str, Syntax] = {
    "gemma4": Syntax("<|tool_call>", "<tool_call|>", "", Quoted('<|"|>')),
    "functiongemma": Syntax(
        "<start_function_call>", "<end_function_call>", "", Quoted("<escape>")
    ),
    "hermes": Syntax("<tool_call>", "</tool_call>", "\n", begin="\n", end="\n"),
    "generic": Syntax("```tool_call\n", "```", "\n", end="\n"),
}


@dataclass(frozen=True)
class CallRules:
    """
    Rules of calls: `calls` begins with an opener, `behind` is what follows one.

    *schemas* are JSON Schemas that the rules name with an ``@``. *starts* has for each
    tool the text from the opener to within its arguments, and *left* the keywords
    that its part of the grammar does not hold.
    """

    lark: str
    schemas: Mapping[str, Mapping[str, Any]]
    starts: Mapping[str, str]
    left: Mapping[str, tuple[str, ...]]


def call_rules(
    format_name: str,
    tools: Sequence[Tool],
    token: Token,
    *,
    parallel: bool = True,
    holds: Mapping[str, Hold] | None = None,
) -> CallRules:
    """
    Return the rules of calls of *tools* in the format of that name.

    *holds* says for which tools a grammar of all that the schema says was refused.
    Raises `KeyError` for a format without rules.
    """
    syntax = SYNTAXES[format_name]
    holds = holds or {}
    made = _quoted if syntax.quoted else _json
    bodies = made(syntax, tools, token, holds)
    close = f"{text(syntax.end)} {_mark(syntax.close, token)}".strip()
    opener = _mark(syntax.opener, token)
    again = f" (again call){{0,{_MOST_CALLS - 1}}}" if parallel else ""
    lark = [
        f"calls: {opener} behind",
        f"behind: call{again}",
        f"again: {text(syntax.between)} {opener}",
        f"call: {text(syntax.begin)} body {close}",
        "body: " + "\n    | ".join(bodies.alternatives),
        *bodies.lines,
    ]
    return CallRules("\n".join(lark), bodies.schemas, bodies.starts, bodies.left)


def text(literal: str) -> str:
    """Return a rule's string for *literal*; nothing for an empty one."""
    return json.dumps(literal) if literal else ""


def tightened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return *schema* without what a model could only make up.

    Objects are closed where nothing is said on further properties, if no keyword
    beside them could mean some: what is left fits the schema still. The arguments are
    an object, and an empty one if the schema tells of none.
    """
    top = {**schema, "type": "object"}
    if not any(top.get(key) for key in (*_BRANCHING, *_OPENING, "required")):
        top.setdefault("properties", {})
        if not top["properties"]:
            top["additionalProperties"] = False
    shared = "allOf" in json.dumps(schema)  # a closed part would rule out another
    return top if shared else _closed(top)


@dataclass
class _Bodies:
    alternatives: list[str]
    lines: list[str]
    schemas: dict[str, Mapping[str, Any]]
    starts: dict[str, str]
    left: dict[str, tuple[str, ...]]


def _json(
    syntax: Syntax, tools: Sequence[Tool], token: Token, holds: Mapping[str, Hold]
) -> _Bodies:
    bodies = _Bodies([], [], {}, {}, {})
    for number, tool in enumerate(tools):
        name = json.dumps(tool.name, ensure_ascii=False)
        head = f'{{"name": {name}, "arguments": '
        hold = holds.get(tool.name, Hold.ALL)
        schema: Mapping[str, Any] = {"type": "object"}
        left: set[str] = {"schema"} if hold else set()
        if hold != Hold.NAME:
            schema = tightened(tool.parameters)
            schema = schema if tool.strict else _with_exponents(schema, left)
        guide = _LENIENT if hold == Hold.MOST else _SPACED
        bodies.alternatives.append(f'{text(head)} @tool{number} "}}"')
        bodies.schemas[f"tool{number}"] = {**schema, "x-guidance": guide}
        bodies.starts[tool.name] = syntax.begin + head + "{"
        bodies.left[tool.name] = tuple(sorted(left))
    return bodies


def _quoted(
    syntax: Syntax, tools: Sequence[Tool], token: Token, holds: Mapping[str, Hold]
) -> _Bodies:
    assert syntax.quoted is not None
    bodies = _Bodies([], [], {}, {}, {})
    for number, tool in enumerate(tools):
        translator = Translator(token(syntax.quoted.mark), f"t{number}")
        hold = holds.get(tool.name, Hold.ALL)
        left: set[str] = {"schema"} if hold == Hold.NAME else set()
        schema: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
        if hold != Hold.NAME:
            schema = tightened(tool.parameters)
            schema = schema if tool.strict else _with_exponents(schema, left)
        arguments = translator.arguments(schema, patterns=hold == Hold.ALL)
        head = f"call:{tool.name}"
        bodies.alternatives.append(f"{text(head)} {arguments}")
        bodies.lines += translator.lines
        bodies.starts[tool.name] = head + "{"
        bodies.left[tool.name] = tuple(sorted(left | translator.left))
    bodies.lines += Translator(token(syntax.quoted.mark), "").common()
    return bodies


def _with_exponents(node: Any, left: set[str]) -> Any:  # noqa: ANN401
    """
    Return the schema *node* without bounds on fractions; *left* gets their names.

    Held to bounds a number has no exponent, and of 1e-9 a model could write only the 1.
    """
    if isinstance(node, list):
        return [_with_exponents(inner, left) for inner in node]
    if not isinstance(node, Mapping):
        return node
    kinds = node.get("type")
    is_number = kinds == "number" or (isinstance(kinds, list) and "number" in kinds)
    dropped = {*BOUNDS} & node.keys() if is_number else set()
    left |= dropped
    return {
        key: value if key in ("enum", "const") else _with_exponents(value, left)
        for key, value in node.items()
        if key not in dropped
    }


def _mark(spelled: str, token: Token) -> str:
    """Return how a rule names an opener or a close: a token, or its text."""
    return token(spelled) if spelled.startswith("<") else text(spelled)


def _closed(node: Any) -> Any:  # noqa: ANN401 - a schema may be anything
    """Return the schema *node* with its objects closed, where that is safe."""
    if not isinstance(node, Mapping):
        return node
    out = {key: _closed_in(key, value, node) for key, value in node.items()}
    named, required = out.get("properties"), out.get("required", ())
    is_told = isinstance(named, Mapping) and bool(named)
    if (
        is_told
        and not any(key in out for key in (*_BRANCHING, *_OPENING))
        and isinstance(required, list | tuple)
        and {*map(str, required)} <= {*map(str, named or ())}
    ):
        out["additionalProperties"] = False
    return out


def _closed_in(key: str, value: Any, parent: Mapping[str, Any]) -> Any:  # noqa: ANN401
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: _closed(inner) for name, inner in value.items()}
    if key in ("items", "additionalProperties"):
        return _closed(value)
    # Beside properties of its own an object's options say the rest of it.
    is_apart = not {"properties", "required", *_OPENING} & parent.keys()
    if key in ("anyOf", "oneOf") and is_apart and isinstance(value, list):
        return [_closed(inner) for inner in value]
    if key == "prefixItems" and isinstance(value, list):
        return [_closed(inner) for inner in value]
    return value
