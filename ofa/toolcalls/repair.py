"""
From a call as it was read to one that may go out, or to why there is none.

The one place where names are resolved, arguments mended and both checked; every repair
is deterministic, has one reading only, and is named. What a family or a rescue reads
goes through `settle`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..chat import Tool, ToolCall
from .base import Found
from .check import problems
from .loose_json import read_json, read_object
from .mend import folded, mend
from .values import shortened

__all__ = [
    "Refused", "Settled", "mend", "new_call_id", "read_json", "read_object",
    "resolve_name", "settle",
]  # fmt: skip

# What stands between a tool's name and the namespaces that models invent before it.
_BEFORE_NAME = re.compile(r":|\.|/|__")
_NAME = 64
_TOLD = 600  # characters of the offered names in a message


@dataclass(frozen=True)
class Settled:
    """A call that may go out, and what was mended for it, one word each."""

    call: ToolCall
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """Why a call may not go out, in one line for the model; quotes no arguments."""

    why: str


def new_call_id() -> str:
    """Return an id that no call of any conversation has."""
    return f"call_{secrets.token_hex(12)}"


def settle(
    found: Found, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id
) -> Settled | Refused:
    """Return the call that *found* is among *tools*, mended only if it has to be."""
    name = resolve_name(found.name, tools)
    if name is None:
        return Refused(_unknown(found.name, tools))
    tool = next(tool for tool in tools if tool.name == name[0])
    repairs = (*found.repairs, *(("name",) if name[1] else ()))
    arguments, wrong = found.arguments, problems(found.arguments, tool.parameters)
    if wrong:
        arguments, mended = mend(arguments, tool.parameters)
        repairs = (*repairs, *mended)
        wrong = problems(arguments, tool.parameters)
    if not wrong:
        wrong = _unsayable(arguments)
    if wrong:
        return Refused(f"{tool.name}: {'; '.join(wrong)}")
    call = ToolCall(new_id(), tool.name, arguments)
    return Settled(call, tuple(dict.fromkeys(repairs)))


def resolve_name(name: str, tools: Sequence[Tool]) -> tuple[str, bool] | None:
    """
    Return the one name of *tools* that *name* can mean, and whether that is a repair.

    That is the name itself; else what stands behind a ``:``, ``.``, ``/`` or ``__`` of
    it, or what differs from it in case, ``-`` and ``_`` only; else both at once. None
    if there is no such tool, or several.
    """
    names = list(dict.fromkeys(tool.name for tool in tools))
    if name in names:
        return name, False
    ends = set(_ends(name))
    meant = [one for one in names if one in ends or folded(one) == folded(name)]
    if not meant:
        folds = {folded(end) for end in ends}
        meant = [one for one in names if folded(one) in folds]
    return (meant[0], True) if len(meant) == 1 else None


def _ends(name: str) -> Iterator[str]:
    """Yield what stands behind each separator in *name*."""
    for separator in _BEFORE_NAME.finditer(name):
        if name[separator.end() :]:
            yield name[separator.end() :]


def _unknown(name: str, tools: Sequence[Tool]) -> str:
    offered = ", ".join(sorted(tool.name for tool in tools))
    return (
        f"there is no tool '{shortened(name, _NAME)}'; "
        f"the tools are: {shortened(offered, _TOLD) or 'none'}"
    )


def _unsayable(arguments: object) -> tuple[str, ...]:
    """Return why *arguments* can't be sent, though they fit a schema."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return ("a string holds half a character",)
    except (RecursionError, TypeError, ValueError):
        return ("the arguments hold what JSON can't",)
    return ()
