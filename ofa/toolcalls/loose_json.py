"""
JSON as models write it: read strictly if that goes, tolerantly if there is one reading.

Takes time in proportion to the text, runs nothing and guesses nothing: a text that was
cut, or that could mean two things, is `Unreadable`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from .base import Unreadable

MAX_DEPTH = 64  # containers in containers, as in request bodies

_FENCED = re.compile(r"```[\w+-]*[ \t]*\r?\n?(.*?)```", re.DOTALL)
_BLANK = re.compile(r"[ \t\r\n\u00a0\ufeff]*+")
_COMMENT = re.compile(r"//[^\n]*+|#[^\n]*+|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][+-]?[0-9]++)?")
_WORD = re.compile(r"[A-Za-z_$][\w$-]*+")
_STOP = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CONTROL = re.compile(r"[\x00-\x1f]")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r",
    "t": "\t",
}  # fmt: skip
_LITERALS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": True, "False": False, "None": None}
_CUT = "the JSON ends before it is complete"


def read_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """
    Return the value in *text*, and what had to be mended to read it, each word once.

    Mended are: a ``fence`` around it, ``comments``, a trailing ``comma``, single
    ``quotes``, ``keys`` without quotes, Python's ``literals``, raw ``newlines`` in
    strings, and ``escapes`` that JSON has not. Raises `Unreadable`, which says where.
    """
    text = text.strip()
    repairs: tuple[str, ...] = ()
    fenced = _FENCED.fullmatch(text)
    if fenced:
        text, repairs = fenced[1].strip(), ("fence",)
    try:
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_float, parse_int=_int
        )
        _check_depth(value)
    except (json.JSONDecodeError, RecursionError):
        reader = _Reader(text)
        value = reader.whole()
        repairs += tuple(reader.repairs)
    _check_characters(text, value)
    return value, repairs


def read_object(value: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Return *value* as an object: itself, or the one that it holds as a JSON text.

    A text within a text counts as the repair ``encoded``. Raises `Unreadable`.
    """
    repairs: tuple[str, ...] = ()
    if isinstance(value, str):
        value, repairs = read_json(value)
        if isinstance(value, str):
            value, more = read_json(value)
            repairs = tuple(dict.fromkeys((*repairs, "encoded", *more)))
    if not isinstance(value, dict):
        raise Unreadable("the arguments must be one JSON object")
    return value, repairs


def _refuse(word: str) -> NoReturn:
    raise Unreadable(f"{word} is no JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Unreadable("a number is too large")
    return value


def _int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # over 4300 digits Python refuses
        raise Unreadable("a number is too large") from None


def _check_depth(value: object) -> None:
    stack = [(value, 0)]
    while stack:
        here, depth = stack.pop()
        if isinstance(here, dict | list):
            if depth >= MAX_DEPTH:
                raise Unreadable(f"the JSON is nested over {MAX_DEPTH} levels deep")
            inner = here.values() if isinstance(here, dict) else here
            stack += [(one, depth + 1) for one in inner]


def _check_characters(text: str, value: object) -> None:
    """Refuse half characters: no answer could carry them."""
    if "\\u" in text or not text.isascii():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Unreadable("a string holds half a character") from None


class _Reader:
    """A recursive descent over *text*; every step moves on or raises."""

    def __init__(self, text: str) -> None:
        self.repairs: dict[str, None] = {}
        self._text = text
        self._at = 0

    def whole(self) -> Any:  # noqa: ANN401 - JSON
        """Return the one value there is."""
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            self._fail("there is more behind the JSON")
        return value

    def _value(self, depth: int) -> Any:  # noqa: ANN401 - JSON
        mark = self._skip()
        if mark in ("{", "["):
            if depth >= MAX_DEPTH:
                self._fail(f"the JSON is nested over {MAX_DEPTH} levels deep")
            self._at += 1
            return self._object(depth) if mark == "{" else self._array(depth)
        if mark in _STOP:
            return self._string(mark)
        number = _NUMBER.match(self._text, self._at)
        if number:
            return self._number(number)
        return self._literal()

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while self._skip() != "}":
            key = self._key()
            if self._skip() != ":":
                self._fail("a ':' is missing")
            self._at += 1
            members[key] = self._value(depth + 1)
            if not self._goes_on("}"):
                break
        self._at += 1
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while self._skip() != "]":
            items.append(self._value(depth + 1))
            if not self._goes_on("]"):
                break
        self._at += 1
        return items

    def _goes_on(self, end: str) -> bool:
        """Step over a comma, and tell whether there was one."""
        mark = self._skip()
        if mark == end:
            return False
        if mark != ",":
            self._fail(f"a ',' or '{end}' is missing")
        self._at += 1
        if self._skip() == end:
            self.repairs["comma"] = None
        return True

    def _key(self) -> str:
        mark = self._skip()
        if mark in _STOP:
            return self._string(mark)
        word = _WORD.match(self._text, self._at)
        if word is None:
            self._fail("a key is missing")
        self._at = word.end()
        self.repairs["keys"] = None
        return word[0]

    def _string(self, quote: str) -> str:
        if quote == "'":
            self.repairs["quotes"] = None
        self._at += 1
        parts = []
        while True:
            stop = _STOP[quote].search(self._text, self._at)
            if stop is None:
                raise Unreadable(_CUT)
            plain = self._text[self._at : stop.start()]
            if _CONTROL.search(plain):
                self.repairs["newlines"] = None
            parts.append(plain)
            self._at = stop.end()
            if stop[0] == quote:
                return "".join(parts)
            parts.append(self._escape(quote))

    def _escape(self, quote: str) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter == "u":
            return self._code()
        if letter in _ESCAPES or letter == quote:
            return _ESCAPES.get(letter, letter)
        self.repairs["escapes"] = None
        return letter if letter == "'" else "\\" + letter

    def _code(self) -> str:
        code = self._digits()
        if 0xD800 <= code < 0xDC00 and self._text.startswith("\\u", self._at):
            self._at += 2
            pair = code.to_bytes(2, "big") + self._digits().to_bytes(2, "big")
            return pair.decode("utf-16-be", "surrogatepass")
        return chr(code)

    def _digits(self) -> int:
        digits = _HEX.match(self._text, self._at)
        if digits is None:
            self._fail("an escape lacks its four digits")
        self._at = digits.end()
        return int(digits[0], 16)

    def _number(self, number: re.Match[str]) -> int | float:
        self._at = number.end()
        if _WORD.match(self._text, self._at) or self._text[self._at : self._at + 1] in (
            *".0123456789",
        ):
            self._fail("a number is no JSON number")
        is_float = number[1] or number[2]
        return _float(number[0]) if is_float else _int(number[0])

    def _literal(self) -> bool | None:
        word = _WORD.match(self._text, self._at)
        if word is None:
            self._fail("a value is missing")
        if word[0] in _PYTHON:
            self.repairs["literals"] = None
        elif word[0] not in _LITERALS:
            self._fail("a value is neither quoted nor a JSON value")
        self._at = word.end()
        return {**_LITERALS, **_PYTHON}[word[0]]

    def _skip(self) -> str:
        """Step over blanks and comments; return the character that follows, if any."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            comment = _COMMENT.match(self._text, self._at)
            if comment is None:
                return self._text[self._at : self._at + 1]
            self._at = comment.end()
            self.repairs["comments"] = None

    def _fail(self, why: str) -> NoReturn:
        if self._at >= len(self._text):
            raise Unreadable(_CUT)
        raise Unreadable(f"{why} (character {self._at + 1} of the JSON)")
