"""Short prompts that wait together are read together, and answered as if alone."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import pytest

from ofa.chat import Sampling
from ofa.engine.mlx.rows import Row, Sampled

from .odd import odd_engine

WINDOW = 32  # of the tiny models


class Held:
    """An engine that can be made to wait in a step, while rows come into its line."""

    def __init__(self, folder, **more):
        self.shapes = []
        self._hold, self._held, self._go_on = (threading.Event() for _ in range(3))
        self.engine = odd_engine(folder, self._act, rows=8, **more)
        self.engine.wait(60)

    def _act(self, tokens):
        self.shapes.append(tokens.shape)
        if self._hold.is_set():
            self._hold.clear()
            self._held.set()
            self._go_on.wait(20)

    def submit(self, row):
        """Put *row* in the engine's line."""
        self.engine._scheduler.submit(self.engine._first.weights, row)

    def together(self, rows):
        """Have *rows* in line before the first of them is read; return the tokens of
        those that are not given up."""
        self._held.clear()
        self._go_on.clear()
        self._hold.set()
        before = row(range(2, 5), 1)
        self.submit(before)
        assert self._held.wait(20)
        for one in rows:
            self.submit(one)
        self._go_on.set()
        written(before)
        return [written(one) for one in rows if not one.over]


@pytest.fixture(params=["gemma3", "gemma4"])
def held(request, smaller):
    """An engine on either model."""
    made = Held(smaller[request.param])
    yield made
    made.engine.close()


@pytest.fixture
def cold(request, held, smaller):
    """The same model, with nothing ever kept."""
    folder = smaller[request.node.callspec.params["held"]]
    made = Held(folder, prefix_memory_gib=0)
    yield made
    made.engine.close()


def row(ids, tokens=4, *, owner="a", seed=None, marks=()):
    """Return a row of *ids*, to be kept at its end."""
    ids = tuple(ids)
    sampling = Sampling(temperature=0.0 if seed is None else 1.0, seed=seed)
    return Row(
        ids,
        max_tokens=tokens,
        sampling=sampling,
        marks=(*marks, (len(ids) - 1, "prompt")),
        owner=owner,
    )


def written(one):
    """Return the tokens of a row, all of them."""
    found = []
    for item in filter(None, one.mailbox.read()):
        if not isinstance(item, Sampled):
            break
        found.append(item.token)
    return found


def widest(shapes):
    """Return the largest number of prompts in one reading."""
    return max((rows for rows, width in shapes if width > 1), default=0)


def test_what_is_read_together_is_answered_as_alone(held, cold):
    """Other lengths, beginnings that are kept, lengths beyond the window, seeds."""
    draw = random.Random(7)
    known = defaultdict(list)
    together = 0
    for trial in range(40):
        asked = []
        for n in range(draw.randint(2, 6)):
            owner = f"{trial % 3}"
            begin = draw.choice(known[owner]) if known[owner] and n % 2 else ()
            more = [draw.randrange(10, 200) for _ in range(draw.randint(2, 24))]
            asked.append((owner, (*begin, *more), draw.choice([None, 1, 2])))
        del held.shapes[:]
        rows = [row(ids, owner=owner, seed=seed) for owner, ids, seed in asked]
        answers = held.together(rows)
        together += widest(held.shapes) > 1
        for one, answer, (owner, ids, seed) in zip(rows, answers, asked, strict=True):
            assert answer == cold.together([row(ids, seed=seed)])[0], (trial, len(ids))
            assert one.cached < len(ids)
            if len(ids) < 4 * WINDOW:
                known[owner].append((*ids, *answer))
    assert together > 25
    assert max(len(ids) for all_ in known.values() for ids in all_) > 2 * WINDOW


def test_long_prompts_are_read_one_by_one(request, smaller):
    """While somebody's answer is written: two chunks at most are read at a time."""
    held = Held(smaller["gemma3"], prefill_step=128)
    request.addfinalizer(held.engine.close)
    writing = row([9, 9, 9], 400)
    held.submit(writing)
    assert next(filter(None, writing.mailbox.read())).token is not None
    prompts = [[20 + n] * 300 for n in range(3)]
    del held.shapes[:]

    held.together([row(ids) for ids in prompts])
    writing.over = True

    assert widest(held.shapes) == 1
    assert any(rows > 1 for rows, width in held.shapes if width == 1)


def test_what_gave_way_is_not_counted_as_read(held, monkeypatch):
    """A prompt is short by what is kept of it: if that goes for want of room, it is a
    long one, and is read alone."""
    begin = [100 + n % 50 for n in range(600)]
    held.together([row(begin)])
    batch = held.engine._scheduler._resident[1]
    make_room = batch._make_room

    def dropping(one):
        if len(one.ids) > 600:
            batch._store.clear()
        return make_room(one)

    monkeypatch.setattr(batch, "_make_room", dropping)
    del held.shapes[:]
    short, long = row([7, 8, 9]), row([*begin, 5, 6])

    held.together([short, long])

    assert long.cached == 0
    assert all(rows == 1 for rows, width in held.shapes if width > 10), held.shapes


def test_what_several_share_is_read_once(held):
    """The choices of one request, or callers with the same long beginning: the first
    is read and kept, and then the others together."""
    shared = [30 + n % 50 for n in range(50)]
    system = ((len(shared), "system"),)
    rows = [row((*shared, 100 + n, 7, 8), marks=system) for n in range(4)]
    del held.shapes[:]

    held.together(rows)

    assert rows[0].cached == 0
    assert [one.cached for one in rows[1:]] == [len(shared)] * 3
    assert sum(rows * width for rows, width in held.shapes if width > 20) <= 64


def test_those_given_up_harm_none_that_they_are_read_with(held, cold):
    """Taken out before their first token; the others go on as if alone."""
    prompts = [[40 + n, 50 + n, 60 + n, 70 + n] * 4 for n in range(4)]
    rows = [row(ids) for ids in prompts]
    rows[1].over = rows[2].over = True

    first, last = held.together(rows)

    assert first == cold.together([row(prompts[0])])[0]
    assert last == cold.together([row(prompts[3])])[0]


def test_who_comes_at_once_is_waited_for(held):
    """The first of a burst is not begun while others' prompts are being tokenised."""
    scheduler = held.engine._scheduler
    rows = [row([40 + n, 50 + n, 60 + n]) for n in range(3)]
    del held.shapes[:]

    scheduler.expect()
    scheduler.expect()
    scheduler.expect()
    for one in rows:
        held.submit(one)
        time.sleep(0.03)  # for as long as a slow tokeniser takes
    for one in rows:
        written(one)

    assert widest(held.shapes) == 3


def test_nobody_is_waited_for_alone_or_for_long(held):
    """One that comes alone begins at once; one that is refused holds up nobody."""
    alone, other = row([40, 41, 42], 1), row([50, 51, 52], 1)

    began = time.monotonic()
    held.engine._scheduler.expect()
    held.submit(alone)
    written(alone)
    assert time.monotonic() - began < 5
    held.engine._scheduler.expect()  # of this one no row ever comes
    began = time.monotonic()
    held.engine._scheduler.expect()
    held.submit(other)
    written(other)

    assert time.monotonic() - began < 5, "no more than a tenth of a second"
    assert not held.engine._scheduler._expects(time.monotonic() + 1)
