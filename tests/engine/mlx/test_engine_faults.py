"""Whatever raises inside the engine, nobody hangs, nobody reads a wrong text."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import pytest

from ofa.chat import Chat, Message, Output, Sampling, Text, gather
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.foreign import is_out_of_memory
from ofa.engine.queue import Queued
from ofa.errors import NotReady, OfaError, OutOfMemory, ShuttingDown

from .faulty import KINDS, OUT_OF_MEMORY, SECRET, Fault, faulty_engine

PLACES = ("joint step", "prefill", "store", "disk", "detokenizer", "mask")
# Where the answer itself is made; elsewhere it has to come out right all the same.
FATAL = ("joint step", "prefill", "detokenizer", "mask")
TURNS = {"prefill": 2}  # which call of a request's fails; of others the third at last
TOLD_S = 2.0
SYSTEM = Message("system", "the answer " * 12)
NEIGHBOUR = Message("user", "why? the quick file")

_questions = itertools.count()


def question():
    """Return a message that nobody has asked before, past the window."""
    return Message("user", f"{next(_questions)} " + "file, the quick answer " * 5)


def until(true, limit_s=5.0):
    """Wait until *true*() is, and return whether it came to be."""
    end = time.monotonic() + limit_s
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(true())


def chat(message, tokens, **more):
    """Return a greedy chat with one question."""
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    return Chat("ofa-hpc", (SYSTEM, message), sampling, caller="a", **more)


@dataclass
class Heard:
    """What one reader got: its text, and how it ended and when."""

    text: str = ""
    error: Exception | None = None
    at_s: float = 0.0


def hear(reply, started=None):
    """Read *reply* to its end; *started* is set by the first piece of its text."""
    heard = Heard()
    try:
        for event in reply:
            if isinstance(event, Text):
                heard.text += event.text
                if started:
                    started.set()
    except Exception as error:  # noqa: BLE001 - which one is what a test asks
        heard.error = error
    heard.at_s = time.monotonic()
    return heard


@dataclass
class Bench:
    """An engine to break behind its queue, and the right text for a chat."""

    fault: Fault
    engine: MlxEngine
    queued: Queued
    right: Callable[[Chat], str]


@pytest.fixture(scope="module")
def one_bench(smaller, tmp_path_factory):
    """Return one bench for all the points: what one leaves behind meets the next.

    The right texts are those of a whole engine that keeps nothing.
    """
    fault = Fault()
    disk = tmp_path_factory.mktemp("prefixes")
    engine = faulty_engine(smaller["gemma3"], fault, disk=disk, rows=4, prefill_step=32)
    cold = MlxEngine(smaller["gemma3"], Settings(prefix_memory_gib=0))
    queued = Queued(engine, running=4)
    assert engine.wait(60).ready
    cold.wait(60)
    right = cache(lambda asked: gather(cold.reply(asked)).text)
    yield Bench(fault, engine, queued, right)
    queued.close()
    cold.close()


@pytest.fixture
def bench(one_bench):
    """Return the bench, with nothing broken yet."""
    yield one_bench
    one_bench.fault.disarm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_E3_a_fault_ends_its_own_answer_and_no_other(bench, place, kind, caplog):
    """One of 72 points: told within two seconds, neighbours exact, the next one too."""
    ends_all = place in ("joint step", "prefill")
    # Long enough for the other to be sure to join; cut short where all are ended.
    faulty, beside = chat(question(), 12), chat(NEIGHBOUR, 200 if ends_all else 40)
    expected = [bench.right(faulty), bench.right(beside)]
    if place == "mask":
        faulty = replace(faulty, output=Output())
    running = threading.Event()

    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(hear, bench.queued.reply(beside), running)
        assert running.wait(10)
        turn = 1 + list(KINDS).index(kind) % TURNS.get(place, 3)
        bench.fault.arm(KINDS[kind], place, at=turn)
        broken = pool.submit(lambda: hear(bench.queued.reply(faulty)))
        assert bench.fault.happened.wait(10)
        at_s = time.monotonic()
        heard, other = broken.result(TOLD_S), neighbour.result(20)

    if place in FATAL:
        assert isinstance(heard.error, OfaError)
        assert SECRET not in str(heard.error)
        assert place != "detokenizer" or SECRET not in caplog.text
        assert heard.at_s - at_s < TOLD_S
        assert expected[0].startswith(heard.text)
    else:
        assert heard.error is None
        assert heard.text == expected[0]
    if ends_all:
        assert isinstance(other.error, OfaError)
        assert other.at_s - at_s < TOLD_S
        assert expected[1].startswith(other.text)
    else:
        assert other.error is None
        assert other.text == expected[1]
    if kind in OUT_OF_MEMORY and place in ("joint step", "prefill", "mask"):
        assert isinstance(heard.error, OutOfMemory)
        assert (heard.error.status, heard.error.code) == (503, "engine_oom")
    # The same again: nothing of what was cut short may have been kept wrong.
    bench.fault.disarm()
    assert hear(bench.queued.reply(faulty)).text == expected[0]
    assert bench.queued.depth() == (0, 0)


@pytest.mark.parametrize("kind", ["value", "unicode", "memory"])
def test_E3_a_prompt_that_cannot_be_tokenised_takes_no_place(bench, kind):
    """It is refused before it stands in line; the next one is answered."""
    asked = chat(question(), 4)
    expected = bench.right(asked)
    bench.fault.arm(KINDS[kind], "tokenizer")

    with pytest.raises(type(KINDS[kind]())):
        bench.queued.reply(asked)

    assert bench.queued.depth() == (0, 0)
    assert hear(bench.queued.reply(asked)).text == expected


@pytest.mark.parametrize("kind", KINDS)
def test_E3_a_fault_behind_the_end_is_nobodys(bench, kind, caplog):
    """What is read ahead for a next turn fails without a word to the reader."""
    asked = chat(question(), 4)
    expected = bench.right(asked)
    bench.fault.arm(KINDS[kind], "tokenizer", at=2)

    with caplog.at_level(logging.ERROR, "ofa"):
        heard = hear(bench.engine.reply(asked))

    assert SECRET not in caplog.text
    assert bench.fault.happened.is_set()
    assert (heard.text, heard.error) == (expected, None)


@pytest.fixture
def own(smaller, tmp_path):
    """Return a fault and an engine that a test may break for good."""
    fault = Fault()
    disk = tmp_path / "prefixes"
    engine = faulty_engine(smaller["gemma3"], fault, disk=disk, rows=2, unload_s=0)
    assert engine.wait(60).ready
    yield fault, engine
    fault.disarm()
    engine.close()


@pytest.mark.parametrize("words", OUT_OF_MEMORY)
@pytest.mark.parametrize("place", ["step", "prefill", "put", "mask"])
def test_E4_out_of_memory_gives_back_what_is_kept(own, place, words):
    """Wherever it happens, and a small request is answered at once afterwards."""
    fault, engine = own
    store = engine.ready.store
    told = gather(engine.reply(chat(question(), 4))).text
    assert told and store.held().entries

    fault.arm(KINDS[words], place, times=0)
    output = Output() if place == "mask" else None
    heard = hear(engine.reply(chat(question(), 4, output=output)))

    assert isinstance(heard.error, OutOfMemory) is (place != "put")
    assert until(lambda: not store.held().entries)
    fault.disarm()
    assert hear(engine.reply(chat(question(), 4))).error is None


@pytest.mark.parametrize(
    ("words", "lacked"),
    [
        ("[malloc] Unable to allocate 9 bytes.", True),
        ("[metal::malloc] Resource limit (499000) exceeded.", True),
        ("cudaMallocAsync failed: out of memory", True),
        ("Insufficient Memory (00000008)", True),
        ("kIOGPUCommandBufferCallbackErrorOutOfMemory", True),
        ("killed: OOM", True),
        ("there is no room in this bloom filter", False),
        ("[matmul] Last dimension of first input with shape (1,2)", False),
    ],
)
def test_want_of_memory_is_told_by_its_words(words, lacked):
    """MLX has no class for it; a word that only sounds like it is none."""
    assert is_out_of_memory(RuntimeError(words)) is lacked


def test_a_fault_past_the_last_token_harms_nobody(own):
    """A token is drawn ahead of its turn: that of a complete answer is not missed."""
    fault, engine = own
    asked = chat(question(), 4)
    whole = gather(engine.reply(asked)).text

    fault.arm(KINDS["value"], "mask", at=5)
    answer = gather(engine.reply(replace(asked, output=Output())))

    assert fault.happened.is_set()
    assert answer.text == whole


def test_who_is_about_to_start_is_told_too(own):
    """A fault between the line and the batch: in neither, and not forgotten."""
    fault, engine = own

    fault.arm(KINDS["runtime"], "limit")
    heard = hear(engine.reply(chat(question(), 4)))

    assert isinstance(heard.error, OfaError)
    assert hear(engine.reply(chat(question(), 4))).error is None


def test_a_file_that_raises_is_read_from_the_model(own):
    """What is on disk and can't be read is a miss, with the right answer."""
    fault, engine = own
    long = chat(Message("user", "the quick file, " * 90), 200)
    reply = engine.reply(long)
    assert any(isinstance(event, Text) and event.text for event in reply)
    reply.close()  # of the answer, which would serve no such prompt, nothing is kept
    store = engine.ready.store
    assert until(lambda: store.held().disk.files)
    store.clear()

    fault.arm(KINDS["disk_full"], "load", times=0)
    again = gather(engine.reply(long))
    happened = fault.happened.is_set()
    fault.disarm()
    store.clear()
    whole = gather(engine.reply(long))

    assert happened
    assert again.end.usage.cached_tokens == 0
    assert again.text == whole.text


