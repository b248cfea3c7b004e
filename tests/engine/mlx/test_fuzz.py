"""Thousands of random requests leave the engine answering, and answering right."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ofa.chat import Chat, End, Message, Sampling, Waiting, gather, gather_choices
from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.memory import GiB
from ofa.engine.queue import Queued
from ofa.errors import BadRequest, Cancelled, OfaError, Overloaded
from ofa.protocols import openai_chat
from ofa.protocols.body import read_object
from ofa.protocols.frames import encode

from .grammars import check
from .odd import Odd, bytes_over
from .requests import Requests

# For longer runs, say OFA_FUZZ=100000; and OFA_FUZZ_SEED for other requests.
REQUESTS = int(os.environ.get("OFA_FUZZ", "5000"))
SEED = os.environ.get("OFA_FUZZ_SEED", "1")
CALLERS = 16
HANG_S = 30.0
OUTPUT = 16
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "ofa-hpc"}
# Of the requests, and bytes for caches and for reading a prompt: two long chats side by
# side, not three.
KINDS = {"gemma3": (0.93, 2_500_000), "gemma4": (0.07, 4_600_000)}
# What a request may be told: that it is wrong, was closed, or that another one's schema
# takes too long just now. Never that the engine failed.
TOLD = (BadRequest, Cancelled, Overloaded)
CANARY = Chat(
    "ofa-hpc",
    (Message("system", "the answer " * 20), Message("user", "the quick file")),
    Sampling(temperature=0.0, max_tokens=12),
    caller="canary",
)

log = logging.getLogger("tests.fuzz")  # pytest --log-cli-level=info shows it


class Site:
    """A tiny model's engine behind its queue, and what happened to it."""

    def __init__(self, folder, total_bytes, share):
        self.requests = math.ceil(share * REQUESTS / CALLERS)  # of each caller
        self.counts = Counter()
        self.over_bytes = 0  # by how much caches were over what was counted for them
        self._folder = folder
        settings = Settings(
            rows=8, output_tokens=OUTPUT, memory_gib=total_bytes / GiB, prefill_step=128
        )
        self.engine = MlxEngine(folder, settings, load=self._load)
        self.queued = Queued(self.engine, running=12, waiting=CALLERS)
        assert self.engine.wait(60).ready, self.engine.status()
        self.canary = gather(self.engine.reply(CANARY)).text

    def _load(self):
        loaded = lm.load(str(self._folder))
        return replace(loaded, model=Odd(loaded.model, self._measure))

    def _measure(self, tokens):
        """Compare what all caches take with the budget; called within each step."""
        resident = self.engine._scheduler._resident if self.counts else None
        if resident is not None:
            over = bytes_over(self.engine.ready, resident[1])
            self.over_bytes = max(self.over_bytes, over)

    def play(self, caller):
        """Send random requests as one caller; raise what was wrong."""
        made = Requests(f"{SEED}-{caller}", self.engine.ready.logits)
        for n in range(self.requests):
            body = made.body()
            try:
                self._ask(made, body, f"key-{caller % 5}")
            except OfaError as error:
                self.counts[error.code] += 1
                assert isinstance(error, TOLD) and str(error), (error, body)
            except Exception as error:
                error.add_note(f"request {n} of caller {caller}: {body!r}")
                raise
            if n % 40 == 0:
                assert gather(self.queued.reply(CANARY)).text == self.canary

    def _ask(self, made, body, caller):
        parsed = read_object(json.dumps(body).encode("utf-8", "surrogatepass"))
        delivery = openai_chat.delivery(parsed)
        chat = openai_chat.parse(parsed)
        priority = 1 if made.chance(0.05) else 0
        chat = replace(chat, caller=caller, priority=priority)
        reply = self.queued.reply(chat)
        left = made.chance(0.1)
        if left:
            self._leave(reply, made)
        # Side requests yield to people's, here for as long as there are any.
        events = read(reply, math.inf if priority else HANG_S)
        answers = judge(chat, events)
        encode(openai_chat.whole(answers, HEAD))
        frames = "".join(openai_chat.stream(events, HEAD, usage=delivery.usage))
        assert frames.endswith("data: [DONE]\n\n")
        assert '"error"' not in frames.rpartition('"usage"')[2]
        self.counts["answered"] += 1
        made.heard(answers[0].text)
        if is_determined(chat) and made.chance(0.12):
            again = gather_choices(self.queued.reply(chat))
            assert [one.text for one in again] == [one.text for one in answers]
            self.counts["asked again"] += 1

    def _leave(self, reply, made):
        """Hang up before, at once, or at some time while it is read."""
        wait_s = made.pick(None, 0.0, 0.005, 0.02, 0.08)
        if wait_s is None:
            reply.close()
        else:
            threading.Timer(wait_s, reply.close).start()


