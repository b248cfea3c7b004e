"""
What a question would bring along, for people to see: which passages, why, and why not.

It asks the very parts that serve chats, so that it can't tell anything else; a second
search without the floor adds what came closest where nothing fitted well enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ..chat import Chat, Message
from ..modes import Mode
from .lookup import Budget, Lookup, Made
from .passage import Hit, Passage
from .question import Question, asked
from .retrieve import Found, Retriever
from .shown import is_shown

NEAREST = 3  # shown where nothing is injected

_NO_QUESTION = Found(reason="skipped: no question of the user's")


@dataclass(frozen=True)
class Layer:
    """What one layer, shared or private, gave for a question."""

    name: str
    found: Found
    nearest: tuple[Hit, ...] = ()  # where nothing was found: what came closest


@dataclass(frozen=True)
class Report:
    """What a question brings into a chat of *mode* that has room for it."""

    mode: Mode
    question: Question | None  # as it is searched for
    layers: tuple[Layer, ...]
    made: Made
    budget: Budget | None = None  # None: nothing was looked up

    @property
    def text(self) -> str:
        """What stands before the question, as the model sees it."""
        return self.made.block.text if self.made.block else ""

    @property
    def tokens(self) -> int:
        """How many tokens that has."""
        return self.made.block.tokens if self.made.block else 0


class Inspector:
    """
    Makes reports of what *lookup* does.

    *ungated* searches the same shelves without a floor; *has_private* tells whether
    there is a private layer to tell of.
    """

    def __init__(
        self, lookup: Lookup, ungated: Retriever, has_private: Callable[[], bool]
    ) -> None:
        self._lookup = lookup
        self._ungated = ungated
        self._has_private = has_private

    def report(self, mode: Mode, typed: str, previous: str = "") -> Report:
        """Return the report of what is *typed* next; *previous* was asked before."""
        question = _question(mode, typed, previous)
        if question is None:
            nothing = Made((), None, _NO_QUESTION.reason)
            return Report(mode, None, (Layer("shared", _NO_QUESTION),), nothing)
        seen = self._lookup.preview(mode, question)
        words = (question.text, question.previous)
        find = partial(self._ungated.find, mode.collections, *words)
        layers = [_layer_of("shared", seen.shared, find)]
        if self._has_private():
            find = partial(self._ungated.find_private, *words)
            layers.append(_layer_of("private", seen.private, find))
        return Report(mode, question, tuple(layers), seen.made, seen.budget)


def _layer_of(name: str, found: Found, ungated: Callable[[], Found]) -> Layer:
    return Layer(name, found, ungated().hits[:NEAREST] if found.kind == "none" else ())


def _question(mode: Mode, typed: str, previous: str) -> Question | None:
    """Return the question as the server takes it out of a chat."""
    before = (Message("user", previous), Message("assistant", "…")) if previous else ()
    return asked(Chat(mode.id, (*before, Message("user", typed))))


def as_json(report: Report) -> dict[str, object]:
    """Return *report* for programs."""
    budget = report.budget
    return {
        "object": "ofa.retrieval",
        "model": report.mode.id,
        "collections": list(report.mode.collections),
        "question": report.question.text if report.question else "",
        "previous": report.question.previous if report.question else "",
        "reason": report.made.reason,
        "injected": len(report.made.passages),
        "tokens": report.tokens,
        "budget": {"tokens": budget.max_tokens, "passages": budget.max_passages}
        if budget
        else None,
        "text": report.text,
        "layers": [_layer(layer, report.made.passages) for layer in report.layers],
    }


def _layer(layer: Layer, injected: tuple[Passage, ...]) -> dict[str, object]:
    return {
        "layer": layer.name,
        "reason": layer.found.reason,
        "hits": [
            _hit(hit, injected=is_shown(hit, injected)) for hit in layer.found.hits
        ],
        "nearest": [_hit(hit, injected=False) for hit in layer.nearest],
    }


def _hit(hit: Hit, *, injected: bool) -> Mapping[str, object]:
    passage = hit.passage
    return {
        "collection": passage.collection,
        "path": passage.path,
        "section": passage.section,
        "title": passage.title,
        "score": round(hit.score, 4),
        "cosine": round(hit.cosine, 4),
        "pinned": passage.pinned,
        "injected": injected,
        "text": passage.text,
    }
