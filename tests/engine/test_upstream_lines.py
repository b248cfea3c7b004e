"""Connections to an upstream: kept, limited, cut at any time, and discreet."""

import threading
import time
from contextlib import closing

import httpx
import pytest

from ofa.chat import Chat, Image, Message, Text, Waiting, gather
from ofa.engine.queue import Queued
from ofa.engine.upstream_lines import (
    CONNECT_S,
    KEEP_S,
    MOST_IDLE,
    Lines,
    client_maker,
)
from ofa.engine.upstream_reply import UpstreamReply
from ofa.errors import Cancelled, EngineError, EngineTimeout, Overloaded

from .upstream_servers import (
    CHAT,
    DONE,
    HALF,
    HELLO,
    Upstream,
    delta,
    engine,
    never_accepting,
    sse,
    until,
)


class Reading:
    """A reply that is read on a thread of its own."""

    def __init__(self, reply) -> None:
        self.reply = reply
        self.events: list[object] = []
        self.raised: BaseException | None = None
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            for event in self.reply:
                self.events.append(event)
        except EngineError as exc:
            self.raised = exc

    def close(self) -> float:
        """Close the reply and return how long its reader took to come back."""
        began_s = time.monotonic()
        self.reply.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        return time.monotonic() - began_s


# Kept


@pytest.mark.parametrize("apart", [False, True], ids=["one piece", "end mark later"])
def test_one_connection_serves_answer_after_answer(upstream, apart):
    """What is left of a stream after [DONE] is read: nothing is in the way then."""
    stream = (HELLO,) if not apart else (HELLO.removesuffix(DONE), DONE)
    upstream.answers = [upstream.chunked(*stream) for _ in range(5)]
    with engine(upstream) as made:
        for _ in range(5):
            assert gather(made.reply(CHAT)).text == "hello"

        assert upstream.connections == 2  # one of them is the probe's


def test_a_stream_that_goes_on_after_its_end_costs_its_connection_only(upstream):
    """The answer is complete with [DONE]; nobody waits for more."""
    upstream.answers = [upstream.chunked(HELLO, None)]
    with engine(upstream) as made:
        began_s = time.monotonic()

        assert gather(made.reply(CHAT)).text == "hello"
        assert time.monotonic() - began_s < 2
        assert upstream.cut.wait(2)
        assert gather(made.reply(CHAT)).text == "hello"
        assert upstream.connections == 3


def test_answers_at_once_have_a_connection_each(upstream):
    """And never see each other's events."""
    go = threading.Event()
    upstream.answers = [
        upstream.chunked(sse(delta(content=name)), go, sse(delta("stop")), DONE)
        for name in "abcd"
    ]
    with engine(upstream) as made:
        readings = [Reading(made.reply(CHAT)) for _ in range(4)]
        until(lambda: all(reading.events for reading in readings))
        go.set()
        for reading in readings:
            reading.thread.join(10)

        texts = [e.text for r in readings for e in r.events if isinstance(e, Text)]
        assert sorted(texts) == list("abcd")
        assert upstream.connections == 5


def test_a_kept_connection_that_was_closed_is_no_failure(upstream):
    """R011's other side: a server that restarts between two answers is not noticed."""

    def closing_after(handler) -> None:
        upstream.reply(handler, 200, HELLO)
        handler.close_connection = True  # without saying so beforehand

    upstream.answers = [closing_after, HELLO]
    with engine(upstream) as made:
        assert gather(made.reply(CHAT)).text == "hello"
        assert gather(made.reply(CHAT)).text == "hello"


def test_a_request_on_a_closed_connection_is_sent_again_once(upstream):
    """It may close in the moment in which we write: then nobody has read it."""

    def hang_up(handler) -> None:
        handler.close_connection = True

    upstream.answers = [HELLO, hang_up, HELLO]
    with engine(upstream) as made:
        assert gather(made.reply(CHAT)).text == "hello"
        assert gather(made.reply(CHAT)).text == "hello"
        assert len(upstream.asked) == 3

        upstream.answers = [hang_up, hang_up, HELLO]
        with pytest.raises(EngineError, match="broke"):
            gather(made.reply(CHAT))
        assert len(upstream.asked) == 5


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock():
    """Return a clock."""
    return Clock()


def make_lines(clock, most=4):
    """Return lines, and the clients that were made for them."""
    made = []

    def make():
        made.append(httpx.Client(trust_env=False, verify=False))
        return made[-1]

    return Lines(make, most=most, clock=clock), made


def test_a_line_is_used_again_until_it_is_old(clock):
    """Servers close idle connections after five seconds: ours are closed before."""
    lines, made = make_lines(clock)
    for _ in range(3):
        with lines.lend():
            pass
    assert len(made) == 1

    clock.now_s += KEEP_S
    with lines.lend():
        pass

    assert len(made) == 2 and made[0].is_closed
    lines.close()
    assert made[1].is_closed


