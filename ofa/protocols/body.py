"""
Request bodies: bytes in, one JSON object out, or a refusal that says why.

Stricter than `json.loads` where two readers of the same bytes could disagree
(duplicate keys, NaN, other encodings) or where Python itself would give up halfway
(deep nesting, endless integers, lone surrogates). Knows nothing of any dialect.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from ..errors import BadRequest, RequestTooLarge

MAX_DEPTH = 64  # containers in containers; real requests stay under 20
MAX_JSON_BYTES = 8 << 20  # beside the payloads of images; parses in under a second

_CODE = "invalid_json"
# Possessive, with the closing quote optional: linear on any bytes, also on a string
# that never ends.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_IMAGE = re.compile(rb'"data:image/[^"\\]*+')
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read_object(raw: bytes, *, limit_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """
    Return the JSON object that *raw* holds.

    Raises `BadRequest` (``invalid_json``) for anything else, and `RequestTooLarge` if
    *raw* without its image payloads is over *limit_bytes*.
    """
    _check_size(raw, limit_bytes)
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not raw.strip(b" \t\r\n"):
        raise _refused("the body is empty; a JSON object is needed")
    _check_depth(raw)
    value = _parsed(raw)
    if not isinstance(value, dict):
        raise _refused("the body must be a JSON object")
    if _ESCAPED_SURROGATE.search(raw):
        _check_surrogates(value)
    return value


def cut(text: str, limit_bytes: int = 64) -> str:
    """
    Return *text* shortened to *limit_bytes* of UTF-8, for use in a message.

    Bytes, not characters: combining marks make one character arbitrarily long.
    """
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    return encoded[:limit_bytes].decode("utf-8", "ignore") + "..."


def _check_size(raw: bytes, limit_bytes: int) -> None:
    if len(raw) <= limit_bytes:
        return
    images = sum(match.end() - match.start() for match in _IMAGE.finditer(raw))
    if len(raw) - images > limit_bytes:
        raise RequestTooLarge(
            f"the body has {len(raw) - images} bytes of JSON beside its images; "
            f"{limit_bytes} are allowed"
        )


def _check_depth(raw: bytes) -> None:
    depth = 0
    for byte in _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            raise _refused(f"the body nests deeper than {MAX_DEPTH} levels")


def _parsed(raw: bytes) -> object:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise _refused("the body is not UTF-8") from None
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_without_duplicates,
        )
    except json.JSONDecodeError as exc:
        place = f"line {exc.lineno} column {exc.colno}"
        raise _refused(f"the body is not JSON: {exc.msg} at {place}") from None
    except ValueError:  # Python's limit on digits, which is no JSONDecodeError
        raise _refused("the body has an integer of more than 4300 digits") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _refused(f"the body has {name}, which is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _refused("the body has a number too large for a double")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _refused(f"the key {cut(twice)!r} stands twice in one object")
    return value


def _check_surrogates(root: dict[str, Any]) -> None:
    """Name the first string with half a character; a loop, for hostile nesting."""
    todo: list[tuple[str, Any]] = [("", root)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, str) and _SURROGATE.search(value):
            where = path or "the body"
            raise _refused(f"{where}: has half of a surrogate pair", param=path)
        if isinstance(value, list):
            todo.extend((f"{path}[{at}]", item) for at, item in enumerate(value))
        elif isinstance(value, dict):
            todo.extend((path, key) for key in value)
            dot = f"{path}." if path else ""
            todo.extend((f"{dot}{cut(key)}", item) for key, item in value.items())


def _refused(message: str, *, param: str | None = None) -> BadRequest:
    return BadRequest(message, param=param or None, code=_CODE)
