"""
All forms that a call may have in one answer: the family's own, and foreign ones.

Knows how each may begin and who reads it. Where the family's call ends its format
tells; foreign forms are known to have ended by the answer's end alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..chat import Tool
from . import rescue
from .base import Format, Found, Unreadable

# Behind an offered name: the name is part of the opener then.
_BEHIND_NAME = ("<arg_key>", "[ARGS]")
_BY_THEMSELVES = ("```", *_BEHIND_NAME)
HEAD_CHARS = 200  # from a foreign opener to the name
_WINDOW_CHARS = 512

_SENTENCE = re.compile(r"[.!?…)]\s*\Z")
_SAID = re.compile(r"[.!?:…]\s*\Z")

# Tags, brackets and the words that stand in calls before the name.
_BEFORE_NAME = re.compile(
    r"(?:</?[\w:|-]*[>=|]?|[|>\s{\[(\"':=]|call:|(?:name|tool|function|functions)\b\.?)*"
)


class Forms:
    """The openers that count in an answer, and what is behind them."""

    def __init__(
        self,
        format: Format,
        tools: Sequence[Tool],
        *,
        rescues: bool,
    ) -> None:
        self._format = format
        self._tools = tools
        self._own = tuple(format.openers)
        self._certain = tuple(one for one in self._own if not one.isprintable())
        self._names = {_plain(tool.name) for tool in tools}
        named = (tool.name + mark for tool in tools for mark in _BEHIND_NAME)
        self._foreign = _without((*rescue.OPENERS, *named)) if rescues else ()
        self._at_line = _without(rescue.LINE_OPENERS) if rescues else ()
        self.openers = tuple(
            dict.fromkeys((*self._own, *self._foreign, *self._at_line))
        )
        self.longest = max(map(len, self.openers), default=1)

    @staticmethod
    def may_start(line: str) -> bool:
        """Return whether a foreign form may stand behind *line*, as `rescue` has it."""
        return not line.strip() or bool(_SENTENCE.search(line))

    def is_certain(self, text: str) -> bool:
        """Return whether *text* begins with a control token, or may with more."""
        return any(
            text.startswith(one) or one.startswith(text) for one in self._certain
        )

    def is_at_line(self, text: str) -> bool:
        """Return whether what *text* begins with counts at the start of a line only."""
        return text.startswith(self._at_line) and not text.startswith(
            (*self._own, *self._foreign)
        )

    def may_be_own(self, text: str) -> bool:
        """Return whether the family's form opens with *text*, or may with more."""
        return any(text.startswith(one) or one.startswith(text) for one in self._own)

    def is_unfinished(self, text: str) -> bool:
        """Return whether *text* is the beginning of the family's opener, no more."""
        return any(one.startswith(text) and one != text for one in self._own)

    def length(self, text: str) -> int | None:
        """
        Return how many characters the family's call at the start of *text* has.

        0 if it is none. Looks at the beginning first: what is no call shows soon, and
        must not cost as much as there is text behind it.
        """
        if not text.startswith(self._own):
            return None if self.may_be_own(text) else 0
        window = _WINDOW_CHARS
        while window < len(text):
            length = self._format.length(text[:window])
            if length is not None:
                return length
            window *= 8
        return self._format.length(text)

    def may_be_foreign(self, text: str) -> bool:
        """Return whether *text* may be a foreign call: a name is there, or may come."""
        if not text.startswith((*self._foreign, *self._at_line)):
            return False
        head = _plain(text[:HEAD_CHARS])
        return len(text) < HEAD_CHARS or any(name in head for name in self._names)

    def is_attempt(self, text: str, *, unfinished: bool = False) -> bool:
        """
        Return whether *text* was meant as a call, though nobody can read it.

        That is: an offered name stands where one should, or *unfinished*, may come;
        and what stands last is no sentence.
        """
        head = _BEFORE_NAME.match(text[:HEAD_CHARS])
        rest = text[head.end() if head else 0 :]
        names = [tool.name for tool in self._tools]
        if unfinished:
            return any(name.startswith(rest) or rest.startswith(name) for name in names)
        return any(rest.startswith(name) for name in names) and not _SAID.search(text)

    def find_own(self, text: str, at: int) -> int:
        """Return where in *text* from *at* the family's form opens; -1: nowhere."""
        places = (text.find(one, at) for one in self._own)
        return min((place for place in places if place >= 0), default=-1)

    def read(self, raw: str) -> tuple[Sequence[Found], str]:
        """
        Return the calls in *raw*, all of one, and the form they were rescued from.

        Raises `Unreadable`.
        """
        try:
            return self._format.read(raw), ""
        except Unreadable:
            found = self.rescue(raw) if self._foreign else None
            if found is None or raw[: found[0]].strip():
                raise
            return found[1:]

    def rescue(
        self, text: str, line: str = ""
    ) -> tuple[int, Sequence[Found], str] | None:
        """
        Return where in *text*, to the answer's end, foreign calls begin, the calls and
        their form; *line* is what stands before it in its line, which is plain text.
        """
        line = line.replace("`", "'")
        found = rescue.find(line + text, self._tools)
        if found is None or found.exact:
            return None
        words = next((call.repairs[:1] for call in found.calls), ())
        calls = [replace(call, repairs=call.repairs[1:]) for call in found.calls]
        return max(0, found.start - len(line)), calls, "".join(words)


def any_of(openers: Sequence[str]) -> re.Pattern[str]:
    """Return what finds any of *openers*, of those at one place the longest."""
    longest_first = sorted(openers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def starts_of(openers: Sequence[str]) -> frozenset[str]:
    """Return all that may yet become one of *openers*."""
    return frozenset(one[:n] for one in openers for n in range(1, len(one)))


def _without(openers: Iterable[str]) -> tuple[str, ...]:
    return tuple(one for one in openers if one not in _BY_THEMSELVES)


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).casefold()
