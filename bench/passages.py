"""
Thirty thousand passages that look like a site's: our own notes, written over and over.

Each is a piece of a note with words of other notes mixed in and a name of its own. Its
vector is the piece's, turned a little by chance: embedding all of them for real takes
ten minutes and would measure nothing more.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NOTES = Path(__file__).parents[1] / "rag_index" / "notes"
_LONGEST = 900  # characters: about the embedder's window
_OTHERS = 0.25  # share of a piece's words that are another note's
_TURN = 0.7  # length of the noise beside a unit vector: a cosine of about 0.8

Embed = Callable[[Sequence[str]], NDArray[np.float32]]


@dataclass(frozen=True)
class Piece:
    """One passage: where it is said to be from, and what it says."""

    path: str
    section: str
    text: str


def pieces() -> list[Piece]:
    """Return the notes, cut at their headings and blank lines."""
    found = []
    for path in sorted(NOTES.rglob("*.md")):
        section, text = path.stem, ""
        for block in path.read_text("utf-8").split("\n\n"):
            if block.startswith("#") or len(text) + len(block) > _LONGEST:
                if len(text) > 80:
                    name = path.relative_to(NOTES).as_posix()
                    found.append(Piece(name, section, text[:_LONGEST]))
                text = ""
            if block.startswith("#"):
                section = block.splitlines()[0].lstrip("# ")
            text = f"{text}\n\n{block}".strip()
    return found


def many(count: int) -> list[Piece]:
    """Return *count* passages, the same ones every time."""
    rng = random.Random(count)
    base = pieces()
    words = [word for piece in base for word in piece.text.split(" ")]
    return [_varied(base[n % len(base)], n, words, rng) for n in range(count)]


def _varied(piece: Piece, n: int, words: list[str], rng: random.Random) -> Piece:
    mixed = [
        rng.choice(words) if rng.random() < _OTHERS else word
        for word in piece.text.split(" ")
    ]
    stem, name = Path(piece.path).with_suffix(""), name_of(n)
    text = f"{' '.join(mixed)}\nSet `{name}` for this."
    return Piece(f"{stem}/part{n // 8}.md", piece.section, text)


def name_of(n: int) -> str:
    """Return the name that passage *n* alone has."""
    return f"{('max', 'use', 'bind', 'wait')[n % 4]}_option{n}"


def vectors(count: int, embed: Embed) -> NDArray[np.float32]:
    """Return a unit vector for each of `many`."""
    base = embed([f"{piece.section}\n{piece.text}" for piece in pieces()])
    rng = np.random.default_rng(count)
    noise = rng.normal(size=(count, base.shape[1])).astype(np.float32)
    noise *= _TURN / np.linalg.norm(noise, axis=1, keepdims=True)
    turned = base[np.arange(count) % len(base)] + noise
    return np.asarray(turned / np.linalg.norm(turned, axis=1, keepdims=True))


def questions(count: int, of: int) -> list[str]:
    """Return *count* questions over *of* passages: topics, names, whole sentences."""
    rng = random.Random(of)
    base = pieces()
    return [_question(n, rng.choice(base), rng.randrange(of)) for n in range(count)]


def _question(n: int, piece: Piece, row: int) -> str:
    sentence = re.split(r"[.\n]", piece.text.partition("\n\n")[2] or piece.text)[0]
    return (
        f"How does {piece.section.lower()} work, case {n}?",
        f"What does {name_of(row)} do for {piece.section.lower()}?",
        f"Is it true in case {n} that {sentence.lower()[:150]}?",
    )[n % 3]
