"""A chat is said again byte for byte, with as many passages as there is room for."""

import re
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Chat, Message
from ofa.rag.memory import Block, Memory
from ofa.rag.replay import Replay

from .wrapped import called, chat, said, user, vscode, vscode_turn

SCOPE = ("ofa-hpc", "key-1")
ASK = "How do I request two GPUs?"
PLENTY = 1_000_000


class Maker:
    """Makes a numbered block a question, and remembers what it was asked."""

    def __init__(self, tokens: int = 7) -> None:
        self.tokens = tokens
        self.asked: list[str] = []
        self.tags: list[str] = []
        self.rooms: list[int] = []

    def __call__(self, question, tag, room):
        """Return a block that differs on each call, cut to the room; none of none."""
        self.asked.append(question.text)
        self.tags.append(tag)
        self.rooms.append(room)
        number = len(self.asked)
        tokens = min(self.tokens, room)
        tag = tag or f"tag-{number}"
        return (
            Block(f"[block {number}] ", tag, ("a.md",), tokens, 1) if tokens else None
        )


def nothing(question, tag, room):
    """Find nothing."""


def augment(memory, request, scope, make, room=PLENTY):
    """Return *request* with its blocks."""
    return Replay(memory, request, scope, make).fit(room)


def texts(augmented) -> list[str]:
    """Return the user messages' texts."""
    return [m.text for m in augmented.chat.messages if m.role == "user"]


def test_the_block_stands_before_the_question_only():
    """Of a turn's two messages the one with the question is augmented."""
    request = vscode(ASK)

    done = augment(Memory(1 << 20), request, SCOPE, Maker())

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
    first = augment(memory, request, SCOPE, make)

    for _ in range(10):
        request = replace(request, messages=(*request.messages, *called()))
        again = augment(memory, request, SCOPE, make)
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
        done = augment(memory, chat(*messages), SCOPE, make)
        assert done.chat.messages[: len(before)] == before
        assert done.how == "fresh"
        before = done.chat.messages
        messages = (*messages, said(f"Answer {turn}."))

    assert len(make.asked) == 10
    assert len(set(make.tags[1:])) == 1  # the conversation keeps its tag


def test_R010_regenerating_says_the_same():
    """The same question in the same place gets the same bytes."""
    memory, make = Memory(1 << 20), Maker()

    first = augment(memory, vscode(ASK), SCOPE, make)
    again = augment(memory, vscode(ASK), SCOPE, make)

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
    augment(memory, vscode(ASK), SCOPE, make)

    augment(memory, vscode(ASK), other, make)

    assert len(make.asked) == 2


def test_nothing_found_is_nothing_said_and_asked_again():
    """A look-up that failed while the index was built may succeed on a retry."""
    memory = Memory(1 << 20)
    request = vscode(ASK)

    bare = augment(memory, request, SCOPE, nothing)
    later = augment(memory, request, SCOPE, Maker())

    assert bare.chat == request and bare.how == "none" and bare.block is None
    assert later.how == "fresh"


def test_a_bare_turn_is_not_told_of_an_older_block():
    """What is reported belongs to the newest turn; the history keeps its own."""
    memory, make = Memory(1 << 20), Maker()
    augment(memory, vscode(ASK), SCOPE, make)
    thanks = vscode(ASK, said("So."), user(vscode_turn("thanks")))

    done = augment(memory, thanks, SCOPE, nothing)
    looped = replace(thanks, messages=(*thanks.messages, *called()))
    tool = augment(memory, looped, SCOPE, make)

    assert texts(done)[1].startswith("[block 1]")
    assert done.how == tool.how == "none" and done.block is tool.block is None
    assert len(make.asked) == 1


def test_a_retried_question_beside_a_failed_one_keeps_the_first_block():
    """A client that resends after an error puts two questions in one turn."""
    memory, make = Memory(1 << 20), Maker()
    augment(memory, chat(user(ASK)), SCOPE, make)

    done = augment(memory, chat(user(ASK), user("And four GPUs?")), SCOPE, make)

    assert texts(done) == [f"[block 1] {ASK}", "[block 2] And four GPUs?"]


def test_memory_is_bounded_and_drops_the_oldest():
    """Of more conversations than fit, the recently used ones are kept."""
    memory, make = Memory(8_000), Maker()
    kept = chat(user("the one that is used"))
    augment(memory, kept, SCOPE, make)

    for number in range(100):
        augment(memory, chat(user(f"question {number}")), SCOPE, make)
        assert augment(memory, kept, SCOPE, make).how == "replayed"

    count, size = memory.held
    assert 5 <= count <= 13 and size <= 8_000
    assert augment(memory, chat(user("question 0")), SCOPE, make).how == "fresh"


def test_a_block_over_the_limit_is_used_and_not_kept():
    """A tiny memory costs a cache, not an answer."""
    memory = Memory(100)

    done = augment(memory, chat(user(ASK)), SCOPE, Maker())

    assert texts(done) == [f"[block 1] {ASK}"]
    assert memory.held == (0, 0)


