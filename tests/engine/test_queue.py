"""The queue in front of an engine: places, order, hand-over, draining."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from ofa.chat import Chat, End, Event, Message, Text, Usage, Waiting, gather
from ofa.engine.queue import Queued
from ofa.engine.scripted import ScriptedEngine
from ofa.errors import (
    BadRequest,
    Cancelled,
    EngineError,
    NotReady,
    Overloaded,
    ShuttingDown,
)

CHAT = Chat("ofa-hpc", (Message("user", "hi"),))
SIDE = Chat("ofa-hpc", (Message("user", "a title"),), priority=1)


class Gated(ScriptedEngine):
    """A scripted engine whose replies wait for `gate` and note when they start."""

    def __init__(self) -> None:
        super().__init__(["done"])
        self.gate = threading.Event()
        self.started: list[Chat] = []
        self.some_started = threading.Semaphore(0)

    def reply(self, chat):
        """Return a reply that opens with a wait for the gate."""
        return _GatedReply(self, super().reply(chat), chat)


class _GatedReply:
    def __init__(self, engine, inner, chat) -> None:
        self._engine, self._inner, self._chat = engine, inner, chat
        self._gone = threading.Event()

    patient = False
    told: Mapping[str, str] = {}

    def __iter__(self) -> Iterator[Event]:
        self._engine.started.append(self._chat)
        self._engine.some_started.release()
        while not self._engine.gate.wait(0.01):
            if self._gone.is_set():
                raise Cancelled("gone")
        yield from self._inner

    def close(self) -> None:
        self._gone.set()
        self._inner.close()


@pytest.fixture
def gated():
    """Yield a gated engine; its gate is opened at the end."""
    engine = Gated()
    yield engine
    engine.gate.set()


def queued(engine, **options):
    """Return a closing context of a queue with a short tick."""
    return closing(Queued(engine, tick_s=0.01, **options))


def reader(reply, into):
    """Read *reply* on a thread of its own, keeping events or the error."""

    def read() -> None:
        try:
            into.extend(e for e in reply if not isinstance(e, Waiting))
        except Exception as exc:  # noqa: BLE001 - handed to the test
            into.append(exc)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_events_come_through_in_order():
    """What the inner engine yields is what the reader gets, then the end."""
    with queued(ScriptedEngine([[{"text": "a "}, {"text": "b"}]])) as queue:
        answer = gather(queue.reply(CHAT))

    assert answer.text == "a b"
    assert answer.end == End("stop", Usage(1, 2))


def test_silence_shows_as_waiting(gated):
    """A reader of a silent engine looks up instead of blocking."""
    with queued(gated) as queue, closing(queue.reply(CHAT)) as reply:
        events = iter(reply)

        assert isinstance(next(events), Waiting)


def test_full_queue_refuses_at_once(gated):
    """A caller over the limit gets Overloaded now, and the engine never sees it."""
    with queued(gated, running=1, waiting=1) as queue:
        replies = [queue.reply(CHAT), queue.reply(CHAT)]

        with pytest.raises(Overloaded):
            queue.reply(CHAT)

        assert len(gated.asked) == 2
        for reply in replies:
            reply.close()


def test_place_of_a_closed_reply_is_free_again(gated):
    """A client that leaves the line, even before it is read, frees its place."""
    with queued(gated, running=1, waiting=0) as queue:
        queue.reply(CHAT).close()

        queue.reply(CHAT).close()

        assert queue.depth() == (0, 0)
        assert gated.started == []


def test_refusal_gives_the_place_back():
    """A chat that the engine refuses costs no place."""
    from ofa.chat import Image

    chat = Chat("m", (Message("user", images=(Image("data:", "messages[0]"),)),))
    with queued(ScriptedEngine(), running=1, waiting=0) as queue:
        with pytest.raises(BadRequest):
            queue.reply(chat)

        assert gather(queue.reply(CHAT)).text == "ok"


def test_place_is_free_when_the_end_is_seen():
    """Who has read the end can ask again at once, even where one place is all."""
    with queued(ScriptedEngine(), running=1, waiting=0) as queue:
        for _ in range(200):
            assert gather(queue.reply(CHAT)).text == "ok"


def in_line(queue, chat):
    """Put *chat* in line and return its events, of which the first was `Waiting`."""
    events = iter(queue.reply(chat))
    assert isinstance(next(events), Waiting)
    return events


def asked_by(caller, number=0, **fields):
    """Return a chat of *caller*."""
    text = f"{caller}{number}"
    return Chat("ofa-hpc", (Message("user", text),), caller=caller, **fields)


def words(chats):
    """Return what the *chats* ask."""
    return [chat.messages[0].text for chat in chats]


def test_side_requests_yield_to_people(gated):
    """A question asked later than a title goes first when a worker is free."""
    with queued(gated, running=1, waiting=4) as queue:
        events = [in_line(queue, chat) for chat in (CHAT, SIDE, CHAT)]
        gated.gate.set()
        for each in events:
            gather(each)

    assert [chat.priority for chat in gated.started] == [0, 0, 1]


def test_callers_take_turns(gated):
    """A script's ten requests hold up another caller's two by one each."""
    asked = [
        *(asked_by("a", n) for n in range(10)),
        *(asked_by("b", n) for n in range(2)),
    ]
    with queued(gated, running=1) as queue:
        events = [in_line(queue, chat) for chat in asked]
        gated.gate.set()
        for each in events:
            gather(each)

    assert words(gated.started)[:6] == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_side_requests_leave_a_thread_for_people(gated):
    """However many titles are asked for, a question finds a thread at once."""
    with queued(gated, running=3, waiting=8) as queue:
        sides = [in_line(queue, asked_by("a", n, priority=1)) for n in range(6)]
        for _ in range(2):
            assert gated.some_started.acquire(timeout=5)

        question = in_line(queue, CHAT)
        assert gated.some_started.acquire(timeout=5)

        assert [chat.priority for chat in gated.started] == [1, 1, 0]
        gated.gate.set()
        for events in (question, *sides):
            assert gather(events).text == "done"


def test_one_thread_serves_side_requests_as_well(gated):
    """Where there is one thread, it is not kept for people alone."""
    gated.gate.set()
    with queued(gated, running=1) as queue:
        assert gather(queue.reply(SIDE)).text == "done"


def test_who_leaves_the_line_is_gone_at_once(gated):
    """A job whose reader left is neither run nor kept until a thread comes by."""
    with queued(gated, running=1, waiting=4) as queue:
        first = in_line(queue, CHAT)
        assert gated.some_started.acquire(timeout=5)
        reply = queue.reply(asked_by("gone"))
        assert isinstance(next(iter(reply)), Waiting)
        assert len(queue._turns) == 1

        reply.close()

        assert len(queue._turns) == 0
        assert queue.depth() == (1, 0)
        gated.gate.set()
        gather(first)
    assert words(gated.started) == ["hi"]


def test_reply_closed_before_it_is_read_never_stands_in_line(gated):
    """Reading what was closed says so, and leaves nothing behind."""
    with queued(gated, running=1, waiting=4) as queue:
        first = in_line(queue, CHAT)
        reply = queue.reply(CHAT)
        reply.close()

        with pytest.raises(Cancelled):
            next(iter(reply))

        assert len(queue._turns) == 0
        gated.gate.set()
        gather(first)


def test_failure_reaches_the_reader():
    """An engine's own error is raised where the reply is read."""
    with (
        queued(ScriptedEngine([[{"fail": "boom"}]])) as queue,
        pytest.raises(EngineError, match="boom"),
    ):
        gather(queue.reply(CHAT))