def read(reply, limit_s):
    """Return the events of *reply*; one that keeps silent for too long hangs."""
    events, last_s = [], time.monotonic()
    for event in reply:
        if isinstance(event, Waiting):
            assert time.monotonic() - last_s < limit_s, "a request hangs"
        else:
            events.append(event)
            last_s = time.monotonic()
    if not events or not isinstance(events[-1], End):
        raise Cancelled("it was closed")  # and its reader came back without an error
    return events


def judge(chat, events):
    """Return the answers in *events*, which are what *chat* allows."""
    answers = gather_choices(events)
    ends = [event for event in events if isinstance(event, End)]
    assert [end.last for end in ends] == [False] * (len(ends) - 1) + [True]
    assert sorted(end.index for end in ends) == list(range(chat.choices))
    usage = ends[-1].usage
    limit = min(chat.sampling.max_tokens or OUTPUT, OUTPUT)
    assert 1 <= usage.completion_tokens <= limit * chat.choices
    assert 0 <= usage.cached_tokens < usage.prompt_tokens
    for answer in answers:
        assert not any(stop in answer.text for stop in chat.sampling.stop)
        assert (chat.logprobs is None) <= (not answer.logprobs)
        for one in answer.logprobs:
            assert all(math.isfinite(t.logprob) and t.logprob < 0.01 for t in one.top)
            assert math.isfinite(one.logprob)
            assert len(one.top) <= (chat.logprobs or 0)
        if chat.output and answer.end.reason == "stop" and not chat.sampling.stop:
            check(chat.output.schema or {"type": "object"}, answer.text)
    return answers


def is_determined(chat):
    """Return whether the same request has to give the same answer."""
    sampling = chat.sampling
    return sampling.seed is not None or sampling.temperature == 0


@pytest.fixture(params=KINDS)
def site(request, smaller):
    """Yield a tiny model's engine behind its queue."""
    share, total_bytes = KINDS[request.param]
    made = Site(smaller[request.param], total_bytes, share)
    yield made
    made.queued.close()


@pytest.mark.timeout(120 + REQUESTS // 10)
def test_random_requests_leave_it_answering(site, caplog):
    """Each is answered or refused, none hangs, no step fails; memory stays within its
    bytes, and answers between and after them are those before."""
    caplog.set_level(logging.ERROR, "ofa")
    caplog.set_level(logging.INFO, log.name)
    site.counts["begun"] = 1
    began_s = time.monotonic()
    with ThreadPoolExecutor(CALLERS) as pool:
        for played in [pool.submit(site.play, n) for n in range(CALLERS)]:
            played.result()

    wall_s = time.monotonic() - began_s
    sent = site.requests * CALLERS
    log.info("%d requests in %.1f s: %s", sent, wall_s, dict(site.counts))
    status = site.engine.status()
    assert status.ready, status
    assert site.engine._scheduler.faults(1e9) == 0
    assert site.queued.depth() == (0, 0)
    assert gather(site.queued.reply(CANARY)).text == site.canary
    assert site.over_bytes <= 0
    assert site.counts["answered"] > sent / 3
    assert site.counts["cancelled"] and site.counts["asked again"]
    assert not [one.message for one in caplog.records if one.levelno >= logging.ERROR]
