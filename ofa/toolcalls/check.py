"""
Whether a call's arguments fit their tool's JSON Schema, and what to tell if not.

Nothing is fetched, ``format`` is not asserted, and ``nullable: true``, OpenAPI's word,
allows null. What makes no sense in a schema (a pattern that is no regular expression,
a reference that leads nowhere) is left out, and the rest still holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import regex  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import UnknownType, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from referencing import Registry
from referencing.exceptions import Unresolvable

from .check_words import words
from .schema import (
    DEFINITIONS,
    LISTS,
    MAPS,
    SINGLES,
    SINGLES_OR_BOOLEANS,
    modern,
    properties_of,
    required_of,
    types_of,
)
from .schema_merge import without
from .values import as_json, identity, kind_of

MOST_PROBLEMS = 5
# A pattern that backtracks without end on a value it does not match would hold a
# worker for ever. Real ones take microseconds; what is not through by then, with all
# patterns of one check, does not match.
_PATTERNS_S = 0.5
_PATTERN_CHARACTERS = 2000
# References that lead to references double with every step; real schemas take some
# hundred steps a call. What is beyond is not looked at.
_STEPS = 20_000  # a second's work
_KEPT = 512  # compiled schemas; an editor's 40 tools and what `mend` tries of them
_KEPT_CHARACTERS = 16_384  # a longer schema is compiled anew: it would fill the memory

_SENSELESS = (
    ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, UnknownType,
    Unresolvable, ValueError, regex.error,
)  # fmt: skip

Json = Any
Checker = Any  # the library makes its classes, and names none
Keyword = Callable[[Checker, Json, Json, Json], Iterator[ValidationError] | None]


def problems(arguments: object, parameters: object) -> tuple[str, ...]:
    """
    Return what is wrong with *arguments*, at most `MOST_PROBLEMS` lines; () if nothing.

    Each line names the place and the rule for a model to read. *parameters* is a
    tool's schema as the client sent it, or one that `schema.resolved` made of it.
    """
    run = _RUN.set(_Run())
    found: dict[str, None] = {}
    try:
        for error in _validator(parameters).iter_errors(arguments):
            found |= dict.fromkeys(words(error))
            if len(found) >= MOST_PROBLEMS:
                break
    finally:
        _RUN.reset(run)
    return tuple(found)[:MOST_PROBLEMS]


def fits(value: object, schema: object) -> bool:
    """Tell whether *value* fits *schema*."""
    run = _RUN.set(_Run())
    try:
        return next(_validator(schema).iter_errors(value), None) is None
    finally:
        _RUN.reset(run)


@dataclass
class _Run:
    """How far one check is: what it is within, and how much it may still look at."""

    within: set[tuple[int, int]] = field(default_factory=set)
    steps: int = _STEPS
    patterns_s: float = _PATTERNS_S  # of processor time


_RUN: ContextVar[_Run] = ContextVar("ofa.toolcalls.check")


def _validator(parameters: object) -> Checker:
    try:
        text = as_json(parameters)
    except RecursionError:  # deeper than any request may be
        text = "true"
    if len(text) > _KEPT_CHARACTERS:
        return _compiled.__wrapped__(text)
    return _compiled(text)


@lru_cache(maxsize=_KEPT)
def _compiled(text: str) -> Checker:
    """Return what checks by the schema in *text*; its references stay within it."""
    dropped = ["$schema"]
    if '"$ref"' in text or '"patternProperties"' in text:
        # The library follows both anew here, with no guard against endless ones.
        dropped += ["unevaluatedProperties", "unevaluatedItems"]
    schema = _checkable(json.loads(text), dropped)
    try:
        return _checker()(schema, registry=Registry())
    except _SENSELESS:  # an id that is none
        return _checker()(_checkable(schema, [*dropped, "$id"]), registry=Registry())


def _checkable(schema: Json, dropped: list[str]) -> Json:
    """
    Return *schema* in the spelling of the one draft that it is checked by.

    A ``$schema`` within would hand its part to checks that have no guards.
    """
    if not isinstance(schema, dict):
        return {"not": {}} if schema is False else {}  # the library loses the place
    node = without(modern(schema), *dropped)
    for limit in ("Minimum", "Maximum"):  # draft 4 says whether the limit is in
        if node.get(f"exclusive{limit}") is True:
            node[f"exclusive{limit}"] = node.pop(limit.lower(), None)
    for key, value in node.items():
        if key in (*MAPS, *DEFINITIONS) and isinstance(value, dict):
            node[key] = {name: _checkable(one, dropped) for name, one in value.items()}
        elif key in LISTS and isinstance(value, list):
            node[key] = [_checkable(one, dropped) for one in value]
        elif key in SINGLES or (key in SINGLES_OR_BOOLEANS and value is not False):
            node[key] = _checkable(value, dropped)
    return node


@cache
def _checker() -> Checker:
    """Return the library's checks of draft 2020-12, guarded, and some of our own."""
    draft = Draft202012Validator
    own: dict[str, Keyword] = {
        "$ref": _followed(draft.VALIDATORS["$ref"]),
        "$dynamicRef": _followed(draft.VALIDATORS["$dynamicRef"]),
        "type": _type,
        "required": _required,
        "enum": _enum,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {**draft.VALIDATORS, **own}
    keywords.pop("format")
    return extend(draft, {key: _guarded(check) for key, check in keywords.items()})


def _guarded(check: Keyword) -> Keyword:
    """Return *check*, which finds nothing where the keyword's value makes no sense."""

    def guarded(
        validator: Checker, value: Json, instance: Json, schema: Json
    ) -> Iterator[ValidationError]:
        if instance is None and schema.get("nullable") is True:
            return
        try:
            yield from check(validator, value, instance, schema) or ()
        except _SENSELESS:
            return

    return guarded


def _followed(check: Keyword) -> Keyword:
    """Return *check* of a reference, which goes in no circles and ends."""

    def followed(
        validator: Checker, value: Json, instance: Json, schema: Json
    ) -> Iterator[ValidationError]:
        run, here = _RUN.get(), (id(schema), id(instance))
        run.steps -= 1
        if here in run.within or run.steps < 0:
            return
        run.within.add(here)
        try:
            yield from check(validator, value, instance, schema) or ()
        finally:
            run.within.discard(here)

    return followed


def _type(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    """Check the type as `types_of` reads it; a name that means nothing allows all."""
    kinds, kind = types_of(schema), kind_of(instance)
    if kinds and kind not in kinds and not (kind == "integer" and "number" in kinds):
        yield ValidationError("type")


def _required(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    if isinstance(instance, dict) and not instance.keys() >= set(required_of(schema)):
        yield ValidationError("required")


def _enum(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    if isinstance(value, list) and identity(instance) not in map(identity, value):
        yield ValidationError("enum")


def _matches(pattern: str, text: str) -> bool:
    """
    Tell whether *pattern* is found in *text*, in the time that is left for patterns.

    Raises an error of `_SENSELESS` if it is too long, or no regular expression.
    """
    if len(pattern) > _PATTERN_CHARACTERS:
        raise ValueError("the pattern is too long")
    run, began_s = _RUN.get(), time.thread_time()
    if run.patterns_s <= 0:
        return False
    try:
        limit_s = run.patterns_s
        found = regex.search(pattern, text, timeout=limit_s, concurrent=True)
    except TimeoutError:
        run.patterns_s = 0
        return False
    run.patterns_s -= time.thread_time() - began_s
    return found is not None


def _pattern(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError("pattern")


def _pattern_properties(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for name, one in instance.items():
            for pattern, inner in value.items():
                if _matches(pattern, name):
                    yield from validator.descend(one, inner, path=name)


def _additional_properties(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = properties_of(schema), schema.get("patternProperties") or ()
    for name, one in instance.items():
        if name in known or any(_matches(pattern, name) for pattern in patterns):
            continue
        if value is False:
            yield ValidationError("additionalProperties")
            return
        yield from validator.descend(one, value, path=name)


def _unique_items(
    validator: Checker, value: Json, instance: Json, schema: Json
) -> Iterator[ValidationError]:
    """Check in one go what the library compares pair by pair."""
    if value is not True or not isinstance(instance, list):
        return
    if len(set(map(identity, instance))) < len(instance):
        yield ValidationError("uniqueItems")
