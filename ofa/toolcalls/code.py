"""
Where in a Markdown text code and quotations stand, as it is written.

Knows no tools. What a model shows there is an example, whatever it looks like.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_TOKENS = re.compile(r"\n|`+|~+|[^\S\n]+|>|[^\s`~>]+")
_QUOTES = frozenset("\"'\u2018\u201c\u00ab\u201e")
_LONGEST_TAG = 32
_LINE_CHARS = 120


class _Line(Enum):
    """What is known of the line that is being written."""

    START = auto()  # blanks only
    INFO = auto()  # behind three backticks or tildes: it may open a block
    CLOSING = auto()  # behind a block's end mark
    QUOTE = auto()
    TEXT = auto()


class Code:
    """
    Reads a text in pieces and says whether what comes next is plain text.

    Follows CommonMark but for three things: a fence may be indented as far as one
    likes, code between backticks ends with its line, and ``>`` ends with it too.
    """

    def __init__(self) -> None:
        self.tags: list[str] = []  # of the fenced blocks so far, in lower case
        self.line = ""  # the end of what is written of the current line
        self._line = _Line.START
        self._fence = ("", 0)  # the open block's mark: character, number
        self._opening = ("", 0)
        self._run = ("", 0)  # backticks or tildes that may not have ended
        self._inline = 0  # how many backticks opened the code that we are in
        self._tag = ""
        self._tagged = False

    def feed(self, text: str) -> None:
        """Read on."""
        for token in _TOKENS.findall(text):
            self._take(token)
        _, newline, last = text.rpartition("\n")
        self.line = (
            last[-_LINE_CHARS:] if newline else (self.line + last)[-_LINE_CHARS:]
        )

    @property
    def is_line_start(self) -> bool:
        """Whether a fence that opens a block could come next."""
        return self._line is _Line.START and not self._run[1] and not self._fence[1]

    def is_plain(self) -> bool:
        """Return whether what comes next, which is no backtick, is neither code nor
        quoted."""
        self._end_run()
        return (
            not self._fence[1]
            and not self._inline
            and self._line not in (_Line.INFO, _Line.QUOTE)
            and not self._is_quoted()
        )

    def is_in_word(self) -> bool:
        """Return whether the last character belongs to a word."""
        return self.line[-1:].isalnum() or self.line[-1:] == "_"

    def _is_quoted(self) -> bool:
        before, quote = self.line[-2:-1], self.line[-1:]
        return quote in _QUOTES and (not before or before.isspace() or before in "([{:")

    def _take(self, token: str) -> None:
        first = token[0]
        if first in "`~":
            if first != self._run[0]:
                self._end_run()
            self._run = (first, self._run[1] + len(token))
            return
        self._end_run()
        if first == "\n":
            self._end_line()
        elif first.isspace():
            self._tagged = self._tagged or bool(self._tag)
        else:
            self._word(token)

    def _word(self, token: str) -> None:
        if self._line is _Line.INFO:
            if not self._tagged:
                self._tag = (self._tag + token)[:_LONGEST_TAG]
        elif self._line is _Line.START and token == ">" and not self._fence[1]:
            self._line = _Line.QUOTE
        elif self._line is not _Line.QUOTE:
            self._line = _Line.TEXT

    def _end_run(self) -> None:
        """Take in the backticks or tildes that have just ended."""
        run, self._run = self._run, ("", 0)
        if not run[1]:
            return
        if self._line is _Line.START:
            self._begin_line(run)
        elif self._line is _Line.CLOSING:
            self._line = _Line.TEXT
        elif self._line is not _Line.INFO:
            self._ticks(run)
        elif run[0] == "`" == self._opening[0]:  # no fence has backticks behind it
            self._line = _Line.TEXT
            self._ticks(self._opening)
            self._ticks(run)

    def _begin_line(self, run: tuple[str, int]) -> None:
        """Take *run* as the first thing in its line."""
        self._line = _Line.TEXT
        if self._fence[1]:
            if run[0] == self._fence[0] and run[1] >= self._fence[1]:
                self._line = _Line.CLOSING
        elif run[1] >= 3:
            self._line, self._opening = _Line.INFO, run
            self._tag, self._tagged = "", False
        else:
            self._ticks(run)

    def _ticks(self, run: tuple[str, int]) -> None:
        if run[0] != "`" or self._fence[1]:
            return
        if not self._inline:
            self._inline = run[1]
        elif self._inline == run[1]:
            self._inline = 0

    def _end_line(self) -> None:
        if self._line is _Line.INFO:
            self._fence = self._opening
            self.tags.append(self._tag.lower())
        elif self._line is _Line.CLOSING:
            self._fence = ("", 0)
        self._line = _Line.START
        self._inline = 0
