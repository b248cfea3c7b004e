"""
Calls as models of other families write them: one reader a form.

Knows the forms and, where values carry no types, what the tool's schema makes of
them; nothing of where in an answer a call may stand: that is `rescue`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..chat import Tool
from . import written
from .base import Found, Unreadable
from .dsl_parser import parse_calls
from .schema import properties_of, resolved

Tools = Sequence[Tool]
Read = tuple[tuple[Found, ...], int]  # calls, and where in the text they end

NAME = r"[A-Za-z_][\w.:/-]{0,127}"

_PAIR = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL
)
_INVOKE = re.compile(
    r"\s*<parameter name=\"([^\"\n]*)\"[^>\n]*>(.*?)</parameter>", re.DOTALL
)
_INVOKED = re.compile(r"\s*</invoke>")
_FUNCTION = re.compile(rf"<function={NAME}>")
# A parameter's closing tag may lack: the next tag that can stand there ends it as well.
_TAGGED = re.compile(
    r"\s*<parameter=([^>\n]*)>(.*?)"
    r"(?:</parameter>|(?=<parameter=|</function>|</tool_call>))",
    re.DOTALL,
)
_BRACE = re.compile(r"\s*(?=\{)")
_BRACKET_END = re.compile(r"\)?\]")
_FUNCTION_END = re.compile(r"\s*(?:</function>|(?=</tool_call>)|\Z)")
# What has braces of its own, and braces: as far as needed to see where a call ends.
_BRACES = re.compile(
    r"""<\|"\|>.*?<\|"\|>|<escape>.*?<escape>"""
    r"""|"(?:[^"\\]|\\.)*"|(?<=[:,\[])\s*'(?:[^'\\]|\\.)*'|[{}]""",
    re.DOTALL,
)
_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def glm(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read the <arg_key>, <arg_value> pairs of a call to *name* from *at*."""
    arguments, typed = {}, _typing(tool)
    while pair := _PAIR.match(text, at):
        key = pair[1].strip()
        arguments[key] = typed(key, pair[2])
        at = pair.end()
    return ((Found(name, arguments),), at) if arguments else None


def invoke(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read the <parameter name="..."> elements of an <invoke> element from *at*."""
    arguments, typed = {}, _typing(tool)
    while pair := _INVOKE.match(text, at):
        arguments[pair[1]] = typed(pair[1], _unwrapped(pair[2]))
        at = pair.end()
    end = _INVOKED.match(text, at)
    return ((Found(name, arguments),), end.end()) if end else None


def function(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read the <parameter=...> elements, or the JSON, of a <function=...> element."""
    arguments: dict[str, Any] = {}
    if brace := _BRACE.match(text, at):
        inner = json_from(text, brace.end())
        if inner is None:
            return None
        arguments, at = inner
    typed = _typing(tool)
    while pair := _TAGGED.match(text, at):
        key = pair[1].strip().strip("\"'")
        arguments[key] = typed(key, _unwrapped(pair[2]))
        at = pair.end()
    end = _FUNCTION_END.match(text, at)
    return ((Found(name, arguments),), end.end()) if end else None


def braces(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read Gemma's braces, or a JSON object, from *at*."""
    inner = body(text, at, name, tool)
    end = _braces_end(text, at)
    if inner or end is None:
        return inner
    call = f"call:{name}{text[at:end]}"
    quote = "<escape>" if "<escape>" in call else '<|"|>'
    try:
        return tuple(parse_calls(call, quote, str)), end
    except Unreadable:
        return None


def body(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read the JSON object of arguments at *at*."""
    del tool
    inner = json_from(text, at)
    return ((Found(name, inner[0]),), inner[1]) if inner else None


def nothing(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read a call without arguments: all of it has been read."""
    del text, tool
    return (Found(name, {}),), at


def bracketed(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read ``({...})]`` or ``]``, as models imitate a log of calls."""
    del tool
    arguments: dict[str, Any] = {}
    if text.startswith("(", at):
        inner = json_from(text, at + 1)
        if inner is None:
            return None
        arguments, at = inner
    end = _BRACKET_END.match(text, at)
    return ((Found(name, arguments),), end.end()) if end else None


def objects(text: str, at: int, name: str, tool: Tool | None) -> Read | None:
    """Read a JSON object, or a list of them, with names and arguments, from *at*."""
    del name, tool
    end = written.value_end(text, at)
    if end is None:
        return None
    try:
        return tuple(written.read_calls(text[at:end])), end
    except Unreadable:
        return None


def json_from(text: str, at: int) -> tuple[dict[str, Any], int] | None:
    """Return the JSON object at *at* and where it ends, or None."""
    end = written.value_end(text, at)
    if end is None or text[at] != "{":
        return None
    try:
        value = written.parse(text[at:end])
    except Unreadable:
        return None
    return (value, end) if isinstance(value, dict) else None


def _braces_end(text: str, at: int) -> int | None:
    depth = 0
    for part in _BRACES.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(part[0], 0)
        if depth <= 0:
            return part.end()
    return None


def function_tags(text: str) -> list[Found]:
    """Return the calls, all values text, that *text* is elements of; may raise."""
    calls: list[Found] = []
    at = 0
    while head := _FUNCTION.search(text, at):
        read = function(text, head.end(), head[0][len("<function=") : -1], None)
        if read is None:
            break
        calls += read[0]
        at = read[1]
    if not calls or text[at:].strip():
        raise Unreadable("its <function=...> element is broken")
    return calls


def _unwrapped(value: str) -> str:
    """Return *value* without the line breaks that set it off from its tags."""
    if value.startswith("\n"):
        value = value[1:].removesuffix("\n")
    return value


def _typing(tool: Tool | None) -> Callable[[str, str], object]:
    """Return what makes values of a parameter's name and its text."""
    if tool is None:
        return lambda _, raw: raw  # whoever knows the tool mends it by the schema
    properties = properties_of(resolved(tool.parameters))
    return lambda name, raw: _typed(raw, properties.get(name))


def _typed(raw: str, schema: object) -> object:
    """Return the value that *raw* means: text where the schema takes text."""
    if _takes_text(schema):
        return raw
    text = raw.strip()
    if not schema and not (text[:1] in '{["' or _LITERAL.fullmatch(text)):
        return raw
    try:
        return written.parse(text)
    except Unreadable:
        return raw


def _takes_text(schema: object) -> bool:
    """Tell whether a string fits *schema*, as far as its types say."""
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return kinds == "string"
    if isinstance(kinds, list):
        return "string" in kinds
    if isinstance(schema.get("enum"), list):
        return any(isinstance(value, str) for value in schema["enum"])
    unions = (schema.get(key) for key in ("anyOf", "oneOf"))
    return any(_takes_text(one) for union in unions for one in union or ())