def test_foreign_failure_is_told_without_its_text(caplog):
    """What a library raised may quote a prompt: neither client nor log gets it."""

    class Broken(ScriptedEngine):
        def reply(self, chat):
            return _Raising(ValueError("CANARY prompt"))

    with queued(Broken()) as queue, pytest.raises(EngineError) as caught:
        gather(queue.reply(CHAT))

    assert "ValueError" in str(caught.value)
    assert "CANARY" not in str(caught.value) + caplog.text


class _Raising:
    patient = False

    def __init__(self, exc) -> None:
        self._exc = exc

    def __iter__(self):
        raise self._exc

    def close(self) -> None:
        """Nothing is held."""


def test_closing_stops_a_running_reply(gated):
    """Work ends soon after its reader left, and the place is free."""
    with queued(gated, running=1, waiting=0) as queue:
        reply = queue.reply(CHAT)
        got: list[object] = []
        thread = reader(reply, got)
        gated.some_started.acquire(timeout=5)

        reply.close()
        thread.join(5)

        assert not thread.is_alive()
        assert gated.closed_replies == 1
        assert queue.depth() == (0, 0)


def test_drain_lets_replies_end(gated):
    """Draining refuses newcomers and waits for who is being served."""
    with queued(gated) as queue:
        got: list[object] = []
        thread = reader(queue.reply(CHAT), got)
        gated.some_started.acquire(timeout=5)
        threading.Timer(0.05, gated.gate.set).start()

        ended = queue.drain(5)

        thread.join(5)
        assert ended
        assert got[0] == Text("done")
        with pytest.raises(ShuttingDown):
            queue.reply(CHAT)


def test_drain_cuts_what_does_not_end(gated):
    """After the grace every reader is told, none is left hanging."""
    with queued(gated, running=1) as queue:
        results: list[list[object]] = [[], []]
        threads = [reader(queue.reply(CHAT), result) for result in results]
        gated.some_started.acquire(timeout=5)

        ended = queue.drain(0.05)

        for thread in threads:
            thread.join(5)
        assert not ended
        assert [type(result[-1]) for result in results] == [ShuttingDown] * 2


def test_a_queue_gives_up_with_an_engine_that_is_lost(gated):
    """Readers and newcomers are told why, and to ask again; the status stays true."""
    with queued(gated) as queue:
        got: list[object] = []
        thread = reader(queue.reply(CHAT), got)
        gated.some_started.acquire(timeout=5)

        queue.give_up("the engine hangs")

        thread.join(5)
        (told,) = [one for one in got if isinstance(one, NotReady)]
        assert told.code == "engine_restarting" and "the engine hangs" in str(told)
        with pytest.raises(NotReady, match="the engine hangs") as caught:
            queue.reserve()
        assert caught.value.code == "engine_restarting"
        assert queue.status() == gated.status()


def test_many_at_once_lose_nothing_and_mix_nothing():
    """R005: sixteen chats at once each get their own code word back, whole."""
    engine = ScriptedEngine([[{"echo": "last_user"}, {"text": " x", "times": 50}]])
    with queued(engine, running=4, waiting=64) as queue:
        results: dict[str, list[object]] = {f"CANARY-{n:02}": [] for n in range(64)}
        threads = [
            reader(queue.reply(Chat("m", (Message("user", word),))), got)
            for word, got in results.items()
        ]
        for thread in threads:
            thread.join(10)

    for word, got in results.items():
        assert gather(got).text == word + " x" * 50