def test_three_faults_in_a_minute_are_a_broken_engine(own):
    """It says so, for whoever can start another one; until then it goes on."""
    fault, engine = own
    for faults in range(3):
        assert engine.status().ready, faults
        fault.arm(KINDS["runtime"], "step")
        assert isinstance(hear(engine.reply(chat(question(), 4))).error, OfaError)

    status = engine.status()

    assert (status.ready, status.broken, status.final) == (False, True, False)
    assert status.reason == "3 steps failed within 60 s"
    assert hear(engine.reply(chat(question(), 4))).error is None


def test_a_thread_that_ends_leaves_nobody_waiting(own):
    """What can't even be recovered from ends all replies, and is told as broken."""
    fault, engine = own
    running = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(hear, engine.reply(chat(question(), 900)), running)
        assert running.wait(10)
        others = [
            pool.submit(hear, engine.reply(chat(question(), 900))) for _ in range(4)
        ]
        assert until(lambda: engine._scheduler.running == 5)
        # The recovery fails itself: it gives back memory after the first one.
        fault.arm(KINDS["memory"], "step", "clear", times=0)
        heard = [one.result(TOLD_S) for one in (first, *others)]

    assert all(isinstance(one.error, OfaError) for one in heard)
    assert engine.status().broken
    with pytest.raises(ShuttingDown):
        engine.reply(chat(question(), 4))


@pytest.mark.parametrize("kind", ["disk_full", "memory", "exit"])
def test_a_model_that_was_here_is_tried_again(smaller, kind):
    """A file server's bad minute, after an idle one, ends a request and no server."""
    fault = Fault()
    engine = faulty_engine(smaller["gemma3"], fault, unload_s=0.1)
    try:
        assert engine.wait(60).ready
        asked = chat(question(), 4)
        whole = gather(engine.reply(asked)).text
        assert until(lambda: "unloaded" in engine.status().details["model"])
        fault.arm(KINDS[kind], "load", times=0)

        heard = hear(engine.reply(asked))

        assert isinstance(heard.error, NotReady)
        assert engine.status().ready  # for the next request, which tries again
        fault.disarm()
        assert gather(engine.reply(asked)).text == whole
    finally:
        engine.close()
