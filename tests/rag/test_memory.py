"""What was injected for a turn is said again, byte for byte."""

import threading
from dataclasses import replace

import pytest

from ofa.chat import Chat, Image, Message, ToolCall
from ofa.rag.memory import Block, Memory, chain

from .wrapped import called, chat, said, user, vscode, vscode_turn

SCOPE = ("ofa-hpc", "key-1")
ASK = "How do I request two GPUs?"


class Maker:
    """Makes a numbered block a question, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tags: list[str] = []

    def __call__(self, question, tag):
        """Return a block that differs on each call."""
        self.asked.append(question.text)
        self.tags.append(tag)
        number = len(self.asked)
        return Block(f"[block {number}] ", tag or f"tag-{number}", ("hpc/a.md",), 7, 1)


def texts(augmented) -> list[str]:
    """Return the user messages' texts."""
    return [m.text for m in augmented.chat.messages if m.role == "user"]


def test_the_block_stands_before_the_question_only():
    """Of a turn's two messages the one with the question is augmented."""
    request = vscode(ASK)

    done = Memory(1 << 20).augment(request, SCOPE, Maker())

    assert texts(done) == [
        request.messages[1].text,
        "[block 1] " + request.messages[2].text,
    ]
    assert done.how == "fresh" and done.block.passages == 1
    assert done.question.text == ASK


def test_R011_a_tool_loop_retrieves_once():
    """Ten rounds later the question still has its first block, and no second one."""
    memory, make = Memory(1 << 20), Maker()
    request = vscode(ASK)
    first = memory.augment(request, SCOPE, make)

    for _ in range(10):
        request = replace(request, messages=(*request.messages, *called()))
        again = memory.augment(request, SCOPE, make)
        assert texts(again) == texts(first)
        assert again.how == "replayed" and again.block == first.block

    assert make.asked == [ASK]


def test_R044_ten_turns_only_ever_append():
    """The rendered prompt of each turn begins with all of the one before it."""
    memory, make = Memory(1 << 20), Maker()
    messages: tuple[Message, ...] = ()
    before: tuple[Message, ...] = ()

    for turn in range(10):
        messages = (*messages, user(vscode_turn(f"Question number {turn}, what now?")))
        done = memory.augment(chat(*messages), SCOPE, make)
        assert done.chat.messages[: len(before)] == before
        assert done.how == "fresh"
        before = done.chat.messages
        messages = (*messages, said(f"Answer {turn}."))

    assert len(make.asked) == 10
    assert len(set(make.tags[1:])) == 1  # the conversation keeps its tag


def test_R010_regenerating_says_the_same():
    """The same question in the same place gets the same bytes."""
    memory, make = Memory(1 << 20), Maker()

    first = memory.augment(vscode(ASK), SCOPE, make)
    again = memory.augment(vscode(ASK), SCOPE, make)

    assert first.chat == again.chat
    assert (first.how, again.how) == ("fresh", "replayed")
    assert len(make.asked) == 1


@pytest.mark.parametrize(
    "other",
    [
        ("ofa-code", "key-1"),
        ("ofa-hpc", "key-2"),
        ("ofa-hpck", "ey-1"),
        ("ofa-hpc",),
    ],
)
def test_another_key_or_mode_gets_nothing_of_it(other):
    """A block may hold private passages: it is said to whom it was found for."""
    memory, make = Memory(1 << 20), Maker()
    memory.augment(vscode(ASK), SCOPE, make)

    memory.augment(vscode(ASK), other, make)

    assert len(make.asked) == 2


def test_nothing_found_is_nothing_said_and_asked_again():
    """A look-up that failed while the index was built may succeed on a retry."""
    memory = Memory(1 << 20)
    request = vscode(ASK)

    bare = memory.augment(request, SCOPE, lambda question, tag: None)
    later = memory.augment(request, SCOPE, Maker())

    assert bare.chat == request and bare.how == "none" and bare.block is None
    assert later.how == "fresh"


def test_a_bare_turn_is_not_told_of_an_older_block():
    """What is reported belongs to the newest turn; the history keeps its own."""
    memory, make = Memory(1 << 20), Maker()
    memory.augment(vscode(ASK), SCOPE, make)
    thanks = vscode(ASK, said("So."), user(vscode_turn("thanks")))

    done = memory.augment(thanks, SCOPE, lambda question, tag: None)
    looped = replace(thanks, messages=(*thanks.messages, *called()))
    tool = memory.augment(looped, SCOPE, make)

    assert texts(done)[1].startswith("[block 1]")
    assert done.how == tool.how == "none" and done.block is tool.block is None
    assert len(make.asked) == 1


def test_a_retried_question_beside_a_failed_one_keeps_the_first_block():
    """A client that resends after an error puts two questions in one turn."""
    memory, make = Memory(1 << 20), Maker()
    memory.augment(chat(user(ASK)), SCOPE, make)

    done = memory.augment(chat(user(ASK), user("And four GPUs?")), SCOPE, make)

    assert texts(done) == [f"[block 1] {ASK}", "[block 2] And four GPUs?"]


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


def test_memory_is_bounded_and_drops_the_oldest():
    """Of more conversations than fit, the recently used ones are kept."""
    memory, make = Memory(8_000), Maker()
    kept = chat(user("the one that is used"))
    memory.augment(kept, SCOPE, make)

    for number in range(100):
        memory.augment(chat(user(f"question {number}")), SCOPE, make)
        assert memory.augment(kept, SCOPE, make).how == "replayed"

    count, size = memory.held
    assert 5 <= count <= 13 and size <= 8_000
    assert memory.augment(chat(user("question 0")), SCOPE, make).how == "fresh"


def test_a_block_over_the_limit_is_used_and_not_kept():
    """A tiny memory costs a cache, not an answer."""
    memory = Memory(100)

    done = memory.augment(chat(user(ASK)), SCOPE, Maker())

    assert texts(done) == [f"[block 1] {ASK}"]
    assert memory.held == (0, 0)


def test_two_at_once_say_the_same():
    """Identical requests that look up at the same time send the same bytes."""
    memory = Memory(1 << 20)
    meeting = threading.Barrier(4, timeout=10)
    make = Maker()
    chats: list[Chat] = []

    def slow(question, tag):
        block = make(question, tag)
        meeting.wait()
        return block

    def run():
        chats.append(memory.augment(vscode(ASK), SCOPE, slow).chat)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(make.asked) == 4 and len(chats) == 4
    assert all(found == chats[0] for found in chats)


def _links(messages):
    return [link for _, link in chain(messages, SCOPE)]
