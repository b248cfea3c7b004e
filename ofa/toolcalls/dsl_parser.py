"""
Reading the call syntax that Gemma's tool-trained models share.

Knows the grammar and what small models make of it; nothing of tools or schemas. A
recursive descent in one pass: each character is looked at a fixed number of times,
and nesting is bounded, so what a model writes costs no more than its length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from .base import Found, Unreadable
from .dsl_writer import BARE

DEPTH = 64  # objects and lists in one another, as in requests
DIGITS = 4000  # Python itself refuses to read integers of more than 4,300

_BLANKS = re.compile(r"\s*")
_NAME = re.compile(r"[^\s{}]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z]+")
# Of backslashes only \' means one thing in all dialects; \n might be a path's.
_SINGLE = re.compile(r"'((?:[^'\\]|\\')*+)'")
_SURROGATE = re.compile("[\ud800-\udfff]")

_JSON = json.JSONDecoder(strict=False)  # a line break in a string is what it is

_WORDS = {"true": True, "false": False, "null": None}
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def parse_calls(text: str, quote: str, plain: Callable[[str], str]) -> list[Found]:
    """
    Return the calls in *text*, which stood between a call's two tokens.

    *quote* is how the token around strings is spelled; *plain* gives other control
    tokens in a string back as characters. Raises `Unreadable`.
    """
    parser = _Parser(text, quote, plain)
    calls = [parser.call()]
    while not parser.done():
        calls.append(parser.call())
    return calls


class _Parser:
    def __init__(self, text: str, quote: str, plain: Callable[[str], str]) -> None:
        self._text = text
        self._quote = quote
        self._plain = plain
        self._at = 0
        self._repairs: dict[str, None] = {}  # in order, each once

    def done(self) -> bool:
        """Return whether only blanks are left."""
        return self._peek() == ""

    def call(self) -> Found:
        """Read one call."""
        self._repairs = {}
        if not self._takes("call:"):
            raise Unreadable("a call begins with call:NAME{")
        self._skip()
        match = _NAME.match(self._text, self._at)
        if not match or self._plain(match[0]) != match[0]:
            raise Unreadable("the tool's name is missing after call:")
        self._at = match.end()
        if self._peek() != "{":
            raise Unreadable("the arguments are missing: they stand in braces")
        arguments = self._object(1)
        return Found(match[0], arguments, tuple(self._repairs))

    def _skip(self) -> None:
        blanks = _BLANKS.match(self._text, self._at)
        self._at = blanks.end() if blanks else self._at

    def _peek(self) -> str:
        """Return the next character that is no blank; empty at the end."""
        self._skip()
        return self._text[self._at : self._at + 1]

    def _takes(self, wanted: str) -> bool:
        self._skip()
        found = self._text.startswith(wanted, self._at)
        self._at += len(wanted) if found else 0
        return found

    def _repaired(self, what: str) -> None:
        self._repairs[what] = None

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        more = self._opens("}", depth)
        while more:
            name = self._key()
            if not self._takes(":"):
                if not self._takes("="):
                    raise Unreadable("a key of the arguments lacks its colon")
                self._repaired("syntax")
            found[name] = self._value(depth + 1)
            more = self._goes_on("}")
        return found

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        more = self._opens("]", depth)
        while more:
            found.append(self._value(depth + 1))
            more = self._goes_on("]")
        return found

    def _opens(self, closer: str, depth: int) -> bool:
        """Step into an object or list; return whether there is something in it."""
        if depth > DEPTH:
            raise Unreadable(f"the arguments are nested more than {DEPTH} deep")
        self._at += 1
        return not self._takes(closer)

    def _goes_on(self, closer: str) -> bool:
        """Step over a comma or *closer*; return whether another member follows."""
        if self._takes(closer):
            return False
        if not self._takes(","):
            raise Unreadable(f"between the arguments a comma or {closer} is missing")
        if self._takes(closer):
            self._repaired("commas")
            return False
        return True

    def _key(self) -> str:
        self._skip()
        if (quoted := self._quoted()) is not None:
            return quoted
        match = BARE.match(self._text, self._at)
        if not match:
            raise Unreadable("a key is missing among the arguments")
        self._at = match.end()
        return match[0]

    def _value(self, depth: int) -> object:
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._list(depth)
        if (quoted := self._quoted()) is not None:
            return quoted
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return _number(match)
        return self._word()

    def _quoted(self) -> str | None:
        """Return the string that starts here, in any quotes; None if none does."""
        if self._text.startswith(self._quote, self._at):
            start = self._at + len(self._quote)
            end = self._text.find(self._quote, start)
            if end < 0:
                raise Unreadable("a string among the arguments is not closed")
            self._at = end + len(self._quote)
            return self._plain(self._text[start:end])
        if self._text.startswith('"', self._at):
            return self._plain(self._json_string())
        if self._text.startswith("'", self._at):
            return self._plain(self._single_quoted())
        return None

    def _json_string(self) -> str:
        try:
            found, end = _JSON.raw_decode(self._text, self._at)
        except ValueError:  # includes JSONDecodeError
            raise Unreadable("a string among the arguments is not closed") from None
        if _SURROGATE.search(found):  # half a character, which no answer can carry
            raise Unreadable("a string among the arguments has half a surrogate pair")
        self._at = end
        return str(found)

    def _single_quoted(self) -> str:
        match = _SINGLE.match(self._text, self._at)
        if not match:
            raise Unreadable("a string among the arguments has the wrong quotes")
        self._at = match.end()
        self._repaired("quotes")
        return match[1].replace("\\'", "'")

    def _word(self) -> bool | None:
        match = _WORD.match(self._text, self._at)
        word = match[0] if match else ""
        self._at += len(word)
        if word in _WORDS:
            return _WORDS[word]
        if word in _PYTHON_WORDS:
            self._repaired("syntax")
            return _PYTHON_WORDS[word]
        raise Unreadable("a value among the arguments is none: strings need quotes")


def _number(match: re.Match[str]) -> int | float:
    if len(match[0]) > DIGITS:
        raise Unreadable("a number among the arguments is too long")
    if match[1] is None and match[2] is None:
        return int(match[0])
    value = float(match[0])
    if not math.isfinite(value):
        raise Unreadable("a number among the arguments is too large")
    return value
