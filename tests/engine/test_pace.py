"""How fast answers are written, by an engine that looks on."""

from __future__ import annotations

import pytest

from ofa.chat import Call, Chat, End, Text, Thought, ToolCall, Usage, Waiting
from ofa.engine.pace import Paced
from ofa.engine.scripted import ScriptedEngine


class Clock:
    """Time that passes when told to."""

    now = 100.0

    def __call__(self):
        """Return what it is now."""
        return self.now


class Plays:
    """An engine whose reply plays (seconds, event) by a clock."""

    def __init__(self, clock, *steps):
        self.clock, self.steps, self.closed = clock, steps, False
        self.patient, self.told = True, {"x-ofa-cache": "miss"}

    def reply(self, chat):
        """Return itself."""
        return self

    def __iter__(self):
        for seconds, event in self.steps:
            self.clock.now += seconds
            yield event

    def close(self):
        """Note it."""
        self.closed = True


def pace(*steps, choices=1):
    """Return the pace of an answer of these steps."""
    clock = Clock()
    paced = Paced(Plays(clock, *steps), clock)
    assert [e for e in paced.reply(Chat("m", (), choices=choices))] == [
        event for _, event in steps
    ]
    return paced.decode_per_s


def test_it_is_measured_from_the_first_text_to_the_end():
    """Waiting in line and reading the prompt do not count."""
    steps = (
        (9, Waiting()),
        (5, Text("a")),
        (2, Text("b")),
        (0, End("stop", Usage(9, 21))),
    )

    assert pace(*steps) == 10.0


def test_thoughts_are_written_as_well():
    """They take the same time a token."""
    steps = ((1, Thought("a")), (2, Text("b")), (0, End("stop", Usage(9, 21))))

    assert pace(*steps) == 10.0


def test_it_is_one_answers_where_there_are_several():
    """Choices are written side by side, and counted together."""
    first = End("stop", None, 0, last=False)
    steps = ((1, Text("a")), (1, first), (1, End("stop", Usage(9, 41), 1)))

    assert pace(*steps, choices=2) == 10.0


@pytest.mark.parametrize(
    "steps",
    [
        ((1, Text("a")), (1, End("stop", Usage(9, 3)))),
        ((1, Text("a")), (1, End("stop", None))),
        ((1, Text("a")), (0, End("stop", Usage(9, 30)))),
        (
            (1, Text("a")),
            (1, Call(ToolCall("c", "f", {}))),
            (1, End("tools", Usage(9, 30))),
        ),
        ((1, End("stop", Usage(9, 30))),),
    ],
    ids=repr,
)
def test_what_tells_nothing_is_left_out(steps):
    """Short answers, such without counts or time, and calls, which come at once."""
    assert pace(*steps) is None


def test_it_is_the_median_of_the_newest():
    """A slow answer among many is no news, and old ones are forgotten."""
    clock = Clock()
    plays = Plays(clock)
    paced = Paced(plays, clock)
    for tokens in [1001] * 40 + [21] * 30 + [2001] * 2:
        plays.steps = ((0, Text("a")), (2, End("stop", Usage(9, tokens))))
        list(paced.reply(Chat("m", ())))

    assert paced.decode_per_s == 10.0


def test_all_else_is_the_engines():
    """It stands in front of an engine and changes nothing."""
    inner = ScriptedEngine()
    paced = Paced(inner)
    plays = Plays(Clock())
    reply = Paced(plays).reply(Chat("m", ()))

    reply.close()
    paced.warm([])
    paced.close()

    assert plays.closed and reply.patient and reply.told == plays.told
    assert paced.limits() == inner.limits() and paced.status() == inner.status()
    assert paced.count_tokens("a b c") == inner.count_tokens("a b c")
