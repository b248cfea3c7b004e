"""
Text of a wanted length: plain words from a seeded draw, the same on every machine.

Knows nothing of tokenizers; who needs exact lengths gives a count to grow by.
"""

from __future__ import annotations

import random
from collections.abc import Callable

# Frequent English words: one token each in the vocabularies of today's models.
_WORDS = (
    "the", "job", "node", "file", "time", "run", "mesh", "flow", "wall", "grid", "step",
    "code", "data", "line", "error", "model", "value", "queue", "memory", "limit",
    "order", "field", "result", "point", "level", "cell", "start", "end", "system",
    "user", "state", "size", "and", "with", "from", "into", "after", "before", "while",
)  # fmt: skip
_SENTENCE = 12  # words


def words(count: int, seed: int) -> str:
    """Return *count* words in sentences."""
    drawn = random.Random(seed).choices(_WORDS, k=count)
    parts = [drawn[n : n + _SENTENCE] for n in range(0, count, _SENTENCE)]
    return " ".join(" ".join(part).capitalize() + "." for part in parts)


def sized(tokens: int, seed: int, count: Callable[[str], int]) -> str:
    """Return words of exactly *tokens* tokens, as *count* counts them."""
    draw = random.Random(seed)
    chosen = draw.choices(_WORDS, k=max(1, tokens - _SENTENCE))
    text = " ".join(chosen).capitalize()
    while (now := count(text)) < tokens:
        added = [f"{text} {word}" for word in draw.sample(_WORDS, k=8)]
        text = next((more for more in added if count(more) == now + 1), added[0])
    if now != tokens:
        raise ValueError(f"no text of {tokens} tokens was found")
    return text
