"""
What becomes of generated text on its way out: stop strings and thoughts.

Knows characters and markers, nothing of tokens or models. Text arrives in pieces cut
anywhere; what leaves is the same for every cut, and no character waits longer than
it could still turn out to be part of a stop string or a marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..chat import Text, Thought


@dataclass(frozen=True)
class Markers:
    """How a model family fences its reasoning off from its answer."""

    open: str
    close: str
    labelled: bool = False  # the opening marker is followed by a name and a newline


CHANNEL = Markers("<|channel>", "<channel|>", labelled=True)  # Gemma 4
THINK = Markers("<think>", "</think>")  # Qwen 3, DeepSeek and their kin

# Channels whose content is the answer. Any other name is reasoning: an unknown
# channel shown to a user is worse than one kept back.
_VISIBLE = frozenset({"final", "answer"})
_LABEL = re.compile(r"[A-Za-z0-9_-]{0,32}")


class StopStrings:
    """
    Cuts a text before the first of *stops* that it completes.

    Of stops completed by the same character the longest counts, so nothing of it
    gets out. "First to complete" and not "first to start": a generation ends
    where a stop string ends, however its text was cut into pieces.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._borders = tuple(borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.done = False

    def feed(self, text: str) -> str:
        """Return what is now certain to be before any stop; sets `done` at one."""
        if self.done or not self._stops:
            return "" if self.done else text
        held = self._held + text
        for end in range(len(self._held), len(held)):
            cut = self._advance(held[end])
            if cut:
                self.done, self._held = True, ""
                return held[: end + 1 - cut]
        keep = max(self._matched)
        out, self._held = held[: len(held) - keep], held[len(held) - keep :]
        return out

    def flush(self) -> str:
        """Return what was held back, as the text ended without completing a stop."""
        out, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return out

    def _advance(self, char: str) -> int:
        """Take one character; return the length of the stop it completes, or 0."""
        cut = 0
        for n, stop in enumerate(self._stops):
            length = self._matched[n]
            while length and stop[length] != char:
                length = self._borders[n][length - 1]
            length += stop[length] == char
            self._matched[n] = length
            if length == len(stop):
                cut = max(cut, length)
        return cut


def borders(items: Sequence[object]) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper suffix that is a prefix too
    (Knuth, Morris, Pratt): what is still matched when the next item fails."""
    table = [0] * len(items)
    length = 0
    for n in range(1, len(items)):
        while length and items[n] != items[length]:
            length = table[length - 1]
        length += items[n] == items[length]
        table[n] = length
    return tuple(table)


class Channels:
    """
    Tells a model's reasoning from its answer and removes the markers between them.

    *thinking* says that the prompt itself ended inside an opened thought. Blanks
    around a thought's inner start and before the answer's first character after a
    thought belong to the format and are dropped. With *final* an answer that has begun
    goes on to the end, as where a schema holds it: markers in it are its own text.
    """

    def __init__(
        self, markers: Markers | None, *, thinking: bool = False, final: bool = False
    ) -> None:
        self._markers = markers
        self._final = final
        self._marks = re.compile(
            "|".join(map(re.escape, (markers.open, markers.close))) if markers else "$^"
        )
        self._thought = thinking
        self._naming = False  # between an opening marker and the end of its label
        self._skip = thinking  # blanks until the next visible character
        self._answered = False  # some of the answer went out
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._thought or self._naming

    def feed(self, text: str) -> list[Text | Thought]:
        """Return the pieces that *text* completes, none of them empty."""
        if self._markers is None:
            return [Text(text)] if text else []
        pieces: list[Text | Thought] = []
        buffer, at = self._held + text, 0
        while at < len(buffer):
            if self._naming:
                end = self._read_label(buffer, at)
                if end < 0:
                    break
                at = end
                continue
            mark = self._marks.search(buffer, at)
            end = mark.start() if mark else len(buffer) - self._pending(buffer, at)
            self._put(buffer[at:end], pieces)
            if self._final and self._answered:
                self._markers = None
                self._put(buffer[end:], pieces)
                at = len(buffer)
                break
            if mark is None:
                at = end
                break
            self._turn(opens=mark.group() == self._markers.open)
            at = mark.end()
        self._held = buffer[at:]
        return pieces

    def flush(self) -> list[Text | Thought]:
        """Return what was held back, as the text ended; half a label is dropped."""
        pieces: list[Text | Thought] = []
        if not self._naming:
            self._put(self._held, pieces)
        self._held = ""
        return pieces

    def _read_label(self, buffer: str, at: int) -> int:
        """Return where the channel's content starts, or -1 if that is not known yet."""
        label = _LABEL.match(buffer, at)
        end = label.end() if label else at
        if end == len(buffer) and end - at < 32:
            return -1
        self._naming = False
        self._thought = buffer[at:end] not in _VISIBLE
        self._skip = True
        return end + buffer.startswith("\n", end)

    def _turn(self, *, opens: bool) -> None:
        if not opens:
            self._skip = self._skip or self._thought
            self._thought = False
        elif self._markers and self._markers.labelled:
            self._naming = True
        else:
            self._thought = self._skip = True

    def _put(self, text: str, pieces: list[Text | Thought]) -> None:
        if self._skip and (self._thought or not self._answered):
            text = text.lstrip()
        if not text:
            return
        self._skip = False
        self._answered = self._answered or not self._thought
        pieces.append(Thought(text) if self._thought else Text(text))

    def _pending(self, buffer: str, at: int) -> int:
        """Return how many last characters may be the start of a marker."""
        if self._markers is None:
            return 0
        marks = (self._markers.open, self._markers.close)
        longest = min(max(map(len, marks)) - 1, len(buffer) - at)
        for length in range(longest, 0, -1):
            tail = buffer[len(buffer) - length :]
            if any(mark.startswith(tail) for mark in marks):
                return length
        return 0
