"""Where in an answer a tool call opens, by the tokens as they are drawn."""

from __future__ import annotations

from functools import partial

from ..text import Markers
from .vocabulary import Vocabulary

_FENCE = b"```"
_BEGINNING = 64  # bytes of a line that are looked at


class Watch:
    """
    Looks for *opener* in one row's tokens, outside of thoughts.

    An opener that is a token counts wherever it stands, as nobody writes one by
    accident. One that is text counts at the start of a line, and not in a code block.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        opener: str,
        *,
        thinking: Markers | None,
        opened: bool,
    ) -> None:
        self._made = partial(
            Watch, vocabulary, opener, thinking=thinking, opened=opened
        )
        self._vocabulary = vocabulary
        self._id = vocabulary.control.get(opener)
        self._text = opener.encode()
        ids = vocabulary.ids
        self._marks = (
            {ids[thinking.open]: True, ids[thinking.close]: False} if thinking else {}
        )
        self._thought = opened
        self._line = b""  # the last one, as far as it is written
        self._code = False  # whether that line is within a block

    def fresh(self) -> Watch:
        """Return another one, for another row."""
        return self._made()

    def feed(self, token: int) -> tuple[int, ...] | None:
        """Return what *token* has behind an opener that it completes, as tokens."""
        if token in self._marks:
            self._thought = self._marks[token]
            self._line = b""
        if self._thought:
            return None
        if self._id is not None:
            return () if token == self._id else None
        raw = self._vocabulary.raw(token)
        if self._vocabulary.control.get(raw.decode("utf-8", "ignore")) == token:
            return None
        return self._look(raw)

    def _look(self, raw: bytes) -> tuple[int, ...] | None:
        """Return what *raw* has behind an opener that it completes, as tokens."""
        text, start = self._line + raw, 0
        while True:
            line = text[start:].lstrip(b" \t")
            if line.startswith(self._text) and not self._code:
                self._line, self._code = b"", self._text.startswith(_FENCE)
                return self._spelled(line.removeprefix(self._text))
            end = text.find(b"\n", start)
            if end < 0:
                break
            self._code ^= line.startswith(_FENCE)
            start = end + 1
        self._line = text[start:][:_BEGINNING]
        return None

    def _spelled(self, rest: bytes) -> tuple[int, ...] | None:
        """Return tokens whose bytes are *rest*; None if there are none."""
        try:
            ids = tuple(self._vocabulary.encode(rest.decode())) if rest else ()
        except UnicodeDecodeError:
            return None
        spelled = b"".join(map(self._vocabulary.raw, ids))
        return ids if spelled == rest else None
