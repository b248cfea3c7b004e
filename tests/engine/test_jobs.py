"""Replies that are read on their reader's own thread: turns, ends, and none lost."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from ofa.chat import Chat, End, Message, Text, Waiting, gather
from ofa.engine.queue import Queued
from ofa.engine.scripted import ScriptedEngine
from ofa.errors import Cancelled, EngineError, NotReady, OfaError, ShuttingDown

CHAT = Chat("ofa-hpc", (Message("user", "hi"),))


class Patient(ScriptedEngine):
    """An engine whose replies say that they wait, and wait for `gate`."""

    def __init__(self):
        super().__init__(["done"])
        self.gate = threading.Event()
        self.started = []
        self.some_started = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0
        self.threads = set()
        self._counting = threading.Lock()

    def reply(self, chat):
        """Return such a reply."""
        return _PatientReply(self, super().reply(chat), chat)

    def count(self, step):
        """Count the replies that run."""
        with self._counting:
            self.at_once += step
            self.most_at_once = max(self.most_at_once, self.at_once)


class _PatientReply:
    patient = True

    def __init__(self, engine, inner, chat):
        self._engine, self._inner, self._chat = engine, inner, chat
        self._gone = threading.Event()
        self.told = inner.told

    def __iter__(self):
        engine = self._engine
        engine.started.append(self._chat)
        engine.threads.add(threading.get_ident())
        engine.some_started.release()
        engine.count(1)
        try:
            while not engine.gate.wait(0.002):
                if self._gone.is_set():
                    raise Cancelled("gone")
                yield Waiting()
            yield from self._inner
        finally:
            engine.count(-1)

    def close(self):
        self._gone.set()
        self._inner.close()


@pytest.fixture
def engine():
    """Yield such an engine; its gate is opened at the end."""
    made = Patient()
    yield made
    made.gate.set()


def queued(engine, **options):
    """Return a closing context of a queue with a short tick."""
    return closing(Queued(engine, tick_s=0.01, **options))


def read(reply):
    """Return the events of *reply* but its waiting, and the error it ended with."""
    events = []
    try:
        events += (event for event in reply if not isinstance(event, Waiting))
    except OfaError as error:
        events.append(error)
    return events


def free(queue):
    """Return how many turns nobody has."""
    return queue._turns._free


def test_it_runs_on_its_readers_thread(engine):
    """Nothing is handed over where nothing can block."""
    engine.gate.set()
    with queued(engine) as queue:
        assert gather(queue.reply(CHAT)).text == "done"

    assert engine.threads == {threading.get_ident()}


def test_no_more_run_than_there_are_turns(engine):
    """Of twelve readers two run, the others see that they wait."""
    with queued(engine, running=2, waiting=10) as queue, ThreadPoolExecutor(12) as pool:
        reads = [pool.submit(read, queue.reply(CHAT)) for _ in range(12)]
        for _ in range(2):
            assert engine.some_started.acquire(timeout=5)
        engine.gate.set()
        answers = [each.result(5) for each in reads]

        assert all(answer[0] == Text("done") for answer in answers)
        assert engine.most_at_once <= 2
        assert free(queue) == 2 and queue.depth() == (0, 0)


def test_callers_take_turns(engine):
    """A script's ten requests hold up another caller's two by one each."""
    chats = [
        Chat("m", (Message("user", f"{key}{n}"),), caller=key)
        for key, count in (("a", 10), ("b", 2))
        for n in range(count)
    ]
    with queued(engine, running=1) as queue, ThreadPoolExecutor(12) as pool:
        reads = []
        for place, chat in enumerate(chats):  # in line in this order
            reads.append(pool.submit(read, queue.reply(chat)))
            if place == 0:
                assert engine.some_started.acquire(timeout=5)
            while len(queue._turns) < place:
                assert not reads[-1].done()
        engine.gate.set()
        for each in reads:
            each.result(5)

    asked = [chat.messages[0].text for chat in engine.started]
    assert asked[:6] == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_who_closes_in_line_or_under_way_gives_the_turn_back(engine):
    """Neither a reader that left the line nor one that left its answer keeps a turn."""
    with queued(engine, running=1, waiting=4) as queue, ThreadPoolExecutor(3) as pool:
        replies = [queue.reply(CHAT) for _ in range(3)]
        reads = [pool.submit(read, replies[0])]
        assert engine.some_started.acquire(timeout=5)
        reads += [pool.submit(read, reply) for reply in replies[1:]]
        while len(queue._turns) < 2:
            pass

        replies[1].close()
        replies[0].close()

        assert [type(each.result(5)[-1]) for each in reads[:2]] == [Cancelled] * 2
        engine.gate.set()
        assert reads[2].result(5)[0] == Text("done")
        assert free(queue) == 1 and queue.depth() == (0, 0)


def test_a_reader_that_stops_in_the_middle_gives_the_turn_back(engine):
    """As when a client hangs up: the iterator is dropped, not read to its end."""
    engine.gate.set()
    with queued(engine, running=1) as queue:
        reply = queue.reply(CHAT)
        for _ in reply:
            break
        reply.close()

        assert gather(queue.reply(CHAT)).text == "done"
        assert free(queue) == 1


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda queue: queue.drain(0.05), ShuttingDown),
        (lambda queue: queue.give_up("the engine hangs"), NotReady),
    ],
    ids=["drain", "give up"],
)
def test_all_are_told_why_they_are_cut(engine, end, expected):
    """Who runs and who waits: the reason is the queue's, not that it was closed."""
    with queued(engine, running=1) as queue, ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(read, queue.reply(CHAT)) for _ in range(2)]
        assert engine.some_started.acquire(timeout=5)

        end(queue)

        assert [type(each.result(5)[-1]) for each in reads] == [expected] * 2
        assert free(queue) == 1


def test_failures_are_raised_where_they_are_read(caplog):
    """An engine's own as it is; a library's without its text, which may be a prompt."""

    class Broken(ScriptedEngine):
        def reply(self, chat):
            return _Raising(ValueError("CANARY prompt"))

    with queued(ScriptedEngine([[{"fail": "boom"}]])) as queue:
        with pytest.raises(EngineError, match="boom"):
            gather(queue.reply(CHAT))
        assert free(queue) == 4
    with queued(Broken()) as queue, pytest.raises(EngineError) as caught:
        gather(queue.reply(CHAT))

    assert "ValueError" in str(caught.value)
    assert "CANARY" not in str(caught.value) + caplog.text


class _Raising:
    patient = True

    def __init__(self, error):
        self._error = error

    def __iter__(self):
        raise self._error

    def close(self):
        """Nothing is held."""


def test_no_turn_is_lost_whenever_readers_leave():
    """Eight readers that leave at random moments, before, in line, under way: at the
    end all turns are there, and all places."""
    engine = ScriptedEngine([[{"text": "a ", "times": 40}]])
    with queued(engine, running=2, waiting=64) as queue:

        def play(seed):
            rng = random.Random(seed)
            for _ in range(60):
                with closing(queue.reply(CHAT)) as reply:
                    timer = threading.Timer(rng.random() * 0.004, reply.close)
                    if leaves := rng.random() < 0.6:
                        timer.start()
                    with suppress(Cancelled):
                        read(reply)
                    if leaves:
                        timer.join()

        with ThreadPoolExecutor(8) as pool:
            for played in [pool.submit(play, seed) for seed in range(8)]:
                played.result(30)

        assert free(queue) == 2 and queue.depth() == (0, 0)
        assert isinstance(read(queue.reply(CHAT))[-1], End)
