"""
Calls written as JSON, whatever stands around them.

Knows where a JSON value ends in text that is still being written, and under which
keys models put a tool's name and its arguments; nothing of tags, fences or tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from .base import Found, Unreadable
from .loose_json import read_json, read_object

NAMES = ("name", "tool", "function")
ARGUMENTS = ("arguments", "args", "parameters", "input")

_POINT = re.compile(r'["{}\[\]]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BETWEEN = re.compile(r"[\s,;]*")


def dump(value: object) -> str:
    """Return *value* as JSON in the spacing that models were trained on."""
    return json.dumps(value, ensure_ascii=False)


def value_end(text: str, start: int) -> int | None:
    """Return where the object or array that begins at *start* ends, if it does."""
    depth = 0
    at = start
    while point := _POINT.search(text, at):
        at = point.end()
        if point[0] == '"':
            string = _STRING.match(text, point.start())
            if string is None:
                return None
            at = string.end()
            continue
        depth += 1 if point[0] in "{[" else -1
        if depth <= 0:
            return at
    return None


def in_string(text: str, start: int, place: int) -> bool:
    """Tell whether *place* lies within a string of the JSON that begins at *start*."""
    at = start
    while (quote := text.find('"', at, place)) >= 0:
        string = _STRING.match(text, quote)
        if string is None or string.end() > place:
            return True
        at = string.end()
    return False


def parse(text: str) -> object:
    """Return the one value that *text* is JSON of, to the letter; may raise."""
    value, repairs = read_json(text)
    if repairs:
        raise Unreadable(f"it is no valid JSON: {', '.join(repairs)}")
    return value


def read_calls(text: str) -> list[Found]:
    """Return the calls that *text* is JSON of, mended if it must; may raise."""
    try:
        values = [read_json(text)]
    except Unreadable:
        values = list(_several(text))
        if not values:
            raise
    calls = [call for value, repairs in values for call in founds(value, repairs)]
    if not calls:
        raise Unreadable("there is no call in it")
    return calls


def founds(value: object, repairs: tuple[str, ...] = ()) -> Iterator[Found]:
    """Yield the calls that *value* is; raises `Unreadable` if it is anything else."""
    if isinstance(value, list):
        for item in value:
            yield from founds(item, repairs)
    elif isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        yield from founds(value["tool_calls"], repairs)
    elif isinstance(value, dict) and isinstance(value.get("function"), dict):
        yield from founds(value["function"], repairs)
    else:
        yield _found(value, repairs)


def _several(text: str) -> Iterator[tuple[object, tuple[str, ...]]]:
    """Yield the values that stand one behind the other; nothing if there is else."""
    values: list[tuple[object, tuple[str, ...]]] = []
    at = _skip(text, 0)
    while at < len(text):
        end = value_end(text, at) if text[at] in "{[" else None
        if end is None:
            if values and not text[at:].strip("]} \t\r\n"):
                value, repairs = values[-1]
                values[-1] = value, (*repairs, "brackets")  # one too many: a slip
                break
            return
        values.append(read_json(text[at:end]))
        at = _skip(text, end)
    yield from values


def _skip(text: str, at: int) -> int:
    blank = _BETWEEN.match(text, at)
    return blank.end() if blank else at


def _found(value: object, repairs: tuple[str, ...]) -> Found:
    if not isinstance(value, dict):
        raise Unreadable("a call is a JSON object with a name and arguments")
    name = next((value[key] for key in NAMES if key in value), None)
    if not isinstance(name, str) or not name:
        raise Unreadable('the call has no "name"')
    keys = [key for key in ARGUMENTS if key in value]
    if len(keys) > 1:
        raise Unreadable("the call has arguments twice: " + ", ".join(keys))
    if not keys and value.keys() - {*NAMES, "id", "type", "index"}:
        raise Unreadable('the call has no "arguments" object')
    given = value[keys[0]] if keys else None
    if given is None or given == "":
        return Found(name, {}, (*repairs, "arguments"))
    arguments, mended = read_object(given)
    encoded = ("encoded",) if isinstance(given, str) else ()
    return Found(name, arguments, tuple(dict.fromkeys((*repairs, *encoded, *mended))))
