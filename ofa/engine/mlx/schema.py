"""
What a JSON Schema may be before a grammar is made of it.

Knows JSON Schema; nothing of tokens or models. The limits keep a schema from costing
more than the answer it is for: below them llguidance makes a grammar in half a second
of one core at most, beyond them it can take minutes, or give what is not valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import lcm
from typing import Any, TypeGuard
from urllib.parse import unquote

from ...errors import BadRequest

_MOST_CHARS = 128 * 1024
_MOST_PARTS = 2000  # objects and arrays; 2000 properties take 0.4 s, 5000 take 2.3 s
_DEEPEST = 100  # llguidance reads 128, with what stands around the schema
_MOST_PATTERNS = 64  # each pair of patternProperties is compared: 200 take 0.9 s
# A step of 9973 takes 0.04 s, one of 999983 takes 10 s and 0.4 GB. Where several meet
# in one number it is their common multiple that counts.
_MOST_STEP = 10_000
_EXACT = 2**53  # beyond it numbers are rounded, and so are the limits made of them

# What llguidance says of a schema, and what is wrong with the request then.
_REFUSALS = (
    (r"Unimplemented keys: \[(.*)\]", "{0} can't be enforced; leave it out", True),
    (r"Unknown format: (.*)", 'the string format "{0}" can\'t be enforced', True),
    (r"oneOf constraints", "oneOf can't be enforced where its options may overlap; "
     "use anyOf", True),
    (r"look-around", "pattern: look-around can't be enforced", True),
    (r"Resource '(.*?)' is not present", "{0} is not within the schema, and nothing "
     "is fetched", True),
    (r"only supported|not supported|too many digits|not disjoint|Unable to determine"
     r"|Failed to generate regex", "{line}", True),
    (r"Unsatisfiable schema: (.*)", "no value fits the schema: {0}", False),
    (r"NoExtension", "no value fits the schema", False),
    (r"too (?:big|large|complex|many)|fuel|Too many|symbols\.len", "the schema is too "
     "complex to be enforced; make it smaller", False),
    (r"regex parse error(?:.|\n)*error: (.*)", "pattern: {0}", False),
)  # fmt: skip

Node = dict[str, Any] | list[Any]


def check_schema(schema: Mapping[str, Any], param: str) -> str:
    """
    Return *schema* as JSON, in its own order: that is the answer's.

    Raises `BadRequest` for one that is too much, has no finite value or asks for
    what a grammar would get wrong.
    """
    text = check_size(schema, param)
    _check_keywords(dict(schema), param)
    check_finite(schema, param)
    return text


def check_finite(schema: Mapping[str, Any], param: str) -> None:
    """Raise `BadRequest` where no answer could come to its end."""
    if not _is_finite(schema, _finite_targets(schema)):
        raise _refused(
            param,
            "no finite value fits the schema: a $ref that has to be followed leads "
            "back to itself",
        )


def check_size(schema: Mapping[str, Any], param: str) -> str:
    """Return *schema* as JSON; raises `BadRequest` for one that is too much to read."""
    if not isinstance(schema, Mapping):
        raise _refused(param, "the schema has to be a JSON object")
    for parts, (_, depth) in enumerate(_walk(dict(schema)), 1):
        if depth > _DEEPEST:
            raise _refused(param, f"the schema is nested over {_DEEPEST} levels deep")
        if parts > _MOST_PARTS:
            raise _refused(
                param, f"the schema has over {_MOST_PARTS} objects and arrays"
            )
    try:
        text = json.dumps(schema, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise _refused(param, "the schema holds a number that JSON has not") from None
    if len(text) > _MOST_CHARS:
        raise _refused(param, f"the schema has over {_MOST_CHARS} characters")
    return text


def _walk(schema: dict[str, Any]) -> Iterator[tuple[Node, int]]:
    """Yield every object and array of *schema* with its depth."""
    left: list[tuple[Node, int]] = [(schema, 1)]
    while left:
        node, depth = left.pop()
        yield node, depth
        inner = node.values() if isinstance(node, dict) else node
        left.extend(
            (part, depth + 1) for part in inner if isinstance(part, dict | list)
        )


def _check_keywords(schema: dict[str, Any], param: str) -> None:
    """Refuse what llguidance would take for ever over, or get wrong in silence."""
    step, patterns = 1, 0
    for node, _ in _walk(schema):
        inner = node.values() if isinstance(node, dict) else node
        if any(_is_number(value) and abs(value) > _EXACT for value in inner):
            raise _unable(param, "numbers beyond 2^53 can't be kept exact")
        if isinstance(node, list):
            continue
        step = lcm(step, _step(node.get("multipleOf")))
        named = node.get("patternProperties")
        patterns += len(named) if isinstance(named, dict) else 0
        _check_least(node, param)
    if step > _MOST_STEP:
        raise _unable(
            param,
            f"multipleOf: the schema's steps have {step} as their common multiple, "
            f"zeros at its end aside; {_MOST_STEP} is the most",
        )
    if patterns > _MOST_PATTERNS:
        raise _unable(param, f"patternProperties: at most {_MOST_PATTERNS} patterns")


def _check_least(node: dict[str, Any], param: str) -> None:
    """
    Refuse a `minProperties` that keys could fill by coming twice.

    A grammar keeps the named properties apart, but not the other keys.
    """
    least, required = node.get("minProperties"), node.get("required")
    sure = len(required) + 1 if isinstance(required, list) else 1
    if _is_number(least) and least > sure:
        raise _unable(
            param, f"minProperties: {least} is over the number of required ones + 1"
        )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step(value: object) -> int:
    """Return a step's digits without the zeros at their end; 1 for no step."""
    if not _is_number(value):
        return 1
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


