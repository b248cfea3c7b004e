"""
Calls that small models write as plain JSON: the whole answer, or its only block.

Stricter than any other form, as JSON is also what people ask for: nothing but a name
and arguments under the usual keys, nothing behind it, and nothing to be mended.
"""

from __future__ import annotations

from collections.abc import Generator

from . import written
from .base import Found, Unreadable
from .written import ARGUMENTS, NAMES

TAGS = ("", "json", "tool_call", "tool_code")
FENCE = "```"
# What a fence would say of its block, where a model forgets the fence.
LOOSE_TAG = "tool_call"
OPENINGS = ("{", "[", LOOSE_TAG[0])  # of an answer that may be a call as a whole

_BLANK = frozenset(" \t\r\n")

# Gets one character after another; ends when these can't be a call any more.
_Scan = Generator[None, str, None]


class Bare:
    """
    A text that begins with `FENCE` or one of `OPENINGS`, as long as it may be a call.

    `feed` says False as soon as it can't be one, so that nobody waits for more.
    """

    def __init__(self) -> None:
        self._scan = self._whole()
        next(self._scan)
        self._json: list[str] = []
        self._complete = False

    def feed(self, text: str) -> bool:
        """Read on; return whether all so far may be a call."""
        try:
            for char in text:
                self._scan.send(char)
        except StopIteration:
            return False
        return True

    def read(self) -> list[Found]:
        """Return the calls it holds; raises `Unreadable` if it isn't what it must be"""
        if not self._complete:
            raise Unreadable("it is not complete")
        value = written.parse("".join(self._json))
        rows = value if isinstance(value, list) else [value]
        return [_found(row) for row in rows]

    def _whole(self) -> _Scan:
        char = yield
        fenced = char == "`"
        if fenced:
            tag = yield from _opening()
            if tag not in TAGS:
                return
            char = yield from _nonblank()
        elif char == LOOSE_TAG[0]:
            if not (yield from _loose_tag()):
                return
            char = yield from _nonblank()
        if not (yield from self._value(char)):
            return
        self._complete = True
        if not fenced:
            yield from _nonblank()  # and then it is not the last thing
            return
        yield from _closing()

    def _value(self, char: str) -> Generator[None, str, bool]:
        """Read an object or a list of them; return whether it may be calls."""
        self._json.append(char)
        if char == "{":
            return (yield from self._object())
        if char != "[":
            return False
        while True:
            char = yield from _nonblank()
            self._json.append(char)
            if char != "{" or not (yield from self._object()):
                return False
            char = yield from _nonblank()
            self._json.append(char)
            if char == "]":
                return True
            if char != ",":
                return False

    def _object(self) -> Generator[None, str, bool]:
        """Read an object behind its brace; only its own keys are looked at."""
        left = [NAMES, ARGUMENTS]
        while left:
            char = yield from _nonblank()
            if char != '"':
                return False
            key = yield from _key(tuple(key for group in left for key in group))
            if not key:
                return False
            left = [group for group in left if key not in group]
            self._json += ('"', key, '"')
            if not (yield from self._member(last=not left)):
                return False
        return True

    def _member(self, *, last: bool) -> Generator[None, str, bool]:
        """Read a colon, a value and what ends it; return whether that is right."""
        char = yield from _nonblank()
        if char != ":":
            return False
        depth, quoted = 0, False
        while depth or quoted or char not in ",}":
            self._json.append(char)
            char = yield
            if quoted and char == "\\":
                self._json.append(char)
                char = yield
            elif char == '"':
                quoted = not quoted
            elif not quoted and depth:
                depth += (char in "{[") - (char in "}]")
                if not depth:
                    self._json.append(char)
                    char = yield from _nonblank()
                    if char not in ",}":
                        return False
            elif not quoted:
                depth += char in "{["
        self._json.append(char)
        return (char == "}") == last


def _opening() -> Generator[None, str, str | None]:
    """Read what is left of a fence's line; return its tag, None if it is no fence."""
    for _ in FENCE[1:]:
        if (yield) != "`":
            return None
    line = ""
    while (char := (yield)) != "\n":
        line += char
        if not any(tag.startswith(line.strip()) for tag in TAGS) or len(line) > 64:
            return None
    return line.strip()


def _loose_tag() -> Generator[None, str, bool]:
    """Read what is left of the tag; return whether it has a line of its own."""
    for wanted in LOOSE_TAG[1:]:
        if (yield) != wanted:
            return False
    while (char := (yield)) in " \t\r":
        pass
    return char == "\n"


def _closing() -> Generator[None, str, None]:
    """Read a fence on a line of its own, and blanks as long as they come."""
    blank = ""
    while (char := (yield)) in _BLANK:
        blank = char if char == "\n" else blank
    if not blank:
        return
    for tick in FENCE:
        if char != tick:
            return
        char = yield
    while char in _BLANK:
        char = yield


def _nonblank() -> Generator[None, str, str]:
    while (char := (yield)) in _BLANK:
        pass
    return char


def _key(allowed: tuple[str, ...]) -> Generator[None, str, str]:
    """Return the key behind a quotation mark; empty if it is none of *allowed*."""
    key = ""
    while (char := (yield)) != '"':
        key += char
        if not any(one.startswith(key) for one in allowed):
            return ""
    return key if key in allowed else ""


def _found(row: object) -> Found:
    if not isinstance(row, dict):
        raise Unreadable("it is no JSON object")
    name = next((row[key] for key in NAMES if key in row), None)
    arguments = next((row[key] for key in ARGUMENTS if key in row), None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Unreadable("a name or an object of arguments is missing")
    return Found(name, arguments)
