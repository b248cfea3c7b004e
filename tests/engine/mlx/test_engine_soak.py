"""Many answers from one engine: nothing is mixed up, nothing grows, one thread."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ofa.chat import Chat, Message, Output, Sampling, gather, gather_choices
from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Named, Settings
from ofa.engine.mlx.memory import GiB
from ofa.engine.mlx.prefix import PrefixStore
from ofa.engine.mlx.ready import prepare
from ofa.engine.mlx.rows import warm_row

from .odd import Odd, bytes_over, odd_engine

MIB = 1 << 20
CANARIES = 1000
CHATS, SETTLED = 500, 150  # different ones, and after how many nothing may grow
GROWTH = 8 * MIB
TOTAL, KEPT = 6 * MIB, MIB  # for all caches, and for kept ones of them


def chat(text, sampling, **more):
    """Return a chat of one user message."""
    return Chat("ofa-hpc", (Message("user", text),), sampling, **more)


def test_E13_a_thousand_answers_are_not_mixed(smaller):
    """Each is forced to a letter of its own: no other is ever in its text."""
    engine = MlxEngine(smaller["gemma3"], Settings(rows=8))
    assert engine.wait(60).ready
    ids = engine.ready.vocabulary.ids
    letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]

    def ask(n):
        letter = letters[n % len(letters)]
        sampling = Sampling(
            temperature=0.0 if n % 3 else 1.0,
            seed=n if n % 5 == 0 else None,
            presence_penalty=0.5 if n % 7 == 0 else None,
            max_tokens=1 + n % 3,
            logit_bias=((ids[letter], 100.0), (ids["!"], -50.0)),
        )
        text = "quick " * (n % 12)
        answer = gather(engine.reply(chat(text, sampling, caller=str(n % 9))))
        return answer.text == letter * (1 + n % 3)

    with ThreadPoolExecutor(16) as pool:
        right = list(pool.map(ask, range(CANARIES)))
    engine.close()

    assert right.count(True) == CANARIES


# -- memory ----------------------------------------------------------------------------


def resident_bytes():
    """Return how much memory this process has now, garbage collected."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_E14_five_hundred_chats_leave_no_more_than_the_budget(smaller):
    """Kept and live caches stay within their bytes in every step; the process does not
    grow from the 150th chat on."""
    over, folder = [], smaller["gemma3"]

    def load():
        loaded = lm.load(str(folder))
        return replace(loaded, model=Odd(loaded.model, measure))

    def measure(tokens):
        resident = engine._scheduler._resident if engine.ready else None
        if resident is not None:
            over.append(bytes_over(engine.ready, resident[1]))

    settings = Settings(rows=4, memory_gib=TOTAL / GiB, prefix_memory_gib=KEPT / GiB)
    engine = MlxEngine(folder, settings, load=load)
    try:
        engine.wait(60)
        sampling = Sampling(temperature=0.8, max_tokens=6)

        def ask(n):
            text = f"{n} " + "file answer " * (n % 30)
            gather(engine.reply(chat(text, sampling, caller=str(n))))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(SETTLED)))
            before = resident_bytes()
            list(pool.map(ask, range(SETTLED, CHATS)))
        grown = resident_bytes() - before

        held = engine.ready.store.held()
        assert max(over) <= 0
        assert grown < GROWTH
        assert held.evicted > CHATS // 2
        assert held.limit_bytes <= KEPT
    finally:
        engine.close()


def test_what_is_to_be_read_ahead_does_not_pile_up(smaller):
    """While requests keep coming only the last few answers stay in line for it, and
    every system text; all that is there is read once nothing else is to do."""
    engine = MlxEngine(smaller["gemma3"])
    try:
        engine.wait(60)
        batch = engine._scheduler._resident[1]
        for n in range(4):
            batch.admit(warm_row([n + 200] * 40, "", "system"))
        for n in range(300):
            batch.admit(warm_row([n + 200] * 40, str(n), "answer"))

        kinds = [row.kind for row in batch._ahead._rows]
        newest = [row.owner for row in batch._ahead._rows][-1]
        gather(engine.reply(chat("Hi", Sampling(max_tokens=1))))

        assert (kinds.count("system"), kinds.count("answer")) == (4, 16)
        assert newest == "299"
        deadline = time.monotonic() + 20
        while batch.busy and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.ready.store.match([499] * 41, "299").tokens == 40
    finally:
        engine.close()


