"""
The tools of a chat request: declarations and the choice among them.

Whether a schema can be rendered for a model is the engine's matter; here it only has
to be an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeGuard

from ..chat import Tool, ToolChoice
from ..errors import BadRequest
from .body import cut
from .openai_fields import an_object, bad, boolean, kind, string, unsupported

MAX_TOOLS = 256
NAME_RULE = "1 to 64 letters, digits, _ or -"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_tool_name(value: object) -> TypeGuard[str]:
    """Tell whether *value* may name a tool."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


@dataclass(frozen=True)
class Offer:
    """The tools that are in force, how they may be used, and what was left out."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    ignored: tuple[str, ...] = ()


def read_offer(tools: object, choice: object, *, refuse_unknown: bool = False) -> Offer:
    """
    Read ``tools`` and ``tool_choice`` together.

    With the choice ``none`` no tool is in force, so none is a reason to refuse: those
    that can't be read are left out as a whole. Tools of other types than function (a
    provider's own web search, Codex's namespaces) are left out and told, or with
    *refuse_unknown* refused.
    """
    wanted = _Choice() if choice is None else _choice(choice)
    if wanted.kind == "none":
        return Offer(_readable(tools), ToolChoice("none"))
    offered, ignored = _tools(tools, refuse_unknown=refuse_unknown)
    return Offer(*_applied(wanted, offered), ignored)


@dataclass(frozen=True)
class _Choice:
    """``tool_choice`` as sent: *names* for a named tool or for allowed_tools."""

    kind: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()


def _tools(
    value: object, *, refuse_unknown: bool
) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    if value is None:
        return (), ()
    if not isinstance(value, list):
        raise bad("tools", f"expected an array, got {kind(value)}")
    if len(value) > MAX_TOOLS:
        raise bad("tools", f"has {len(value)} tools; {MAX_TOOLS} are allowed")
    kept: dict[str, Tool] = {}
    ignored: list[str] = []
    for at, raw in enumerate(value):
        param = f"tools[{at}]"
        type_ = _type(raw, param)
        if type_ == "function":
            _add(kept, _tool(raw.get("function"), f"{param}.function"), param)
        elif refuse_unknown:
            raise bad(f"{param}.type", "must be 'function'", code="unsupported_tool")
        else:
            ignored.append(f"tools.{type_}")
    return tuple(kept.values()), tuple(dict.fromkeys(ignored))


def _readable(value: object) -> tuple[Tool, ...]:
    try:
        return _tools(value, refuse_unknown=False)[0]
    except BadRequest:
        return ()


def _type(raw: object, param: str) -> str:
    if not isinstance(raw, dict):
        raise bad(param, f"expected an object, got {kind(raw)}")
    return string(raw.get("type"), f"{param}.type")


def _add(kept: dict[str, Tool], tool: Tool, param: str) -> None:
    if tool.name in kept:
        raise bad(
            f"{param}.function.name",
            f"{tool.name!r} names two tools",
            code="invalid_tool_name",
        )
    kept[tool.name] = tool


def _tool(value: object, param: str) -> Tool:
    function = an_object(value, param)
    name, parameters = function.get("name"), function.get("parameters")
    if not is_tool_name(name):
        told = f", got {cut(name)!r}" if isinstance(name, str) else ""
        raise bad(
            f"{param}.name", f"must be {NAME_RULE}{told}", code="invalid_tool_name"
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise bad(
            f"{param}.parameters",
            f"expected a JSON schema object, got {kind(parameters)}",
            code="invalid_tool_schema",
        )
    description, strict = function.get("description"), function.get("strict")
    return Tool(
        name=name,
        description=string(description or "", f"{param}.description"),
        parameters=parameters or {},
        strict=strict is not None and boolean(strict, f"{param}.strict"),
    )


def _choice(value: object) -> _Choice:
    match value:
        case "auto" | "none" | "required":
            return _Choice(value)
        case {"type": "function", "function": {"name": str(name)}}:
            return _Choice("named", (name,))
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}:
            if mode not in ("auto", "required"):
                raise _bad_choice("mode must be auto or required", "allowed_tools.mode")
            return _Choice(mode, _allowed(tools))
        case {"type": "custom"}:
            raise unsupported("tool_choice", "custom tools are not supported")
    raise _bad_choice(
        'expected auto, none, required or {"type": "function", "function": {"name": …}}'
    )


def _allowed(value: object) -> tuple[str, ...]:
    where = "allowed_tools.tools"
    if not isinstance(value, list) or not value:
        raise _bad_choice("expected a non-empty array", where)
    names = []
    for raw in value:
        match raw:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case _:
                raise _bad_choice("expected function tools by name", where)
    return tuple(names)


def _applied(
    wanted: _Choice, tools: tuple[Tool, ...]
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Return the tools that *wanted* leaves and the choice in the engine's words."""
    _check_offered(wanted.names, tools)
    if wanted.kind == "named":
        return tools, ToolChoice("named", wanted.names[0])
    if wanted.names:
        tools = tuple(tool for tool in tools if tool.name in wanted.names)
    if wanted.kind == "required" and not tools:
        raise _bad_choice("is 'required' but the request has no tools")
    return tools, ToolChoice(wanted.kind)


def _check_offered(names: Iterable[str], tools: tuple[Tool, ...]) -> None:
    offered = {tool.name for tool in tools}
    for name in names:
        if name not in offered:
            raise _bad_choice(f"{cut(name)!r} is not among the request's tools")


def _bad_choice(why: str, below: str = "") -> BadRequest:
    return bad(f"tool_choice.{below}" if below else "tool_choice", why)
