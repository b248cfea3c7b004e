"""How fast answers are written: an engine that looks on while another one works."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..chat import Call, Chat, End, Event, Text, Thought
from .base import Around, Engine, Limits, Reply, Status

_KEPT = 32  # answers: the machine as it is now, with so many at a time
_LEAST_TOKENS = 8  # fewer are over before they tell anything

Clock = Callable[[], float]


class Paced:
    """*engine*, and at what pace its newest answers were written."""

    def __init__(self, engine: Engine, clock: Clock = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._paces: deque[float] = deque(maxlen=_KEPT)

    @property
    def decode_per_s(self) -> float | None:
        """Tokens a second of one answer, the median of the newest; None before any."""
        with self._lock:
            return statistics.median(self._paces) if self._paces else None

    def reply(self, chat: Chat) -> Reply:
        """Return the engine's, timed once it is read."""
        return _Timed(self._engine.reply(chat), chat.choices, self._note, self._clock)

    def limits(self, weights: str = "") -> Limits:
        """Return the engine's."""
        return self._engine.limits(weights)

    def status(self) -> Status:
        """Return the engine's."""
        return self._engine.status()

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Pass *beginnings* on."""
        self._engine.warm(beginnings)

    def count_tokens(self, text: str) -> int:
        """Return the engine's count."""
        return self._engine.count_tokens(text)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def _note(self, per_s: float) -> None:
        with self._lock:
            self._paces.append(per_s)


class _Timed(Around):
    """A reply that tells its pace from its first text to its end."""

    def __init__(
        self, reply: Reply, choices: int, note: Callable[[float], None], clock: Clock
    ) -> None:
        super().__init__(reply)
        self._choices = choices
        self._note = note
        self._clock = clock

    def __iter__(self) -> Iterator[Event]:
        began_s: float | None = None
        is_text = True
        for event in self._reply:
            if isinstance(event, Text | Thought) and began_s is None:
                began_s = self._clock()
            elif isinstance(event, Call):
                is_text = False  # it comes at once, when all of it was written
            elif isinstance(event, End) and event.last and is_text and began_s:
                self._note_end(event, self._clock() - began_s)
            yield event

    def _note_end(self, end: End, seconds: float) -> None:
        tokens = end.usage.completion_tokens if end.usage else 0
        if tokens >= _LEAST_TOKENS and seconds > 0:
            self._note((tokens - 1) / self._choices / seconds)
