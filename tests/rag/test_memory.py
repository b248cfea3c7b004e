"""What is remembered of conversations: blocks, and what goes without, by hashes."""

from dataclasses import replace

import pytest

from ofa.chat import Image, Message, ToolCall
from ofa.rag.memory import Block, Memory, chain

from .wrapped import called, said, user

SCOPE = ("ofa-hpc", "key-1")
ASK = "How do I request two GPUs?"
ONE, TWO = (Block(name, "tag", ("a.md",), 7, 1) for name in ("one", "two"))


def test_the_clients_system_text_thoughts_and_ids_do_not_matter():
    """What clients rewrite between turns must not lose a conversation's blocks."""
    call, result = called(path="a")
    one = (user(ASK), call, result, said("So."), user("why?"))
    renamed = replace(call.calls[0], id="other")
    two = (
        Message("system", "the time is 12:01"),
        user(ASK),
        replace(call, calls=(renamed,), thought="hm"),
        replace(result, answers="other"),
        said("So."),
        user("why?"),
    )

    assert _links(one) == _links(two)


@pytest.mark.parametrize(
    "changed",
    [
        (user(ASK + " "), said("So."), user("why?")),
        (user(ASK), said("No."), user("why?")),
        (user(ASK), said("So."), said(""), user("why?")),
        (said("So."), user(ASK), user("why?")),
        (user(ASK), said("So."), Message("user", "why?", images=(Image("data:,x"),))),
        (user(ASK), replace(said("So."), calls=(ToolCall("", "f", {}),)), user("why?")),
        (user(ASK + "So."), said(""), user("why?")),
    ],
)  # fmt: skip
def test_any_other_history_is_another_conversation(changed):
    """The hash covers role, text, calls and images of all that was said."""
    assert _links((user(ASK), said("So."), user("why?")))[-1] != _links(changed)[-1]


def test_half_a_surrogate_is_no_error():
    """Clients send broken text; it has a hash like any other."""
    assert _links((user("\ud83d"),)) != _links((user("\ude00"),))


def test_the_first_block_is_the_one():
    """Of two identical requests at a time, both must send the same bytes."""
    memory = Memory(1 << 20)

    assert memory.recall(b"k") is None
    assert memory.remember(b"k", ONE) is ONE
    assert memory.remember(b"k", TWO) is ONE
    assert memory.recall(b"k") is ONE


def test_a_block_is_swapped_for_a_smaller_one():
    """By whoever knows the one that is there; others get what is there now."""
    memory = Memory(1 << 20)
    memory.remember(b"k", ONE)

    assert memory.swap(b"k", ONE, TWO) is TWO
    assert memory.swap(b"k", ONE, None) is TWO
    assert memory.swap(b"k", TWO, None) is None
    assert memory.recall(b"k") is None
    assert memory.held == (0, 0)


def test_left_out_is_known_from_where_it_began():
    """A conversation that shares an older beginning only is none of it."""
    memory = Memory(1 << 20)

    memory.leave_out(b"3", 2)

    assert memory.left_out([b"1", b"2", b"3", b"4"]) == 2
    assert memory.left_out([b"1", b"2"]) == 0
    assert memory.left_out([]) == 0


def test_left_out_and_block_stand_beside_each_other():
    """One turn may have both; each can go without the other."""
    memory = Memory(1 << 20)
    memory.leave_out(b"k", 1)
    memory.remember(b"k", ONE)

    memory.leave_out(b"k", 0)
    assert memory.recall(b"k") is ONE
    memory.leave_out(b"k", 4)
    memory.swap(b"k", ONE, None)
    assert memory.left_out([b"k"]) == 4

    memory.leave_out(b"k", 0)
    assert memory.held == (0, 0)


def test_looking_whether_there_is_one_is_no_use_of_it():
    """What goes without its block does not keep it from being dropped."""
    memory = Memory(2_000)
    memory.remember(b"old", ONE)
    memory.remember(b"new", TWO)

    assert memory.knows(b"old") and not memory.knows(b"none")
    for number in range(2):
        memory.remember(b"%d" % number, ONE)

    assert not memory.knows(b"old")


def _links(messages):
    return [link for _, link in chain(messages, SCOPE)]
