"""
The turns of a conversation: any order of roles folded into what a template bears.

* leading system texts become one, the tools' declaration behind it; a later one
  becomes user text where it stands;
* calls are written as the model writes them, their results right behind, in the order
  of the calls; a result without its call becomes user text;
* reasoning is left out;
* neighbours of one role become one turn;
* a conversation starts with a user turn, empty if it must.

Knows messages and formats of tool calls; nothing of templates and tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...chat import Message, Role, Tool
from ...toolcalls.base import Format, Markup, Piece

NO_RESULT = "(no result)"

_Part = Literal["text", "calls", "results"]


@dataclass(frozen=True)
class Turn:
    """What one side says before the other does; *ends* is the kind of its last part."""

    role: Role
    markup: Markup = ()
    ends: _Part = "text"


@dataclass(frozen=True)
class Folded:
    """
    A conversation as a template bears it.

    *head* is what a model is told before all else: the leading system texts and the
    declaration. It begins the first turn, be that a system's or a user's. *is_open*
    says that the last turn is not over: the answer goes on in it.
    """

    turns: tuple[Turn, ...]
    head: Markup = ()
    is_open: bool = False


def fold(
    messages: Iterable[Message],
    how: Format,
    *,
    tools: Sequence[Tool] = (),
    takes_system: bool = True,
) -> Folded:
    """Return the turns of *messages* in *how*, which declares *tools*: system once and
    first, then user and assistant by turns, user first; no text is lost."""
    messages = tuple(messages)
    turns = _Turns(how)
    answers, orphans = _answers(messages)
    for number, message in enumerate(messages):
        if message.role == "assistant":
            turns.add("assistant", _said(message.text), "text")
            last = number == len(messages) - 1
            turns.add_calls(message, None if last else answers.get(number, {}))
        elif message.role == "tool":
            if number in orphans:
                said = f"Result of {orphans[number]}:\n{message.text}"
                turns.add("user", _said(said), "text")
        elif message.role == "user" or turns.made:
            turns.add("user", _said(message.text), "text")
    return _begun(turns.made, _head(messages, how, tools), how, takes_system)


def _begun(turns: list[Turn], head: Markup, how: Format, takes_system: bool) -> Folded:
    """Return *turns* with their beginning: *head*, and a user's turn."""
    if not turns or turns[0].role != "user":
        turns.insert(0, Turn("user"))
    is_open = _goes_on(how) and turns[-1].ends == "results"
    if head and takes_system:
        turns.insert(0, Turn("system", head))
    elif head:
        first = turns[0]
        turns[0] = Turn("user", _joined(head, first.markup, "\n\n"), first.ends)
    return Folded(tuple(turns), head, is_open)


def _head(messages: Sequence[Message], how: Format, tools: Sequence[Tool]) -> Markup:
    leading = itertools.takewhile(lambda message: message.role == "system", messages)
    text = "\n\n".join(message.text for message in leading if message.text)
    # In one order, whatever the client's: it begins every prompt that is kept.
    told = how.declare(sorted(tools, key=lambda tool: tool.name)) if tools else ()
    if told and not text:  # nothing for its first blanks to set it apart from
        told = (Piece(told[0].text.lstrip(), told[0].ours), *told[1:])
    return (*_said(text), *told)


class _Turns:
    """Turns in the making; what neighbours of one role say is joined."""

    def __init__(self, how: Format) -> None:
        self.made: list[Turn] = []
        self._how = how

    def add(self, role: Role, markup: Markup, kind: _Part) -> None:
        """Add what *role* says, or does, to the last turn if that is theirs."""
        if not self.made or self.made[-1].role != role:
            self.made.append(Turn(role, markup, kind))
        elif markup:
            last = self.made[-1]
            between = self._between(last, kind)
            self.made[-1] = Turn(role, _joined(last.markup, markup, between), kind)

    def add_calls(self, message: Message, answers: dict[int, str] | None) -> None:
        """Add the calls of *message*, and what they gave if anything follows them."""
        if not message.calls:
            return
        self.add("assistant", self._how.calls(message.calls), "calls")
        if answers is not None:
            results = [
                (call.name, answers.get(number, NO_RESULT))
                for number, call in enumerate(message.calls)
            ]
            shown = self._how.results(results)
            self.add(self._how.results_in, shown, "results")

    def _between(self, last: Turn, kind: _Part) -> str:
        """Return what joins a part of *kind* to *last*: blanks where it is text."""
        if "text" == kind == last.ends or last.role == "user":
            return "\n\n"
        if _goes_on(self._how):  # control tokens stand there, and no blank was trained
            return ""
        return "" if _text(last.markup).endswith("\n") else "\n"


def _answers(
    messages: Sequence[Message],
) -> tuple[dict[int, dict[int, str]], dict[int, str]]:
    """
    Return what the calls of each message gave, all by number, and the tools' names of
    the results without a call: editors trim old turns.

    Ids need not be unique: a result is that of the last call of its id without one.
    """
    waiting: dict[str, list[tuple[int, int]]] = {}
    names: dict[str, str] = {}
    given: dict[int, dict[int, str]] = {}
    orphans: dict[int, str] = {}
    for number, message in enumerate(messages):
        for place, call in enumerate(message.calls):
            waiting.setdefault(call.id, []).append((number, place))
            names[call.id] = call.name
        if message.role == "tool":
            if asked := waiting.get(message.answers):
                of, place = asked.pop()
                given.setdefault(of, {})[place] = message.text
            else:
                name = names.get(message.answers) or message.name
                orphans[number] = name or "an earlier call"
    return given, orphans


def _goes_on(how: Format) -> bool:
    """Return whether calls, results and what follows them are one turn of a model's,
    between control tokens."""
    return how.results_in == "assistant"


def _said(text: str) -> Markup:
    return (Piece(text, ours=False),) if text else ()


def _joined(first: Markup, second: Markup, between: str) -> Markup:
    if not (first and second and between):
        return (*first, *second)
    return (*first, Piece(between), *second)


def _text(markup: Markup) -> str:
    return markup[-1].text if markup else ""