def test_the_number_of_lines_is_limited(clock):
    """Who would be one too many is told at once: waiting is the queue's matter."""
    lines, made = make_lines(clock, most=2)
    with lines.lend(), lines.lend():
        assert lines.lent == 2
        with pytest.raises(Overloaded), lines.lend():
            pass
    assert lines.lent == 0
    lines.close()


def test_few_idle_lines_are_kept(clock):
    """A burst leaves no more sockets than the next one needs."""
    lines, made = make_lines(clock, most=100)
    held = [lines.lend() for _ in range(40)]
    for one in held:
        one.__enter__()
    for one in held:
        one.__exit__(None, None, None)

    assert sum(not client.is_closed for client in made) == MOST_IDLE
    lines.close()
    assert all(client.is_closed for client in made)


def test_a_line_that_was_cut_is_not_used_again(clock):
    """Nor one that comes back after the engine is closed."""
    lines, made = make_lines(clock)
    with lines.lend() as line:
        line.cut()
    assert made[0].is_closed

    with lines.lend():
        lines.close()
    assert made[1].is_closed


# Cut


# What the server does at each stage in which a client may leave.
STAGES = {
    "before headers": lambda server: server.wait_for_hang_up,
    "before the first frame": lambda server: server.chunked(None),
    "between frames": lambda server: server.chunked(HALF, None),
    "in a whole answer": lambda server: half_of_a_whole(server, 200),
    "in a refusal": lambda server: half_of_a_whole(server, 500),
}