def test_one_row_is_no_reason_to_wait_for_what_is_read_ahead(smaller):
    """Where only one answer is written at a time, a request still goes first."""
    sizes, held, go_on = [], threading.Event(), threading.Event()

    def act(tokens):
        if watching.is_set():
            sizes.append(tokens.shape[1])
            held.set()
            go_on.wait(10)

    watching = threading.Event()
    engine = odd_engine(smaller["gemma3"], act, rows=1)
    try:
        engine.wait(60)
        engine._first.weights.speed._readings.clear()  # read in the smallest chunks
        watching.set()
        engine.warm([Chat("m", (Message("system", "the answer " * 300),))])
        assert held.wait(10)
        reply = engine.reply(chat("Hi", Sampling(max_tokens=1)))
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(gather, reply)
            deadline = time.monotonic() + 10
            while engine._scheduler._inbox.empty() and time.monotonic() < deadline:
                time.sleep(0.005)
            go_on.set()
            assert answer.result(10)
        # A chunk of what is read ahead, then the question.
        assert sizes[1] < sizes[0]
    finally:
        go_on.set()
        engine.close()


# -- threads ---------------------------------------------------------------------------


class Watched(PrefixStore):
    """A store that notes who copies caches in and out."""

    def __init__(self, limit_bytes, note):
        super().__init__(limit_bytes)
        self._note = note

    def take(self, ids, owner):
        """Note the thread."""
        self._note("take")
        return super().take(ids, owner)

    def put(self, ids, owner, layers, **more):
        """Note the thread."""
        self._note("put")
        return super().put(ids, owner, layers, **more)

    def clear(self):
        """Note the thread."""
        self._note("clear")
        super().clear()


@contextmanager
def watched(smaller, note):
    """Yield an engine of two models; *note* is told of each thing done with MLX."""
    built = threading.Event()

    def loader(name, folder):
        def load():
            built.wait(10)
            note("load")
            loaded = lm.load(str(folder))
            weights = engine._models[name].weights
            if weights.ready is None:
                ready = prepare(loaded, weights.wish)
                store = Watched(ready.room.kept, note)
                weights.ready = replace(ready, store=store)
            return replace(loaded, model=Odd(loaded.model, lambda _: note("model")))

        return load

    engine = MlxEngine(
        smaller["gemma3"],
        others=[Named("four", str(smaller["gemma4"]))],
        load=loader("", smaller["gemma3"]),
    )
    engine._models["four"].weights.load = loader("four", smaller["gemma4"])
    built.set()
    try:
        yield engine
    finally:
        engine.close()


def test_E15_all_of_mlx_happens_on_the_engines_thread(smaller):
    """Loading, reading ahead, keeping and recalling, masks, logprobs, seeds, switching
    between models and giving memory back: one thread, and no reader's."""
    seen = {}

    def note(what):
        seen.setdefault(what, set()).add(threading.get_ident())

    class Mask:
        def __call__(self, context, logits):
            note("mask")
            return logits

    with watched(smaller, note) as engine:
        engine.wait(60)
        greedy = Sampling(temperature=0.0, max_tokens=4)
        seeded = Sampling(temperature=1.0, seed=3, max_tokens=4, presence_penalty=1.0)
        engine.warm([Chat("m", (Message("system", "the answer " * 40),))])
        gather(engine.reply(chat("Hi", greedy, weights="four")))  # loaded once

        def ask(n):
            weights = "four" if n % 6 > 3 else ""
            sampling = seeded if n % 2 else greedy
            more = {"weights": weights, "logprobs": n % 3 or None, "choices": 1 + n % 2}
            reply = engine.reply(chat("quick " * 40, sampling, caller="a", **more))
            for row in reply._rows:
                row.mask = Mask()
            return gather_choices(reply)

        with ThreadPoolExecutor(6) as pool:
            assert len(list(pool.map(ask, range(18)))) == 18
        json = Output("json_object")
        answer = gather(engine.reply(chat("Hi", greedy, output=json)))
        assert answer.end.usage.completion_tokens == 4
        deadline = time.monotonic() + 10
        while engine._scheduler.running and time.monotonic() < deadline:
            time.sleep(0.01)
        thread = engine._scheduler._thread.ident

    assert set(seen) == {"load", "model", "take", "put", "mask", "clear"}
    assert {
        what: threads for what, threads in seen.items() if threads != {thread}
    } == {}
