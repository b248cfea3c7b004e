"""Notices an answer that says the same over and over, as weak models may for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..text import borders

# What a person asks for may repeat, a field of zeros say: so many times is no accident.
_TIMES = 4
_EVERY = 64  # tokens between two looks, each of some 0.2 ms


class Repetition:
    """
    Looks at an answer's tokens for a piece that fills the last *tokens* of them.

    The piece is repeated exactly, four times or more. With 0 *tokens* it never looks.
    """

    def __init__(self, tokens: int) -> None:
        self._last: deque[int] = deque(maxlen=tokens)
        self._seen = 0
        self.found = False

    def feed(self, token: int) -> bool:
        """Take the answer's next token; return whether it repeats itself by now."""
        least = self._last.maxlen
        if not least or self.found:
            return self.found
        self._last.append(token)
        self._seen += 1
        if self._seen >= least and not self._seen % min(_EVERY, least):
            self.found = _period(tuple(self._last)) * _TIMES <= least
        return self.found


def _period(tokens: Sequence[int]) -> int:
    """Return the least p > 0 so that each token is that of p places before."""
    return len(tokens) - borders(tokens)[-1]
