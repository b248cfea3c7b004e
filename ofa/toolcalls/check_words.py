"""
What is wrong with an argument, in words that a model can act on.

Names a place and its rule. Never quotes an argument; keys and the schema's own values
are quoted, shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]

from .schema import properties_of, required_of, types_of
from .values import as_json, kind_of, shortened

MOST = 200  # characters of one message
_NAME = 40
_VALUES = 120
_NEVER = "is not allowed"


def words(error: ValidationError) -> Iterator[str]:
    """Yield what is wrong, one thing a line of at most `MOST` characters."""
    if error.validator in ("anyOf", "oneOf"):
        inner = _meant(error)
        if inner:
            for one in inner:
                yield from words(one)
            return
    where = _path(error.absolute_path)
    if "propertyNames" in error.schema_path:
        where = f"{where}: its keys" if where else "the keys"
    rule = _RULES.get(str(error.validator), _other)(error)
    yield shortened(f"{where}: {rule}" if where else rule, MOST)


def _path(steps: Iterable[str | int]) -> str:
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + shortened(step, _NAME)
    return text if len(text) <= _VALUES else "…" + text[1 - _VALUES :]


def _meant(error: ValidationError) -> list[ValidationError]:
    """Return what is wrong with the one form that has the value's type, if one has."""
    forms: dict[Any, list[ValidationError]] = {}
    for inner in error.context or ():
        if inner.schema_path:  # else the form is `false`: nothing is meant by it
            forms.setdefault(inner.schema_path[0], []).append(inner)
    fitting = [
        errors
        for errors in forms.values()
        if not any(
            one.validator in ("type", "not") and not one.relative_path for one in errors
        )
    ]
    return fitting[0] if len(fitting) == 1 else []


def _union(error: ValidationError) -> str:
    context = list(error.context or ())
    if not context:
        return "fits several of the allowed forms, and must fit one only"
    if all(one.validator == "type" and not one.relative_path for one in context):
        kinds = dict.fromkeys(kind for one in context for kind in types_of(one.schema))
        return _must_be(kinds, error.instance)
    return "fits none of the allowed forms"


def _type(error: ValidationError) -> str:
    return _must_be(types_of(error.schema), error.instance)


def _must_be(kinds: Iterable[str], value: object) -> str:
    return f"must be {' or '.join(kinds)}, not {kind_of(value)}"


def _required(error: ValidationError) -> str:
    names = [name for name in required_of(error.schema) if name not in error.instance]
    return f"{_quoted(names)} {'is' if len(names) == 1 else 'are'} missing"


def _additional(error: ValidationError) -> str:
    known = properties_of(error.schema)
    extra = _quoted(name for name in error.instance if name not in known)
    return f"no key {extra} is allowed; known are: {_quoted(known) or 'none'}"


def _enum(error: ValidationError) -> str:
    values = as_json(error.validator_value)
    return f"must be one of {shortened(values, _VALUES)}"


def _const(error: ValidationError) -> str:
    return f"must be {shortened(as_json(error.validator_value), _VALUES)}"


def _pattern(error: ValidationError) -> str:
    return f"must match the pattern {shortened(str(error.validator_value), _VALUES)}"


def _quoted(names: Iterable[str]) -> str:
    return shortened(", ".join(f"'{shortened(n, _NAME)}'" for n in names), _VALUES)


def _not(error: ValidationError) -> str:
    return "has a form that is not allowed" if error.validator_value else _NEVER


def _limit(form: str) -> Callable[[ValidationError], str]:
    return lambda error: form.format(shortened(as_json(error.validator_value), _NAME))


def _other(error: ValidationError) -> str:
    if error.validator is None:
        return _NEVER
    return f"breaks the schema's rule {error.validator}"


_RULES: dict[str, Callable[[ValidationError], str]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "additionalProperties": _additional,
    "pattern": _pattern,
    "anyOf": _union,
    "oneOf": _union,
    "minLength": _limit("must have at least {} characters"),
    "maxLength": _limit("must have at most {} characters"),
    "minItems": _limit("must have at least {} items"),
    "maxItems": _limit("must have at most {} items"),
    "minProperties": _limit("must have at least {} keys"),
    "maxProperties": _limit("must have at most {} keys"),
    "minimum": _limit("must be at least {}"),
    "maximum": _limit("must be at most {}"),
    "exclusiveMinimum": _limit("must be more than {}"),
    "exclusiveMaximum": _limit("must be less than {}"),
    "multipleOf": _limit("must be a multiple of {}"),
    "uniqueItems": lambda _: "must have no item twice",
    "contains": lambda _: "lacks an item of the form it must contain",
    "not": _not,
}
