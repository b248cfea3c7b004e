"""
JSON with comments, as editors keep their settings: read tolerantly, changed in place.

Knows where each value stands in the text, so that one can be replaced and every other
byte kept; knows nothing of what the values mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 100  # deeper than any editor's file, far from Python's own limit

# White space and comments are skipped; a byte order mark is white space to editors.
_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)"
    r'|(?P<string>"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<word>true|false|null)"
    r"|(?P<mark>[\[\]{},:])",
    re.DOTALL,
)
_INDENT = re.compile(r"(?:^|[\r\n])([ \t]*)$")


class JsoncError(ValueError):
    """The text is no JSON, even with comments; *line* counts from one."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True)
class Element:
    """A value, where it stands in the text, and, of an array, its elements."""

    start: int
    end: int
    value: Any
    elements: tuple[Element, ...] = ()


def parse(text: str) -> Element:
    """Return the one value in *text*. Raises `JsoncError`, naming the line."""
    reader = _Reader(text)
    element = reader.element(0)
    reader.finish()
    return element


def replaced(text: str, element: Element, value: object) -> str:
    """Return *text* with *value* in *element*'s place, indented as the old one was."""
    new = _written(value, text, _base(text, element.start))
    return text[: element.start] + new + text[element.end :]


def appended(text: str, array: Element, value: object) -> str:
    """Return *text* with *value* as the last of *array*; comments stay where they are.

    The new element stands on lines of its own, after a comment behind the last one.
    """
    newline, close = _newline(text), array.end - 1
    head = text[:close].rstrip(" \t\r\n")
    tail = text[len(head) : close]
    base = ""
    if array.elements:
        base = _base(text, array.elements[-1].start)
        last = array.elements[-1].end
        if not _has_comma(text, last, close):
            head = f"{head[:last]},{head[last:]}"
    base = base or _unit(text)
    if not tail.strip(" \t"):  # the bracket stood on the same line
        tail = newline
    new = _written(value, text, base)
    return f"{head}{newline}{base}{new}{tail}{text[close:]}"


def line_of(text: str, position: int) -> int:
    """Return the line that *position* is on, counted from one."""
    return len(re.findall(r"\r\n|\r|\n", text[:position])) + 1


class _Reader:
    """Reads elements from left to right; `_kind` and `_text` are the token ahead."""

    def __init__(self, text: str) -> None:
        self._all = text
        self._tokens = self._scan()
        self._advance()

    def element(self, depth: int) -> Element:
        """Return the element that starts at the token ahead, and pass it."""
        start, text = self._start, self._text
        if depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        if text == "[":
            return self._array(depth)
        if text == "{":
            return self._object(depth)
        if self._kind not in ("string", "number", "word"):
            raise self._error("a value is missing")
        value = self._plain()
        return Element(start, start + len(text), value)

    def finish(self) -> None:
        """Raise unless nothing is left."""
        if self._kind != "end":
            raise self._error("more text after the end")

    def _array(self, depth: int) -> Element:
        start = self._start
        self._advance()
        elements = []
        while self._text != "]":
            elements.append(self.element(depth + 1))
            self._comma_or("]")
        end = self._start + 1
        self._advance()
        return Element(start, end, [e.value for e in elements], tuple(elements))

    def _object(self, depth: int) -> Element:
        start = self._start
        self._advance()
        members: dict[str, Any] = {}
        while self._text != "}":
            if self._kind != "string":
                raise self._error("a name in double quotes is missing")
            name = self._plain()
            if self._text != ":":
                raise self._error("a : is missing")
            self._advance()
            members[name] = self.element(depth + 1).value
            self._comma_or("}")
        end = self._start + 1
        self._advance()
        return Element(start, end, members)

    def _comma_or(self, close: str) -> None:
        if self._text == ",":
            self._advance()  # also before the closing bracket: editors allow it
        elif self._text != close:
            raise self._error(f"a , or {close} is missing")

    def _plain(self) -> Any:  # noqa: ANN401 - whatever JSON holds
        try:
            value = json.loads(self._text)
        except ValueError:  # a wrong escape, a number of thousands of digits
            raise self._error("a value that can't be read") from None
        if value in (math.inf, -math.inf):  # 1e999, which could not be written again
            raise self._error("a number that is too large")
        self._advance()
        return value

    def _advance(self) -> None:
        self._kind, self._start, self._text = next(self._tokens)

    def _scan(self) -> Iterator[tuple[str, int, str]]:
        at = 0
        while at < len(self._all):
            match = _TOKEN.match(self._all, at)
            if match is None:
                raise JsoncError(line_of(self._all, at), "this is no JSON")
            if match.lastgroup != "skip":
                yield str(match.lastgroup), at, match.group()
            at = match.end()
        while True:
            yield "end", at, ""

    def _error(self, message: str) -> JsoncError:
        return JsoncError(line_of(self._all, self._start), message)


def _has_comma(text: str, start: int, end: int) -> bool:
    """Return whether a comma stands between two places, comments aside."""
    at = start
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup != "skip":
            return True  # the only token that the grammar allows there
        at = match.end()
    return False


def _written(value: object, text: str, base: str) -> str:
    """Return *value* as JSON in the style of *text*, its later lines after *base*."""
    written = json.dumps(value, indent=_unit(text), ensure_ascii=False)
    return written.replace("\n", _newline(text) + base)


def _base(text: str, position: int) -> str:
    """Return the white space before *position*, where nothing else is on its line."""
    match = _INDENT.search(text, max(0, text[:position].rfind("\n")), position)
    return match[1] if match else ""


def _unit(text: str) -> str:
    """Return what *text* indents by: its first indentation, else VS Code's tab."""
    match = re.search(r"[\r\n]([ \t]+)[^ \t\r\n]", text)
    return match[1] if match else "\t"


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