# -- whether a value can come to its end -------------------------------------------


def _finite_targets(schema: Mapping[str, Any]) -> Mapping[str, bool]:
    """Return for each `$ref` of *schema* whether some finite value fits it."""
    finite: dict[str, bool] = {}
    targets: dict[str, object] = {}
    for node, _ in _walk(dict(schema)):
        ref = node.get("$ref") if isinstance(node, dict) else None
        if isinstance(ref, str):
            targets[ref] = _find(schema, ref)
            finite[ref] = targets[ref] is None  # llguidance says what is wrong there
    order, grew = list(targets), True
    while grew:
        grew = False
        for ref in order:
            if not finite[ref] and _is_finite(targets[ref], finite):
                finite[ref] = grew = True
        order.reverse()  # chains of definitions run either way
    return finite


def _find(schema: Mapping[str, Any], ref: str) -> object | None:
    """Return what the JSON pointer of *ref* names; None for any other reference."""
    at: Any = schema
    if ref not in ("", "#") and not ref.startswith("#/"):
        return None
    for part in ref.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdigit() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, Mapping) and name in at:
            at = at[name]
        else:
            return None
    found: object = at
    return found


def _is_finite(node: object, finite: Mapping[str, bool]) -> bool:
    """Return whether a finite value may fit *node*, as far as *finite* knows."""
    if not isinstance(node, Mapping):
        return True
    ref = node.get("$ref")
    if isinstance(ref, str) and not finite.get(ref, True):
        return False
    for name in ("anyOf", "oneOf"):
        options = _listed(node, name)
        if options and not any(_is_finite(option, finite) for option in options):
            return False
    return all(_is_finite(part, finite) for part in _needed(node))


def _needed(node: Mapping[str, Any]) -> list[object]:
    """Return the schemas of all that a value of *node* can't do without."""
    needed = list(_listed(node, "allOf"))
    if node.get("type") == "object" and isinstance(node.get("properties"), Mapping):
        named = node["properties"]
        needed += [
            named[name]
            for name in _listed(node, "required")
            if isinstance(name, str) and name in named
        ]
    least = node.get("minItems")
    if node.get("type") == "array" and isinstance(least, int) and least > 0:
        first = _listed(node, "prefixItems")[:least]
        needed += first
        if len(first) < least:
            needed.append(node.get("items"))
    return needed


def _listed(node: Mapping[str, Any], name: str) -> list[Any]:
    value = node.get(name)
    return value if isinstance(value, list) else []


def _refused(param: str, message: str) -> BadRequest:
    return BadRequest(f"{param}: {message}", param=param)


def _unable(param: str, message: str) -> BadRequest:
    return BadRequest(f"{param}: {message}", param=param, code="unsupported_value")


# -- what llguidance says ----------------------------------------------------------


def refusal(said: str, param: str, where: str = "") -> BadRequest:
    """Return what to tell a client of llguidance's words on its schema."""
    message, unable = f"the schema can't be used: {first_line(said)}", False
    for pattern, told, known in _REFUSALS:
        found = re.search(pattern, said)
        if found:
            message = told.format(*found.groups(), line=first_line(said))
            unable = known
            break
    code = "unsupported_value" if unable else "invalid_value"
    return BadRequest(f"{param}: {where}{message[:300]}", param=param, code=code)


def first_line(said: str) -> str:
    """Return the first of what llguidance *said*."""
    return (said.strip().splitlines() or ["unknown"])[0][:200]
