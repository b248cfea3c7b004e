"""The waiting line: whose turn it is, for many threads at once."""

import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.engine.line import _KEYS_REMEMBERED, Line
from ofa.errors import ShuttingDown


def drained(line):
    """Return what comes out of *line*, in order, until it is empty."""
    return list(iter(line.get_nowait, None))


def filled(*items):
    """Return a line with *items*, each (name, key, priority)."""
    line = Line()
    for name, key, priority in items:
        line.put(name, key=key, priority=priority)
    return line


def test_items_of_one_key_come_in_order():
    """Within a key it is first come, first served."""
    line = filled(*((name, "k", 0) for name in "abc"))

    assert drained(line) == ["a", "b", "c"]


def test_keys_take_turns():
    """Ten jobs of one key and two of another alternate while both have some."""
    line = filled(
        *((f"a{n}", "a", 0) for n in range(10)), *((f"b{n}", "b", 0) for n in range(2))
    )

    assert drained(line)[:5] == ["a0", "b0", "a1", "b1", "a2"]


def test_key_served_longest_ago_goes_first():
    """A key that was just served is behind one that was not, though it asked first."""
    line = filled(("a0", "a", 0))
    line.get_nowait()
    line.put("a1", key="a")
    line.put("b0", key="b")

    assert drained(line) == ["b0", "a1"]


def test_lower_priority_number_goes_first():
    """Urgent items go before others, whatever the keys' turns are."""
    line = filled(("late", "b", 1), ("first", "a", 0), ("second", "a", 0))

    assert drained(line) == ["first", "second", "late"]


def test_turns_of_one_priority_are_not_those_of_another():
    """What an editor asked on the side costs its person no turn."""
    line = filled(("side", "a", 1))
    line.get_nowait()
    line.put("a0", key="a")
    line.put("b0", key="b")

    assert drained(line) == ["a0", "b0"]


def test_side_items_over_the_limit_wait_for_one_to_be_done():
    """No more of them are out at once than allowed; urgent ones don't count."""
    line = Line(side_limit=1)
    for name in ("one", "two"):
        line.put(name, priority=1)
    first = line.get_nowait()
    line.put("question")

    assert line.get_nowait() == "question"
    assert line.get_nowait() is None

    line.done("question")
    assert line.get_nowait() is None

    line.done(first)
    assert line.get_nowait() == "two"


def test_removed_item_is_never_served():
    """Who leaves is gone at once, and the others keep their order."""
    line = filled(("a", "k", 0), ("b", "k", 0), ("c", "k", 0))

    assert line.remove("b")
    assert not line.remove("b")
    assert len(line) == 2
    assert drained(line) == ["a", "c"]


def test_removal_goes_by_identity():
    """Two equal items are two: the one that is meant goes."""
    first, second = [1], [1]
    line = Line()
    line.put(first)
    line.put(second)

    line.remove(second)

    assert drained(line)[0] is first
    assert len(line) == 0


def test_a_side_item_may_go_when_another_is_done():
    """Being done lets one more of those go that the limit holds back."""
    line = Line(side_limit=1)
    line.put("one", priority=1)
    line.put("two", priority=1)
    one = line.get_nowait()
    assert line.get_nowait() is None

    line.done(one)

    assert line.get_nowait() == "two"


def test_a_closed_line_refuses_newcomers():
    """After closing nobody joins."""
    line = Line()

    line.close()

    assert line.get_nowait() is None
    with pytest.raises(ShuttingDown):
        line.put("more")


def test_what_is_in_line_at_the_end_can_still_be_taken():
    """Closing drops nothing."""
    line = filled(("left", "k", 1))

    line.close()

    assert line.get_nowait() == "left"
    assert line.get_nowait() is None


def test_nothing_is_lost_or_doubled_between_threads():
    """Many putters and getters at once: each item comes out exactly once."""
    line = Line()
    out = [[] for _ in range(4)]

    def put(of):
        for n in range(200):
            line.put((of, n), key=str(of % 3), priority=n % 2)

    def take(got):
        while putting.is_set() or len(line):
            if (item := line.get_nowait()) is not None:
                got.append(item)

    putting = threading.Event()
    putting.set()
    getters = [threading.Thread(target=take, args=(got,)) for got in out]
    putters = [threading.Thread(target=put, args=(of,)) for of in range(4)]
    for thread in (*getters, *putters):
        thread.start()
    for thread in putters:
        thread.join(10)
    putting.clear()
    for thread in getters:
        thread.join(10)

    counted = Counter(item for got in out for item in got)
    assert counted == Counter((of, n) for of in range(4) for n in range(200))


def test_keys_beyond_those_remembered_still_take_turns():
    """Ever new keys cost bounded memory, and the newest is still behind a stranger."""
    line = Line()
    for n in range(_KEYS_REMEMBERED + 10):
        line.put(n, key=str(n))
    drained(line)
    (row,) = line._rows.values()
    line.put("again", key=str(n))
    line.put("stranger", key="stranger")

    assert len(row._served) == _KEYS_REMEMBERED
    assert drained(line) == ["stranger", "again"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=40))
def test_no_key_waits_longer_than_one_round(asked):
    """Of one priority, no key is served twice while another of its items waits."""
    line = Line()
    for n, (key, priority) in enumerate(asked):
        line.put((n, key, priority), key=key, priority=priority)

    served = drained(line)

    assert sorted(served) == [(n, *each) for n, each in enumerate(asked)]
    assert [p for _, _, p in served] == sorted(p for _, p in asked)
    for at, (_, key, priority) in enumerate(served):
        before = [k for _, k, p in served[:at] if p == priority]
        if key not in before:
            assert all(before.count(other) <= 1 for other in before)
