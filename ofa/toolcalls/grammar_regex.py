"""
Patterns of JSON Schemas as regular expressions for a grammar.

JSON Schema means JavaScript's, found anywhere in a string; a grammar's are Rust's and
match the whole. What means the same in both is translated, all else is refused.
"""

from __future__ import annotations

import re

# What is in a class for JavaScript and for Python, and what for one of them at least.
_SURE = {"d": "0-9", "w": "A-Za-z0-9_", "s": r"\x09-\x0d\x20\xa0"}
_MAYBE = {"d": r"\p{Nd}", "w": r"\w", "s": r"\s\x1c-\x1f\x{feff}"}
_ANY = r"[^\x0a\x0d\x{2028}\x{2029}]"
_CONTROLS = {"n": r"\x0a", "r": r"\x0d", "t": r"\x09", "f": r"\x0c", "v": r"\x0b"}
_MOST = 500
_TIMES = re.compile(r"\{\d+(,\d*)?\}")


class _Refused(ValueError):
    pass


def searched(pattern: str) -> str | None:
    """Return what matches a whole string in which *pattern* is found, or None."""
    if len(pattern) > _MOST:
        return None
    is_begun, body = pattern.startswith("^"), pattern.removeprefix("^")
    is_ended = body.endswith("$") and not _is_escaped(body)
    body = body[:-1] if is_ended else body
    try:
        made = _Body(body, anchored=is_begun or is_ended).translated()
    except _Refused:
        return None
    before = "" if is_begun else "(?s:.*)"
    after = "" if is_ended else "(?s:.*)"
    return f"{before}({made}){after}"


def _is_escaped(body: str) -> bool:
    """Return whether the last character stands behind an odd number of backslashes."""
    before = body[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


class _Body:
    """A pattern on its way, a character at a time."""

    def __init__(self, body: str, *, anchored: bool) -> None:
        self._body = body
        self._at = 0
        self._depth = 0
        self._anchored = anchored  # then a bar would part the anchors as well
        self._out: list[str] = []

    def translated(self) -> str:
        while self._at < len(self._body):
            self._out.append(self._next())
            if self._depth < 0:
                raise _Refused
        if self._depth:
            raise _Refused
        return "".join(self._out)

    def _take(self) -> str:
        char = self._body[self._at : self._at + 1]
        self._at += 1
        if not char:
            raise _Refused
        return char

    def _next(self) -> str:
        char = self._take()
        match char:
            case "\\":
                return self._escape()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ")":
                self._depth -= 1
            case ".":
                return _ANY
            case "{":
                return self._times()
            case "^" | "$" | "}":
                raise _Refused
            case "|" if self._anchored and not self._depth:
                raise _Refused
        return char if char in ")|*+?" else _plain(char)

    def _times(self) -> str:
        found = _TIMES.match(self._body, self._at - 1)
        if found is None:
            raise _Refused
        self._at = found.end()
        return found[0]

    def _group(self) -> str:
        self._depth += 1
        if self._body.startswith("?:", self._at):
            self._at += 2
        elif self._body.startswith("?", self._at):
            raise _Refused
        return "(?:"

    def _escape(self) -> str:
        char = self._take()
        if char in _SURE:
            return f"[{_SURE[char]}]"
        if char.lower() in _MAYBE:
            return f"[^{_MAYBE[char.lower()]}]"
        return _escaped(char)

    def _class(self) -> str:
        """Return a class: no more than JavaScript's and Python's, also if negated."""
        known, out = _SURE, "["
        if self._body.startswith("^", self._at):
            known, out = _MAYBE, "[^"
            self._at += 1
        start = len(out)
        while (char := self._take()) != "]":
            if char == "\\":
                char = self._take()
                out += known.get(char) or _escaped(char)
            else:
                out += "-" if char == "-" else _plain(char)
        if len(out) == start or "--" in out:
            raise _Refused  # an empty class is JavaScript's, a difference Rust's
        return out + "]"


def _escaped(char: str) -> str:
    if char in _CONTROLS:
        return _CONTROLS[char]
    if char.isalnum():
        raise _Refused  # a reference, a boundary, a code
    return _plain(char)


def _plain(char: str) -> str:
    """Return *char* as itself, whatever Lark or Rust would make of it."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
