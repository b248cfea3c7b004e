"""How fast a model reads prompts here, and how much of one to read in one piece."""

from __future__ import annotations

from collections import deque
from statistics import median

from .memory import WHOLE_CHUNK

# Below it the products are too small: on two slow cores 38 tokens/s in chunks of 64, 47
# of 128, 57 in one piece. A cancelled prefill ends after its chunk, which is a second
# where 128 tokens are read in one, and more on a slower machine.
LEAST_CHUNK = 128
CHUNK_S = 1.0


class Speed:
    """How fast prompts are read: the median of the last few readings, so that
    neither a busy moment nor a short prompt decides."""

    def __init__(self) -> None:
        self._readings: deque[float] = deque(maxlen=9)

    def add(self, tokens: int, wall_s: float) -> None:
        """Take a reading, unless it is too short to tell anything."""
        if tokens >= LEAST_CHUNK // 4:
            self._readings.append(tokens / max(wall_s, 1e-6))

    @property
    def per_s(self) -> float:
        """Prompt tokens a second; 0 before the first reading."""
        return median(tuple(self._readings) or (0.0,))


def chunk_size(tokens: float, least: int = LEAST_CHUNK) -> int:
    """Return the largest power of two up to *tokens*, within the useful range."""
    size = least
    while size * 2 <= min(tokens, WHOLE_CHUNK):
        size *= 2
    return size
