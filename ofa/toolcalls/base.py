"""
What tool calls are made of, whatever model writes them.

Knows tools and text; nothing of engines, tokens or HTTP. A family's format renders
declarations, past calls and results for the prompt, and reads what the model writes.
Control tokens appear in both directions as what *mark* makes of them: a spelling that
no author and no model can write, so that the same characters in content stay text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..chat import Tool, ToolCall

Mark = Callable[[str], str]  # from a control token to how it is spelled here


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt; only in *ours* are control tokens more than characters."""

    text: str
    ours: bool = True


Markup = tuple[Piece, ...]


@dataclass(frozen=True)
class Found:
    """A call as a model wrote it: read, but neither resolved nor checked."""

    name: str
    arguments: dict[str, Any]
    repairs: tuple[str, ...] = ()  # what had to be mended to read it, one word each


@dataclass(frozen=True)
class Failed:
    """A call that can't be used, as the model wrote it, and why: for one more try."""

    raw: str
    why: str  # one line that a model understands; may quote names, never arguments
    index: int = 0  # of the choice


class Unreadable(ValueError):
    """What stands where a call should is none; the text says what is wrong with it."""


class Format(Protocol):
    """How the models of one family are told of tools, and how they call them."""

    name: str

    @property
    def openers(self) -> tuple[str, ...]:
        """What a call may begin with; text from there on is held back."""

    @property
    def results_in(self) -> Literal["user", "assistant"]:
        """In whose turn results stand; in an assistant's, the answer goes on in it."""

    def declare(self, tools: Sequence[Tool]) -> Markup:
        """Return what tells a model of *tools*; it stands behind the system text."""

    def calls(self, calls: Sequence[ToolCall]) -> Markup:
        """Return past *calls* of one assistant's turn as the model writes them."""

    def results(self, results: Sequence[tuple[str, str]]) -> Markup:
        """Return (tool's name, text) pairs that neighbouring tool messages gave."""

    def length(self, text: str) -> int | None:
        """
        Return how many characters of *text*, which begins with an opener, the call has.

        None while more may come; 0 if this is no call at all.
        """

    def read(self, text: str) -> list[Found]:
        """Return the calls in *text*, which `length` has cut; raises `Unreadable`."""


def plain(markup: Markup) -> str:
    """Return *markup* as text, for an engine without control tokens."""
    return "".join(piece.text for piece in markup)
