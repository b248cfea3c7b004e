"""
Text to search words, for text that is half prose and half identifiers.

``--gpus-per-node``, ``div(phi,U)``, ``nutkWallFunction`` and ``system/fvSchemes`` are
words of their own *and* the words that they are made of: a question may use either.
Knows spelling; nothing of ranking. Pure functions but for the stemmer, which is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Stem = Callable[[str], str]

MAX_WORD = 64  # longer ones are hashes, base64 or tables: nobody types them

# Function words of English questions and prose. "not", "no" and "without" stay: they
# are half of many pitfalls. So do words that are keywords somewhere ("if", "for").
STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being both
    but by can could did do does doing done each few from further get gets got had has
    have having he her here hers him his how i in into is it its itself just let me
    more most my myself now of off on once one only or other our ours out over own
    please same she should so some such than thanks that the their theirs them then
    there these they this those through to too under up us use used using very want was
    way we were what when where which while who whom why will with would you your yours
    don doesn didn isn aren wasn won wouldn couldn shouldn hasn haven ll ve
    """.split()  # noqa: SIM905 - a list literal would be 150 lines
)

# From the longest shape to the shortest, so that a part never hides its whole.
_SHAPES = re.compile(
    r"""
      \w+\([^\s()]*(?:\([^\s()]*\)[^\s()]*)*\)        # div(phi,U), grad(T())
    | (?<=[a-z])['\u2019](?:s|t|re|ve|ll|d|m)\b        # the tail of don't: no word
    | (?<![\w-])--?[A-Za-z][\w-]*                     # --gpus-per-node, -np
    | \#?[\w$~]+(?:(?:::|->|[./\-+@:%\\])[\w*$]+)*    # a::b, a/b.c, a-b, 4.10.4, word
    """,
    re.VERBOSE,
)
_PARTS = re.compile(
    r"[A-ZÀ-ÖØ-Þ]+(?=[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ])|[A-ZÀ-ÖØ-Þ]?[a-zß-öø-ÿ]+"
    r"|[A-ZÀ-ÖØ-Þ]+|\d+|[^\W\d_A-Za-zÀ-ÿ]+"
)
_PLAIN = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ]?[a-zß-öø-ÿ]+|[A-ZÀ-ÖØ-Þ]+")
_APOSTROPHES = "'\u2019"
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def shapes(text: str) -> list[str]:
    """Return the words of *text* as they are written, identifiers whole."""
    return [one for one in _SHAPES.findall(text) if one[0] not in _APOSTROPHES]


def split(written: Iterable[str], stem: Stem) -> Iterator[str]:
    """Yield the search words of what `shapes` returns, in order, with repeats."""
    for shape in written:
        if _PLAIN.fullmatch(shape):
            word = shape.lower()
            if word not in STOP_WORDS and len(word) <= MAX_WORD:
                yield stem(word)
        else:
            yield from _of_identifier(shape, stem)


def surface(written: Iterable[str]) -> Iterator[str]:
    """Yield what a person types to mean *written*: unstemmed, wholes and parts."""
    for shape in written:
        whole = shape.lower().lstrip("-#$")
        if 1 < len(whole) <= MAX_WORD:
            yield whole
        if not _PLAIN.fullmatch(shape):
            for part in _parts(shape):
                if part != whole:
                    yield part


def compounds(written: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """
    Yield the names in *written* that only capitals divide: in small letters, and parts.

    ``setFieldsDict`` has three; who types ``setfieldsdict`` means them all the same.
    """
    for shape in written:
        if shape.isalnum() and not _PLAIN.fullmatch(shape) and len(shape) <= MAX_WORD:
            parts = tuple(_parts(shape))
            if len(parts) > 1:
                yield shape.lower(), parts


def undivided(written: Iterable[str]) -> Iterator[str]:
    """Yield the words of *written* that show no parts, in small letters."""
    for shape in written:
        if _PLAIN.fullmatch(shape):
            yield shape.lower()


def _of_identifier(shape: str, stem: Stem) -> Iterator[str]:
    whole = shape.lower().lstrip("-#$")
    if 0 < len(whole) <= MAX_WORD and whole not in STOP_WORDS:
        yield whole
    parts = _parts(shape)
    if parts == [whole]:
        return
    for part in parts:
        if part not in STOP_WORDS:
            yield stem(part)
    if "/" in shape or "\\" in shape or "::" in shape:
        # The last name of a path is what people quote of it.
        name = re.split(r"[/\\]|::", whole)[-1]
        if name and name not in parts and len(name) <= MAX_WORD:
            yield name


def _parts(shape: str) -> list[str]:
    """Return the lower-case words inside an identifier, single letters left out."""
    found: list[str] = []
    for part in _PARTS.findall(shape):
        if _CJK.fullmatch(part):
            # Written without blanks: pairs of characters are the usual stand-in.
            found += [part[i : i + 2] for i in range(max(1, len(part) - 1))]
        elif 1 < len(part) <= MAX_WORD:
            found.append(part.lower())
    return found
