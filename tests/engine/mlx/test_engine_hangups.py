"""Clients that hang up on the engine: its rows are free again within a second."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from ofa.answer import Answered
from ofa.chat import Chat, Message, Sampling, gather
from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Named
from ofa.engine.queue import Queued
from ofa.errors import Cancelled

from ...web_fakes import Site, post, read_until, reset
from .odd import odd_engine

IDLE_S = 1.0
STEP_S = 0.02  # the tiny model's step, made as slow as a real one's
CHUNK_S = 0.2  # and its chunk of a prompt
FLOWING = 20  # tokens after which no reader of an answer is still in a silence


class Direct:
    """What a web route needs of an Answerer: no prompt and no passages are added."""

    def __init__(self, queued):
        self._queued = queued

    def reply(self, chat, caller):
        """Stand in line with *chat* as it came."""
        return Answered(self._queued.reply(replace(chat, caller=caller.key_id)))


class Slow:
    """A server on an engine of one row, slow enough to be left in the middle."""

    def __init__(self, folder):
        self.reading = threading.Event()
        self.writing = threading.Event()
        self._go = threading.Event()  # never set: a pause that a test can't outrun
        self.chunks = self.tokens = 0
        self.engine = odd_engine(folder, self._act, rows=1, prefill_step=64)
        self.engine.wait(60)
        self.engine._first.weights.speed._readings.clear()  # read in small chunks
        self.queued = Queued(self.engine, running=2)
        self.site = Site(Direct(self.queued))
        self._slow = True

    _slow = False

    def _act(self, tokens):
        if not self._slow:
            return
        if tokens.shape[1] == 1:
            self.tokens += 1
            if self.tokens == FLOWING:
                self.writing.set()
            self._go.wait(STEP_S)
        else:
            self.chunks += 1
            self.reading.set()
            self._go.wait(CHUNK_S)

    def fast(self):
        """Be a tiny model again."""
        self._slow = False

    def idle(self):
        """Return whether nothing runs and nobody has a place."""
        return not self.engine._scheduler.running and self.queued.depth() == (0, 0)

    def close(self):
        """End server, queue and engine."""
        self.site.close()
        self.queued.close()


@pytest.fixture
def slow(smaller):
    """Yield a slow server."""
    made = Slow(smaller["gemma3"])
    yield made
    made.close()


def body(text, *, stream):
    """Return a chat that goes on for long, of one question."""
    message = {"role": "user", "content": text}
    more = {"temperature": 0, "max_tokens": 600, "logit_bias": {"230": 100}}
    return {"model": "ofa-hpc", "messages": [message], "stream": stream, **more}


def chat(*, tokens=4, weights=""):
    """Return a short question, forced to so many letters."""
    message = Message("user", "the quick file")
    sampling = Sampling(temperature=0.0, max_tokens=tokens, logit_bias=((230, 100.0),))
    return Chat("ofa-hpc", (message,), sampling, weights=weights)


def leave(connection, how):
    """Hang up, politely or as a killed process does."""
    if how == "RST":
        reset(connection)
    else:
        connection.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_E9_a_hang_up_leaves_the_engine_idle(slow, phase, how, stream):
    """In line, while a prompt is read and between tokens: idle within a second, and
    the next answer is the right one."""
    text = "file " * 400 if phase == "prefill" else "Hi"
    with slow.site.socket() as connection, slow.site.socket() as before:
        if phase == "queue":
            before.sendall(post(body("why?", stream=True)))
            read_until(before, b"content")
            assert slow.writing.wait(10)
        connection.sendall(post(body(text, stream=stream)))
        if phase == "queue":
            assert until(lambda: sum(slow.queued.depth()) == 2)
            assert until(lambda: slow.engine._scheduler._resident[1].rows == 2)
        else:
            began = slow.reading if phase == "prefill" else slow.writing
            assert began.wait(10)
        left_s = time.monotonic()
        leave(connection, how)
        if phase == "queue":
            assert until(lambda: sum(slow.queued.depth()) == 1, IDLE_S)
            leave(before, how)

        assert until(slow.idle, IDLE_S), time.monotonic() - left_s

    chunks = slow.chunks
    slow.fast()
    assert gather(slow.engine.reply(chat())).end.usage.completion_tokens == 4
    assert slow.chunks == chunks


def test_E8_who_left_before_a_model_came_has_none_loaded(smaller):
    """When its turn comes and nobody waits for it any more, a model stays away."""
    loads = []

    def load():
        loads.append(1)
        return lm.load(str(smaller["gemma4"]))

    engine = MlxEngine(
        smaller["gemma3"], others=[Named("four", str(smaller["gemma4"]))]
    )
    engine._models["four"].weights.load = load
    try:
        engine.wait(60)
        assert gather(engine.reply(chat(weights="four"))).text
        running = iter(engine.reply(chat(tokens=400)))
        next(running)
        assert loads == [1]
        left = engine.reply(chat(weights="four"))
        reader = threading.Thread(target=lambda: pytest.raises(Cancelled, list, left))
        reader.start()
        assert until(lambda: engine._models["four"].weights.waiting)
        left.close()
        reader.join(5)
        running.close()

        for _ in range(2):  # by the second one it would be there
            assert gather(engine.reply(chat())).text
        assert loads == [1]
    finally:
        engine.close()


def until(true, limit_s=5.0):
    """Wait until *true*() is, and return whether it came to be."""
    end = time.monotonic() + limit_s
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(true())
