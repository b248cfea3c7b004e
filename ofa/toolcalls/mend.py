"""
Arguments that almost fit their schema, made to fit where one reading does.

Knows schemas and values; nothing of models. A value that fits is left alone, one that
two readings would make fit as well; nothing is dropped but a null nobody asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .base import Unreadable
from .check import fits
from .loose_json import read_json
from .schema import properties_of, required_of, resolved, types_of
from .schema_merge import Schema
from .values import as_json, identity, kind_of

_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?"
)
_WORDS = {"true": True, "false": False}
_NULLS = ("null", "None")
_NOT_IN_KEYS = re.compile(r"[\s_-]+")

Json = Any
# What one way of reading a value gave, and the repairs that took.
Reading = tuple[Json, tuple[str, ...]]


def mend(
    arguments: dict[str, Any], parameters: object
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Return *arguments* as their schema wants them, and the repairs, each once.

    ``type``: a number or a truth value in quotes, or the other way round. ``encoded``:
    an object or list as a JSON text. ``list``: one value where a list of such is
    wanted. ``enum``: another case. ``null``: an optional key that may not be null is
    left out. ``key``: another spelling of a property. What can't be made to fit stays
    as it is; the arguments given are not changed.
    """
    schema = resolved(parameters)
    value, repairs = _mended(arguments, schema)
    return value, tuple(dict.fromkeys(repairs))


def folded(name: str) -> str:
    """Return *name* without what models get wrong in names: case, blanks, _ and -."""
    return _NOT_IN_KEYS.sub("", name).casefold()


def _mended(value: Json, schema: Schema) -> Reading:
    """Return *value* so that it fits, or as close to that as one reading leads."""
    if fits(value, schema):
        return value, ()
    value, repairs = _typed(value, schema)
    for branch in schema.get("allOf", ()):
        value, more = _mended(value, branch)
        repairs += more
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if branches and not fits(value, schema):
        value, more = _only(
            value, schema, (_mended(value, branch) for branch in branches)
        )
        repairs += more
    return value, repairs


def _only(value: Json, schema: Schema, readings: Iterable[Reading]) -> Reading:
    """Return the reading that fits *schema* if all that do are one; else *value*."""
    fitting = [reading for reading in readings if fits(reading[0], schema)]
    if len({identity(read) for read, _ in fitting}) != 1:
        return value, ()
    return fitting[0]


def _typed(value: Json, schema: Schema) -> Reading:
    """Return *value* in a type that *schema* allows, and what is in it mended."""
    kinds, kind = types_of(schema), kind_of(value)
    if not kinds or kind in kinds or (kind == "integer" and "number" in kinds):
        return _INSIDE[kind](value, schema) if kind in _INSIDE else (value, ())
    readings = (reading for name in kinds for reading in _AS[name](value, schema))
    return _only(value, schema, readings)


def _object(value: dict[str, Json], schema: Schema) -> Reading:
    known, more = properties_of(schema), schema.get("additionalProperties")
    needed, names = required_of(schema), _names(value, schema)
    members: dict[str, Json] = {}
    repairs: list[str] = []
    for written, one in value.items():
        name = names.get(written, written)
        repairs += ["key"] if name != written else []
        inner = known.get(name, more if isinstance(more, dict) else {})
        is_optional = name in known and name not in needed
        if one is None and is_optional and not fits(None, inner):
            repairs.append("null")
            continue
        members[name], mended = _mended(one, inner)
        repairs += mended
    return members, tuple(repairs)


def _names(value: dict[str, Json], schema: Schema) -> dict[str, str]:
    """Return the properties that keys which may not be there can only stand for."""
    known, needed = properties_of(schema), required_of(schema)
    is_closed = schema.get("additionalProperties") is False
    meant: dict[str, list[str]] = {}
    for name in known:
        if name not in value and (is_closed or name in needed):
            meant.setdefault(folded(name), []).append(name)
    found: dict[str, list[str]] = {}
    for written in value.keys() - known.keys():
        found.setdefault(folded(written), []).append(written)
    return {
        written[0]: meant[fold][0]
        for fold, written in found.items()
        if len(written) == 1 and len(meant.get(fold, ())) == 1
    }


def _array(value: list[Json], schema: Schema) -> Reading:
    first, rest = schema.get("prefixItems", ()), schema.get("items", {})
    items: list[Json] = []
    repairs: tuple[str, ...] = ()
    for place, one in enumerate(value):
        item, more = _mended(one, first[place] if place < len(first) else rest)
        items.append(item)
        repairs += more
    return items, repairs


def _word(value: str, schema: Schema) -> Reading:
    """Return the one of the allowed strings that *value* is but for case."""
    allowed, fold = schema.get("enum", ()), value.strip().casefold()
    if value in allowed:
        return value, ()
    words = [
        word for word in allowed if isinstance(word, str) and word.casefold() == fold
    ]
    return (words[0], ("enum",)) if len(words) == 1 else (value, ())


def _as_number(value: Json, _: Schema) -> Iterator[Reading]:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        yield json.loads(value), ("type",)


def _as_boolean(value: Json, _: Schema) -> Iterator[Reading]:
    if isinstance(value, str) and value.strip().casefold() in _WORDS:
        yield _WORDS[value.strip().casefold()], ("type",)


def _as_string(value: Json, schema: Schema) -> Iterator[Reading]:
    # Not a fraction: 3.10 would have lost its nought by now.
    if isinstance(value, bool | int):
        text, repairs = _word(as_json(value), schema)
        yield text, ("type", *repairs)


def _as_null(value: Json, _: Schema) -> Iterator[Reading]:
    if isinstance(value, str) and value.strip() in _NULLS:
        yield None, ("type",)


def _as_object(value: Json, schema: Schema) -> Iterator[Reading]:
    inner, repairs = _decoded(value)
    if isinstance(inner, dict):
        inner, more = _mended(inner, schema)
        yield inner, (*repairs, *more)


def _as_array(value: Json, schema: Schema) -> Iterator[Reading]:
    inner, repairs = _decoded(value)
    if not isinstance(inner, list):
        if value is None:
            return
        inner, repairs = [value], ("list",)
    inner, more = _mended(inner, schema)
    yield inner, (*repairs, *more)


def _decoded(value: Json) -> Reading:
    """Return the object or list that *value* holds as a text; else None."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", "`")):
        return None, ()
    try:
        inner, repairs = read_json(value)
    except Unreadable:
        return None, ()
    return inner, ("encoded", *repairs)


_INSIDE: dict[str, Callable[[Any, Schema], Reading]] = {
    "object": _object,
    "array": _array,
    "string": _word,
}
_AS: dict[str, Callable[[Json, Schema], Iterator[Reading]]] = {
    "object": _as_object,
    "array": _as_array,
    "string": _as_string,
    "integer": _as_number,
    "number": _as_number,
    "boolean": _as_boolean,
    "null": _as_null,
}
