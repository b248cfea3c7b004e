"""
One value against its row: the type, the range, the words for what is wrong.

Knows TOML's types and the environment's text; nothing of files or of which keys
there are.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from .config_schema import UPSTREAM_FEATURES, Row

_WORDS = {"true": True, "yes": True, "on": True, "1": True}
_WORDS |= {"false": False, "no": False, "off": False, "0": False}
_TYPE_NAMES = (  # bool before int: true is an integer to Python
    (bool, "true or false"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (tuple, "a list"),
    (dict, "a table"),
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LISTED = re.compile(r"\s*,\s*")


def accept(row: Row, value: Any) -> Any:  # noqa: ANN401 - a row's type is its own
    """Return TOML's *value* as the row's type. Raises ValueError with what is wrong."""
    for kind in _alternatives(row.kind):
        if _fits(kind, value):
            return _in_range(row, _as_kind(kind, value))
    raise ValueError(f"expected {_expected(row.kind)}, got {_type_name(value)}")


def accept_text(row: Row, text: str) -> Any:  # noqa: ANN401 - likewise
    """Return an environment variable's *text* as the row's type, as `accept` does."""
    for kind in _alternatives(row.kind):
        value = _read(kind, text.strip())
        if value is not None:
            return accept(row, value)
    raise ValueError(f"expected {_expected(row.kind)}")


def choices(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - an annotation
    """Return the words that a row's type allows, if it names any."""
    named = (one for one in _alternatives(kind) if get_origin(one) is Literal)
    return tuple(word for one in named for word in get_args(one))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that names the one most like *word*, or ""."""
    close = difflib.get_close_matches(word, tuple(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def check_url(url: str) -> None:
    """Raise ValueError unless *url* is http or https, with a host and no secrets."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "a key does not belong into the URL: upstream_key_file holds it"
        )


def check_urls(urls: tuple[str, ...]) -> None:
    """Raise ValueError unless each is a URL that `check_url` accepts."""
    for url in urls:
        check_url(url)


def check_features(features: tuple[str, ...]) -> None:
    """Raise ValueError unless each is ``auto`` or a feature of an upstream."""
    known = ("auto", *UPSTREAM_FEATURES)
    for feature in features:
        if feature not in known:
            raise ValueError(
                f'"{feature}" is none of {", ".join(known)}{nearest(feature, known)}'
            )


def check_origins(origins: tuple[str, ...]) -> None:
    """Raise ValueError unless each is one exact web origin."""
    for origin in origins:
        parts = urlsplit(origin)
        exact = f"{parts.scheme}://{parts.netloc}" == origin and "*" not in origin
        if not exact or parts.scheme not in ("http", "https") or "@" in origin:
            raise ValueError("expected exact origins such as https://chat.example:8443")


def check_hosts(hosts: tuple[str, ...]) -> None:
    """Raise ValueError unless each is a bare host name; the port is any."""
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host):
            raise ValueError("expected host names without port, such as node12.example")


def _alternatives(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(one for one in get_args(kind) if one is not type(None))
    return (kind,)


def _fits(kind: Any, value: Any) -> bool:  # noqa: ANN401 - likewise
    if get_origin(kind) is Literal:
        return type(value) is str and value in get_args(kind)
    if get_origin(kind) is tuple:
        listed = isinstance(value, list | tuple)
        return listed and all(type(item) is str for item in value)
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind


def _as_kind(kind: Any, value: Any) -> Any:  # noqa: ANN401 - likewise
    if get_origin(kind) is tuple:
        return tuple(value)
    return float(value) if kind is float else value


def _in_range(row: Row, value: Any) -> Any:  # noqa: ANN401 - likewise
    texts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(text, str) and _CONTROL.search(text) for text in texts):
        raise ValueError("holds a line break or another control character")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low = -math.inf if row.low is None else row.low
        high = math.inf if row.high is None else row.high
        if not low <= value <= high:
            raise ValueError(f"{value} is not within {row.low} to {row.high}")
    return value


def _read(kind: Any, text: str) -> Any:  # noqa: ANN401 - likewise
    """Return *text* as *kind*, or None where it is none."""
    if get_origin(kind) is Literal:
        return text if text in get_args(kind) else None
    if get_origin(kind) is tuple:
        return [item for item in _LISTED.split(text) if item]
    if kind is bool:
        return _WORDS.get(text.lower())
    if kind is int:
        return int(text) if _INTEGER.fullmatch(text) else None
    if kind is float:
        return _number(text)
    return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _expected(kind: Any) -> str:  # noqa: ANN401 - likewise
    names = []
    for one in _alternatives(kind):
        if get_origin(one) is Literal:
            names += [f'"{choice}"' for choice in get_args(one)]
        elif get_origin(one) is tuple:
            names.append("a list of strings")
        else:
            names.append(dict(_TYPE_NAMES)[one])
    return " or ".join(names)


def _type_name(value: Any) -> str:  # noqa: ANN401 - likewise
    if isinstance(value, str):
        return f'"{value}"' if value.isidentifier() and len(value) < 20 else "a string"
    if isinstance(value, bool):
        return str(value).lower()
    names = (name for kind, name in _TYPE_NAMES if isinstance(value, kind))
    return next(names, "a date or time")