def test_two_at_once_say_the_same():
    """Identical requests that look up at the same time send the same bytes."""
    memory = Memory(1 << 20)
    meeting = threading.Barrier(4, timeout=10)
    make = Maker()
    chats: list[Chat] = []

    def slow(question, tag, room):
        block = make(question, tag, room)
        meeting.wait()
        return block

    def run():
        chats.append(augment(memory, vscode(ASK), SCOPE, slow).chat)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(make.asked) == 4 and len(chats) == 4
    assert all(found == chats[0] for found in chats)


# --------------------------------------------------------------------------------------
# Short of room


def converse(memory, make, rooms, messages=()):
    """Ask one more question for each of *rooms*; return what each turn became."""
    done = []
    for room in rooms:
        number = sum(message.role == "user" for message in messages)
        messages = (*messages, user(f"Question number {number}?"))
        done.append(augment(memory, chat(*messages), SCOPE, make, room))
        messages = (*messages, said(f"Answer {number}."))
    return done


def blocks(augmented) -> list[str]:
    """Return the number of each user message's block, "" where it has none."""
    found = (re.match(r"\[block (\d+)\] ", text) for text in texts(augmented))
    return [match[1] if match else "" for match in found]


def test_the_oldest_go_first_and_half_at_once():
    """Five blocks fit. The sixth costs four, so that three turns only append again."""
    turns = converse(Memory(1 << 20), Maker(100), [500] * 10)

    assert blocks(turns[4]) == ["1", "2", "3", "4", "5"]
    assert blocks(turns[5]) == ["", "", "", "", "5", "6"]
    assert blocks(turns[8]) == ["", "", "", "", "5", "6", "7", "8", "9"]
    assert blocks(turns[9]) == [*[""] * 8, "9", "10"]
    assert [turn.left_out for turn in turns] == [0, 0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert [turn.tokens for turn in turns[4:]] == [500, 200, 300, 400, 500, 200]


def test_turns_are_beginnings_of_each_other_between_drops():
    """R044: only the two turns that drop differ from what was read before."""
    turns = converse(Memory(1 << 20), Maker(100), [500] * 10)

    begins = [
        after.chat.messages[: len(before.chat.messages)] == before.chat.messages
        for before, after in pairwise(turns)
    ]
    assert begins == [True] * 4 + [False] + [True] * 3 + [False]


def test_what_was_dropped_stays_dropped():
    """More room later brings nothing back: the engine has read it without."""
    *_, short, ample = converse(Memory(1 << 20), Maker(100), [500, 500, 200, PLENTY])

    assert blocks(short) == ["", "", "3"]
    assert blocks(ample) == ["", "", "3", "4"]


def test_R010_regenerating_after_a_drop_says_the_same():
    """The same request is the same bytes, also the one that dropped."""
    memory, make = Memory(1 << 20), Maker(100)
    *_, before, last = converse(memory, make, [250] * 3)
    *_, again = converse(memory, make, [250] * 3)

    assert blocks(before) == ["1", "2"] and blocks(last) == ["", "", "3"]
    assert again.chat == last.chat
    assert (last.how, again.how) == ("fresh", "replayed")
    assert len(make.asked) == 3


def test_another_branch_keeps_its_blocks():
    """Who goes back to an early turn is where nothing had been dropped yet."""
    memory, make = Memory(1 << 20), Maker(100)
    converse(memory, make, [500, 500, 150])

    first = augment(memory, chat(user("Question number 0?")), SCOPE, make, 500)
    other = augment(
        memory,
        chat(user("Question number 0?"), said("Answer 0."), user("Something else?")),
        SCOPE,
        make,
        500,
    )

    assert blocks(first) == ["1"] and first.left_out == 0
    assert blocks(other) == ["1", "4"]


def test_new_passages_shrink_when_no_old_ones_are_left():
    """The newest question's block is the last to give way, by getting smaller."""
    *_, last = converse(Memory(1 << 20), Maker(100), [500, 500, 60])

    assert blocks(last) == ["", "", "3"]
    assert last.tokens == 60


def test_without_any_room_a_chat_is_as_it_came():
    """Nothing is injected, nothing is said again."""
    *_, last = converse(Memory(1 << 20), Maker(100), [500, 500, 0])

    assert blocks(last) == ["", "", ""]
    assert (last.how, last.tokens, last.left_out) == ("none", 0, 2)


def test_a_tool_loop_keeps_its_question_longest():
    """Results fill the room: old turns give way first, then the question's block."""
    memory, make = Memory(1 << 20), Maker(100)
    *_, last = converse(memory, make, [500, 500])
    asked = (user("Question number 0?"), said("Answer 0."), user("Question number 1?"))
    rounds = []

    for room in (500, 120, 120, 50, 500):
        asked = (*asked, *called())
        rounds.append(augment(memory, chat(*asked), SCOPE, make, room))

    assert [blocks(turn) for turn in rounds] == [
        ["1", "2"],
        ["", "2"],
        ["", "2"],
        ["", ""],
        ["", ""],
    ]
    assert len(make.asked) == 2


def test_a_question_asked_again_gets_its_chance_again():
    """Passages that found no room once may find it with a shorter answer wanted."""
    memory, make = Memory(1 << 20), Maker(100)
    request = chat(user(ASK))
    none = augment(memory, request, SCOPE, make, 0)
    replayed = Replay(memory, request, SCOPE, make)
    replayed.fit(500)
    replayed.fit(0)

    again = augment(memory, request, SCOPE, make, 500)

    assert none.how == "none"
    assert again.how == "fresh"


def test_less_room_than_was_thought():
    """An engine that counts more gets the oldest left out, then a smaller newest."""
    memory, make = Memory(1 << 20), Maker(100)
    converse(memory, make, [500, 500])
    asked = (user("Question number 0?"), said("Answer 0."), user("Question number 1?"))
    replay = Replay(memory, chat(*asked, said("A."), user("And?")), SCOPE, make)

    sets = [replay.fit(room) for room in (500, 220, 110, 50, 0)]

    assert [blocks(each) for each in sets] == [
        ["1", "2", "3"],
        ["", "", "3"],
        ["", "", "3"],
        ["", "", "4"],
        ["", "", ""],
    ]
    assert [each.how for each in sets] == ["fresh"] * 4 + ["none"]
    assert make.rooms[-3:] == [500, 50, 0]


def test_the_next_turn_begins_with_the_set_that_was_taken():
    """What the engine took is what is said again, not what it refused."""
    memory, make = Memory(1 << 20), Maker(100)
    replay = Replay(memory, chat(user(ASK)), SCOPE, make)
    replay.fit(500)
    taken = replay.fit(40)

    done = augment(
        memory, chat(user(ASK), said("So."), user("And four?")), SCOPE, make, 500
    )

    assert done.chat.messages[:2] == taken.chat.messages
    assert done.tokens == 140


def test_the_next_turn_begins_bare_where_no_set_was_taken():
    """Passages that fit nowhere are not tried again in history."""
    memory, make = Memory(1 << 20), Maker(100)
    converse(memory, make, [500])
    asked = (user("Question number 0?"), said("Answer 0."), user("Question number 1?"))
    replay = Replay(memory, chat(*asked), SCOPE, make)
    replay.fit(500)
    replay.fit(0)

    done = augment(memory, chat(*asked, said("A."), user("And?")), SCOPE, make, 500)

    assert blocks(done) == ["", "", "4"]


def test_of_two_that_shrink_the_quicker_is_followed():
    """Identical requests that are both refused still send the same bytes."""
    memory = Memory(1 << 20)
    one, two = (Replay(memory, chat(user(ASK)), SCOPE, Maker(100)) for _ in range(2))
    one.fit(500)
    two.fit(500)

    assert one.fit(90).chat == two.fit(90).chat


def test_a_twins_block_that_is_too_big_is_left_out():
    """Found while we searched: it is used if it fits, and goes whole if it does not."""
    memory, make = Memory(1 << 20), Maker(100)
    request = chat(user(ASK))
    theirs = Replay(memory, request, SCOPE, make)

    def slow(question, tag, room):
        theirs.fit(500)
        return make(question, tag, room)

    ours = Replay(memory, request, SCOPE, slow)

    assert ours.fit(60).chat == request
    assert ours.fit(0).chat == request


TURNS = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 900)), max_size=25)


@settings(deadline=None)
@given(TURNS)
def test_blocks_never_take_more_than_the_room(turns):
    """Whatever comes: they fit, oldest go first, and what is gone stays gone."""
    memory, make = Memory(1 << 20), Maker()
    messages: tuple[Message, ...] = ()
    before = None

    for number, (tokens, room) in enumerate(turns):
        make.tokens = tokens
        messages = (*messages, user(f"Question number {number}?"))
        done = augment(memory, chat(*messages), SCOPE, make, room)
        messages = (*messages, said(f"Answer {number}."))

        had = blocks(before)[:number] if before else []
        kept = blocks(done)[:number]
        assert done.tokens <= room
        assert kept == [""] * (number - len(kept_tail(had, kept))) + kept_tail(
            had, kept
        )
        if before and kept == had:
            length = len(before.chat.messages)
            assert done.chat.messages[:length] == before.chat.messages
        elif before:
            assert done.block is None or done.tokens <= max(
                room // 2, done.block.tokens
            )
        before = done


def kept_tail(had, kept):
    """Return the end of *had* that is as long as what is left in *kept*."""
    first = next((at for at, block in enumerate(kept) if block), len(kept))
    return had[first:]
