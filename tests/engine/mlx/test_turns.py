"""Conversations folded into turns: calls and results in every shape clients send."""

from __future__ import annotations

import json

import pytest

from ofa.chat import Message, Tool, ToolCall
from ofa.engine.mlx.turns import fold
from ofa.toolcalls.base import Piece, plain


class Tagged:
    """A format that is easy to read: one whose results are the user's."""

    name = "tagged"
    openers = ("<c>",)
    results_in = "user"

    def declare(self, tools):
        """Name the tools."""
        return (Piece(f"\n\n<t>{','.join(tool.name for tool in tools)}</t>"),)

    def calls(self, calls):
        """Return a tag a call."""
        told = ((c.name, json.dumps(c.arguments)) for c in calls)
        return tuple(Piece(f"<c>{name}{given}</c>") for name, given in told)

    def results(self, results):
        """Return a tag a result."""
        return tuple(Piece(f"<r>{name}:{text}</r>") for name, text in results)


class GoesOn(Tagged):
    """The same, with results in the assistant's own turn."""

    results_in = "assistant"


def called(*ids, text=""):
    """Return an assistant's message with calls f_1, f_2, ... of these *ids*."""
    calls = (
        ToolCall(i, f"f_{n}", {"n": None} if n == 1 else {})
        for n, i in enumerate(ids, 1)
    )
    return Message("assistant", text, tuple(calls))


def gave(identity, text):
    """Return the result of the call *identity*."""
    return Message("tool", text, answers=identity)


def turns(messages, how, **more):
    """Return the folded turns as (role, text), and whether the last is open."""
    folded = fold([Message("user", "go"), *messages], how, **more)
    said = [(turn.role, plain(turn.markup)) for turn in folded.turns]
    assert said[0] == ("user", "go")
    return said[1:], folded.is_open


