"""
A question's words, as the collections that are searched know them.

Mistyped ones are put right, and its names found in glossaries, before any passage is
scored. Knows generations and weights of words; nothing of vectors, floors or threads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from . import rank
from .generation import Generation
from .lexical import tokens, weighed
from .passage import Passage
from .words import STOP_WORDS, shapes, surface

_MANY = 100  # passages that know the usual words of their field
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Words:
    """A question's words, as the collections that are searched know them."""

    question: str
    mended: str  # with the likeliest spelling in place of each mistyped word
    queries: tuple[str, ...]  # one a collection, mistyped words put right
    known: float  # the share of its words of content that one of them has, or nearly
    any_known: bool

    @classmethod
    def of(cls, question: str, generations: Sequence[Generation]) -> Words:
        """Return *question*'s words as *generations* know them."""
        typed = dict.fromkeys(surface(shapes(question)))
        content = [word for word in typed if word not in STOP_WORDS]
        sides = [generation.lexical for generation in generations]
        # A word that any collection knows is a word, and no typo of another's.
        unknown = [w for w in content if not any(side.has_word(w) for side in sides)]
        near = [{word: side.nearest(word) for word in unknown} for side in sides]
        right = {
            word: next(filter(None, (found[word] for found in near)), [""])[0]
            for word in unknown
        }
        strange = [
            word
            for word in unknown
            if not right[word]
            and not any(g.glossary.has_word(word, question) for g in generations)
        ]
        # A few pages know few words of any language: there it says less.
        size = sum(len(generation.passages) for generation in generations)
        weight = min(1.0, math.sqrt(size / _MANY))
        return cls(
            question,
            _WORD.sub(lambda found: right.get(found[0].lower()) or found[0], question),
            tuple(" ".join([question, *chain(*found.values())]) for found in near),
            known=1 - weight * len(strange) / len(content) if content else 0.0,
            any_known=len(strange) < len(content),
        )

    def legs(
        self, generations: Sequence[Generation], previous: str
    ) -> tuple[rank.Leg, ...]:
        """Return BM25's scores for the question, the one before it counting half."""
        legs = []
        for generation, query in zip(generations, self.queries, strict=True):
            # As typed, too: a phrase may have words that mending takes for others'.
            said = dict.fromkeys((self.question, self.mended))
            texts = [
                (weight * share, text)
                for weight, whole, meant in (
                    (1.0, query, said),
                    (rank.PREVIOUS_WEIGHT, previous, (previous,)),
                )
                for share, text in (
                    (1.0, whole),
                    (1.0, " ".join(generation.lexical.parts(whole))),
                    (rank.GLOSSARY_WEIGHT, _names(generation, meant)),
                )
            ]
            legs.append(rank.Leg(generation, *_sides(generation, texts)))
        return tuple(legs)

    def share_in(self, passage: Passage) -> float:
        """Return which share of the question's words *passage* has."""
        wanted = set(tokens(self.question))
        have = set(tokens(f"{passage.path} {passage.section} {passage.text}"))
        return len(wanted & have) / len(wanted) if wanted else 0.0


def _names(generation: Generation, texts: Iterable[str]) -> str:
    """Return the documents' names for what *texts* say, each once."""
    added = map(generation.glossary.added, texts)
    return " ".join(dict.fromkeys(chain.from_iterable(added)))


def _sides(
    generation: Generation, texts: Sequence[tuple[float, str]]
) -> tuple[rank.Scores, rank.Scores, rank.Scores]:
    """Return what passages, their documents and their folders score for all *texts*,
    each by its weight."""
    lexical, asked = generation.lexical, weighed(texts)
    return (
        lexical.scores(asked),
        lexical.group_scores(asked, generation.files),
        lexical.group_scores(asked, generation.folders),
    )
