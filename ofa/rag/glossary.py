"""
Users' words and documents' names for one thing: what a question is widened by.

People describe ("killed for too much memory"), documents name (``OUT_OF_MEMORY``). A
glossary is written in Solr's synonym format, a rule a line:

    # what people say => how the documents write it
    stirred tank, mixing vessel => mixerVessel2D, MRFProperties
    conjugate heat transfer, CHT          # one as good as the other

Unlike Solr's, ``=>`` adds and replaces nothing: a wrong guess costs rank, no match. An
indented line goes on with the rule above it; a backslash before a comma or a number
sign makes it a character of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .lexical import stem

# What other words may stand between two of a phrase: "memory *they* used".
_GAP = 1
# Words that say nothing of what is meant. Fewer than search leaves out: "out of memory"
# is not "memory", and "once" and "without" are what some phrases turn on.
_SMALL = frozenset(
    """
    a an and are be been did do does for had has have i in is it its me my of on or our
    that the their them this to was we were with you your
    """.split()  # noqa: SIM905 - a list literal would be 30 lines
)
_WORD = re.compile(r"[^\W_]+")

_ARROW = re.compile(r"\s*=>\s*")
_COMMA = re.compile(r"(?<!\\),")
_COMMENT = re.compile(r"(?<!\\)#.*")
_ESCAPED = re.compile(r"\\([,#])")

Phrase = tuple[str, ...]  # stems, in order


class BadGlossary(ValueError):
    """A line is no rule; the message has its number and what is wrong."""


@dataclass(frozen=True)
class Glossary:
    """
    The rules of one collection: what each phrase adds, by the phrase's first word.

    *text* is what it was made of.
    """

    text: str
    _rules: Mapping[str, Sequence[tuple[Phrase, tuple[str, ...]]]]

    @classmethod
    def parse(cls, text: str) -> Glossary:
        """Return the glossary that *text* is; raises `BadGlossary`."""
        rules: dict[str, list[tuple[Phrase, tuple[str, ...]]]] = {}
        for number, line in _lines(text):
            for said, meant in _rules(number, line):
                phrase = tuple(_words(said))
                if not phrase:
                    why = f"{said!r} is of words that every text has"
                    raise BadGlossary(f"line {number}: {why}")
                rules.setdefault(phrase[0], []).append((phrase, meant))
        return cls(text, rules)

    def __len__(self) -> int:
        return sum(map(len, self._rules.values()))

    def added(self, question: str) -> tuple[str, ...]:
        """Return the names that *question* means by what it says, each once."""
        found = (meant for _, meant in self._found(question))
        return tuple(dict.fromkeys(name for meant in found for name in meant))

    def has_word(self, word: str, question: str) -> bool:
        """Tell whether *word* is one of a phrase of *question*'s that is a rule's."""
        stemmed = stem(word.lower())
        return any(stemmed in phrase for phrase, _ in self._found(question))

    def _found(self, question: str) -> Iterator[tuple[Phrase, tuple[str, ...]]]:
        words = _words(question)
        for at, word in enumerate(words):
            for phrase, meant in self._rules.get(word, ()):
                if _follows(words, at, phrase):
                    yield phrase, meant


NONE = Glossary("", {})


def _words(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text.lower()) if word not in _SMALL]


def _lines(text: str) -> list[tuple[int, str]]:
    """Return the rules as they are written, each with the number of its first line."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = _COMMENT.sub("", line)
        if bare[:1].isspace() and bare.strip() and found:
            first, begun = found.pop()
            found.append((first, f"{begun} {bare.strip()}"))
        elif bare.strip():
            found.append((number, bare.strip()))
    return found


def _rules(number: int, line: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what is said and what it adds."""
    sides = [_names(side) for side in _ARROW.split(line)]
    if len(sides) > 2:
        raise BadGlossary(f"line {number}: more than one =>")
    if not all(sides) or (len(sides) == 1 and len(sides[0]) < 2):
        raise BadGlossary(f"line {number}: a rule is `words => names` or `name, name`")
    said, meant = sides[0], sides[-1]
    for phrase in said:
        yield phrase, tuple(name for name in meant if name != phrase)


def _names(side: str) -> list[str]:
    parts = (_ESCAPED.sub(r"\1", part).strip() for part in _COMMA.split(side))
    return [part for part in parts if part]


def _follows(words: Sequence[str], at: int, phrase: Phrase) -> bool:
    """Return whether *phrase* stands at *at*, its words in order, nearly together."""
    for word in phrase[1:]:
        after = range(at + 1, min(at + 2 + _GAP, len(words)))
        at = next((place for place in after if words[place] == word), -1)
        if at < 0:
            return False
    return True