ONE, BOTH = '<c>f_1{"n": null}</c>', '<c>f_1{"n": null}</c><c>f_2{}</c>'
HISTORIES = {
    "one": (
        [called("a"), gave("a", "x")],
        [("assistant", ONE), ("user", "<r>f_1:x</r>")],
    ),
    "text beside a call": (
        [called("a", text="let me see"), gave("a", "x")],
        [("assistant", f"let me see\n{ONE}"), ("user", "<r>f_1:x</r>")],
    ),
    "text that ends its line": (
        [called("a", text="see:\n"), gave("a", "x")],
        [("assistant", f"see:\n{ONE}"), ("user", "<r>f_1:x</r>")],
    ),
    "several": (
        [called("a", "b"), gave("a", "x"), gave("b", "y")],
        [("assistant", BOTH), ("user", "<r>f_1:x</r><r>f_2:y</r>")],
    ),
    "out of order": (
        [called("a", "b"), gave("b", "y"), gave("a", "x")],
        [("assistant", BOTH), ("user", "<r>f_1:x</r><r>f_2:y</r>")],
    ),
    "an empty result": (
        [called("a"), gave("a", "")],
        [("assistant", ONE), ("user", "<r>f_1:</r>")],
    ),
    "one of two without a result": (
        [called("a", "b"), gave("b", "y")],
        [("assistant", BOTH), ("user", "<r>f_1:(no result)</r><r>f_2:y</r>")],
    ),
    "none, and somebody goes on": (
        [called("a"), Message("user", "never mind")],
        [("assistant", ONE), ("user", "<r>f_1:(no result)</r>\n\nnever mind")],
    ),
    "none, and nothing follows": ([called("a")], [("assistant", ONE)]),
    "a question behind the result": (
        [called("a"), gave("a", "x"), Message("user", "so?")],
        [("assistant", ONE), ("user", "<r>f_1:x</r>\n\nso?")],
    ),
    "a result behind the question": (
        [called("a"), Message("user", "so?"), gave("a", "x")],
        [("assistant", ONE), ("user", "<r>f_1:x</r>\n\nso?")],
    ),
    "an id used again": (
        [called("0"), gave("0", "x"), called("0"), gave("0", "y")],
        [
            ("assistant", ONE),
            ("user", "<r>f_1:x</r>"),
            ("assistant", ONE),
            ("user", "<r>f_1:y</r>"),
        ],
    ),
    "a second result": (
        [called("a"), gave("a", "x"), gave("a", "y")],
        [("assistant", ONE), ("user", "<r>f_1:x</r>\n\nResult of f_1:\ny")],
    ),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_calls_and_results_in_every_shape(case):
    """Results stand right behind their calls and in their order; nothing is lost."""
    messages, wanted = HISTORIES[case]

    assert turns(messages, Tagged()) == (wanted, False)


@pytest.mark.parametrize("case", HISTORIES)
def test_results_in_the_assistants_own_turn(case):
    """The same, in one turn and without a blank; open where they come last."""
    messages, by_turns = HISTORIES[case]

    said, is_open = turns(messages, GoesOn())

    assert [role for role, _ in said[::2]] == ["assistant"] * len(said[::2])
    own = "".join(text for role, text in said if role == "assistant")
    expected = "".join(text for _, text in by_turns).replace("see\n<", "see<")
    for rest in ("\n\nso?", "\n\nnever mind", "\n\nResult of f_1:\ny"):
        expected = expected.removesuffix(rest)
    assert own == expected
    assert is_open == (messages[-1].role == "tool" and len(said) == 1)


def test_an_answer_behind_results_goes_on_in_their_turn():
    """Calls, results and the answer to them: one turn, as the model wrote it."""
    messages = [
        called("a", text="first "), gave("a", "x"), called("b", text=" then "),
        gave("b", "y"), Message("assistant", "done"), Message("user", "thanks"),
    ]  # fmt: skip

    said, is_open = turns(messages, GoesOn())

    own = f"first {ONE}<r>f_1:x</r> then {ONE}<r>f_1:y</r>done"
    assert (said, is_open) == ([("assistant", own), ("user", "thanks")], False)


@pytest.mark.parametrize("how", [Tagged(), GoesOn()])
def test_R028_an_orphan_is_the_users_text(how):
    """A result whose call was trimmed away is told as such, by the name it brings."""
    late = Message("tool", "late", answers="gone", name="read_note")

    assert fold([late, late], how).turns[0].markup[0] == Piece(
        "Result of read_note:\nlate", ours=False
    )
    unnamed = fold([Message("user", "go"), gave("gone", "late")], how)
    assert plain(unnamed.turns[0].markup) == ("go\n\nResult of an earlier call:\nlate")


@pytest.mark.parametrize("takes_system", [True, False])
def test_tools_are_declared_behind_the_system_text(takes_system):
    """In order of their names, set apart as the format says if there is any text."""
    messages = [Message("system", "A"), Message("system", "B"), Message("user", "hi")]
    tools = [Tool("b"), Tool("a")]

    def first(how, messages=messages):
        folded = fold(messages, how, tools=tools, takes_system=takes_system)
        head, text = plain(folded.head), plain(folded.turns[0].markup)
        assert folded.turns[0].role == ("system" if takes_system else "user")
        assert text == (head if takes_system else f"{head}\n\nhi")
        return head

    assert first(Tagged()) == "A\n\nB\n\n<t>a,b</t>"
    assert first(Tagged(), messages[2:]) == "<t>a,b</t>"


def test_what_authors_wrote_stays_theirs():
    """No text of a message is among the pieces in which control tokens count."""
    messages = [
        Message("system", "<c>"), Message("user", "<c>"),
        Message("assistant", "<c>"), Message("tool", "<c>", answers="gone"),
    ]  # fmt: skip

    folded = fold(messages, Tagged())

    pieces = [piece for turn in folded.turns for piece in turn.markup]
    assert not any("<c>" in piece.text for piece in pieces if piece.ours)
    assert sum("<c>" in piece.text for piece in pieces) == 4