def half_of_a_whole(server, status):
    """Return an answer in JSON that stops in its middle."""

    def answer(handler) -> None:
        server.start(handler, status, "application/json")
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [')
        server.wait_for_hang_up(handler)

    return answer


@pytest.mark.parametrize("kept", [False, True], ids=["new connection", "kept one"])
@pytest.mark.parametrize("stage", [*STAGES])
def test_R008_closing_cuts_the_upstream_wherever_it_is(upstream, stage, kept):
    """On a connection that was used before as well: the reader is back in a second."""
    upstream.answers = [HELLO] * kept + [STAGES[stage](upstream)]
    with engine(upstream) as made:
        for _ in range(kept):
            gather(made.reply(CHAT))
        reading = Reading(made.reply(CHAT))
        assert upstream.waiting.wait(5)

        assert reading.close() < 1
        assert upstream.cut.wait(1)
        assert isinstance(reading.raised, Cancelled)
        assert upstream.connections == 2
        # It is the reader's doing, so nobody else has to pay for it.
        assert gather(made.reply(CHAT)).text == "hello"


def test_closing_ends_an_attempt_to_connect():
    """Where nobody accepts there is no socket to shut: the attempts are short."""
    with never_accepting() as url, engine(url, model="m") as made:
        reading = Reading(UpstreamReply(CHAT, made._servers))
        time.sleep(0.2)  # let it be under way; whenever it is not, the test holds too

        assert reading.close() < 1
        assert isinstance(reading.raised, Cancelled)


def test_an_attempt_to_connect_ends(clock):
    """A node that is gone, and not even refuses, is given up after some seconds."""

    def gone() -> bool:
        clock.now_s += CONNECT_S / 2  # an attempt has failed, and took so long
        return False

    with never_accepting() as url:
        lines = Lines(client_maker(httpx.URL(url), key="", silence_s=9), clock=clock)
        with pytest.raises(httpx.ConnectTimeout), lines.lend() as line:
            line.send(url, {}, gone)

    assert clock.now_s == CONNECT_S
    lines.close()


def test_closing_ends_the_wait_for_the_next_try(upstream):
    """Nobody waits out a Retry-After for a client that has gone."""
    upstream.answers = [upstream.status(503, {"error": "busy"}, Retry_After="9")]
    with engine(upstream) as made:
        reading = Reading(made.reply(CHAT))
        until(lambda: upstream.asked)

        assert reading.close() < 1
        assert isinstance(reading.raised, Cancelled)
        assert len(upstream.asked) == 1


def test_closing_before_reading_sends_nothing(upstream):
    """A request abandoned in the queue costs the upstream nothing."""
    with engine(upstream) as made:
        reply = made.reply(CHAT)
        reply.close()

        with pytest.raises(Cancelled):
            list(reply)

        assert upstream.asked == []


def test_closing_after_the_end_cuts_nobody_elses_answer(upstream):
    """The connection has gone on to the next answer by then."""
    go = threading.Event()
    upstream.answers = [HELLO, upstream.chunked(HALF, go, sse(delta("stop")), DONE)]
    with engine(upstream) as made:
        first = made.reply(CHAT)
        assert gather(first).text == "hello"
        second = Reading(made.reply(CHAT))
        until(lambda: second.events)

        first.close()
        go.set()
        second.thread.join(10)

        assert second.raised is None
        assert upstream.connections == 2


# Silence


def test_silence_is_shown_as_waiting_and_comments_reset_it(upstream):
    """A slow prefill with signs of life may last longer than the limit of silence."""
    pause = threading.Event()

    def slow(handler) -> None:
        upstream.start(handler)
        handler.end_headers()
        handler.close_connection = True
        for _ in range(8):
            handler.wfile.write(b": prefill\n\n")
            pause.wait(0.1)
        handler.wfile.write(HELLO)

    upstream.answers = [slow]
    with engine(upstream, silence_s=0.5) as made:
        events = list(made.reply(CHAT))

    assert events[:8] == [Waiting()] * 8
    assert Text("hello") in events


def test_the_queue_shows_silence_without_any_comment(upstream):
    """A reader behind the queue can look up while the upstream says nothing."""
    go = threading.Event()
    upstream.answers = [upstream.chunked(go, HELLO)]
    with engine(upstream) as made, closing(Queued(made, tick_s=0.01)) as queue:
        events = iter(queue.reply(CHAT))

        assert [next(events) for _ in range(3)] == [Waiting()] * 3
        go.set()
        assert gather(events).text == "hello"


@pytest.mark.parametrize("begun", [False, True], ids=["no headers", "half an answer"])
def test_silence_over_the_limit_ends_as_a_timeout(upstream, begun):
    """504, and the connection is gone; there is no limit on the whole."""
    silent = upstream.chunked(HALF, None) if begun else upstream.wait_for_hang_up
    upstream.answers = [silent]
    with engine(upstream, silence_s=0.2) as made:
        with pytest.raises(EngineTimeout) as caught:
            gather(made.reply(CHAT))

        assert caught.value.status == 504
        assert upstream.cut.wait(2)
        assert len(upstream.asked) == 1


# What is told of callers, and to whom


def test_only_the_configured_key_goes_out_and_no_cookie_stays(upstream):
    """What one answer sets is not sent with the next caller's question."""
    upstream.answers = [
        upstream.status(200, HELLO, Set_Cookie="session=first; Path=/"),
        HELLO,
    ]
    with engine(upstream, key="sk-1") as made:
        gather(made.reply(CHAT))
        gather(made.reply(CHAT))

    for sent in upstream.headers:
        names = {name.lower() for name in sent}
        assert names == {
            "host",
            "accept",
            "accept-encoding",
            "connection",
            "user-agent",
            "authorization",
            "content-length",
            "content-type",
        }
        assert sent["Authorization"] == "Bearer sk-1"
        assert sent["Accept-Encoding"] == "identity"


def test_no_redirect_is_followed(upstream):
    """Not for the list, not for chat: a key would travel with it."""
    with closing(Upstream()) as other:
        away = upstream.status(307, {}, Location=f"{other.url}/chat/completions")
        upstream.answers = [away]
        upstream.pages["/v1/models"] = upstream.status(302, {}, Location=other.url)
        with (
            engine(upstream, key="sk-1", model="m") as made,
            pytest.raises(EngineError, match="status 307"),
        ):
            gather(made.reply(CHAT))

        assert other.paths == []


def test_no_address_in_a_chat_is_ever_asked(upstream):
    """Only what is configured is: a model's name, a picture, a text is no address."""
    with closing(Upstream()) as other, engine(upstream) as made:
        url = f"{other.url}/chat/completions"
        picture = Image(url, "messages[0]")
        chats = [
            Chat(f"../../{url}", (Message("user", url),)),
            Chat(url, (Message("user", "x", images=(picture,)),)),
        ]
        for chat in chats:
            gather(made.reply(chat))

        assert set(upstream.paths) == {"/v1/models", "/v1/chat/completions"}
        assert [body["model"] for body in upstream.asked] == ["gemma", "gemma"]
        assert other.paths == []


@pytest.mark.parametrize(
    ("url", "through"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://gpu12:8000/v1", False),
        ("http://10.1.2.3:8000/v1", False),
        ("https://models.example.org/v1", True),
    ],
)
def test_proxies_are_for_what_is_outside_of_the_site(monkeypatch, url, through):
    """A compute node is reached directly, as its name or private address shows."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    with client_maker(httpx.URL(url), key="", silence_s=1)() as client:
        assert client.trust_env is through


@pytest.mark.parametrize("value", ["[::1]", "fe80::/10", "10.0.0.0/8,.example.org"])
def test_R068_odd_no_proxy_values_do_no_harm(monkeypatch, value):
    """What httpx can't read is told and left out; the start goes on."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", value)

    make = client_maker(httpx.URL("https://models.example.org/v1"), key="", silence_s=1)

    make().close()
