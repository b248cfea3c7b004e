"""Streams over a real server: order, signs of life, hang-ups, failures."""

import json
import logging
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from werkzeug.test import EnvironBuilder, run_wsgi_app

from ofa.chat import Call, End, Text, Thought, ToolCall, Usage
from ofa.errors import EngineError, ShuttingDown
from ofa.web import ChatRules, WebSettings, create_app

from .web_fakes import (
    AUTH,
    FakeAnswerer,
    FakeReply,
    Lines,
    SilentReply,
    chat_body,
    frames,
    post,
    read_all,
    read_until,
    reset,
    scripted,
    services,
)

ROLE = b'"delta":{"role":"assistant","content":""}'
NOTE = {
    "type": "function",
    "function": {"name": "read_note", "parameters": {"type": "object"}},
}


class FakeClock:
    """A clock that a test moves."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now_s


def silent(first=()):
    """Return an Answerer whose replies say *first* and then nothing."""
    return FakeAnswerer(lambda chat: SilentReply(first))


def test_a_stream_opens_at_once(open_site):
    """Headers and the role are there while the engine is still reading the prompt."""
    site = open_site(silent())

    with site.streaming() as connection:
        got = read_until(connection, ROLE)

    head = got.partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/event-stream" in head
    assert b"cache-control: no-cache" in head
    assert b"connection: close" in head
    assert b"x-accel-buffering: no" in head
    assert b"content-length" not in head


def test_R010_keep_alive_comments_by_the_clock(open_site):
    """After ten silent seconds, and each ten more, a comment; never before."""
    clock = FakeClock()
    rules = ChatRules(keep_alive_s=10, clock=clock)
    site = open_site(silent(), settings=WebSettings(chat=rules))

    with site.streaming() as connection:
        got = read_until(connection, ROLE)
        clock.now_s += 9.9
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        connection.settimeout(10)
        for _ in range(3):
            clock.now_s += 10
            got += read_until(connection, b": keep-alive\n\n")

    text = got.partition(b"\r\n\r\n")[2].decode()
    assert text.count(": keep-alive\n\n") == 3
    assert all(
        line == "" or "keep-alive" not in line[1:-11] for line in text.split("\n")
    )


def test_pieces_are_sent_as_they_come(open_site):
    """Each event is on the wire before the engine makes the next one."""
    gates = [threading.Event() for _ in range(3)]

    def script():
        for number, gate in enumerate(gates):
            assert gate.wait(10)
            yield Text(f"piece-{number}")
        yield End("stop")

    site = open_site(FakeAnswerer(lambda chat: FakeReply(script())))

    with site.streaming() as connection:
        read_until(connection, ROLE)
        for number, gate in enumerate(gates):
            gate.set()
            read_until(connection, b"piece-%d" % number)


def test_R016_tools_do_not_turn_streaming_off(open_site):
    """Text beside tools arrives in as many pieces as the engine gave."""
    words = [Text(f"word{i} ") for i in range(50)]
    site = open_site(scripted(*words, End("stop")))

    got = site.chat(stream=True, tools=[NOTE])

    contents = [f["choices"][0]["delta"].get("content") for f in got.frames[:-1]]
    assert contents[1:-1] == [word.text for word in words]


def test_R014_one_usage_chunk_if_asked(open_site):
    """After the finish chunk, with an empty list of choices; not for {} or null."""
    site = open_site(scripted(Text("x"), End("stop", Usage(3, 2, 1))))

    asked = site.chat(stream=True, stream_options={"include_usage": True}).frames
    for options in ({}, None, {"include_usage": False}):
        plain = site.chat(stream=True, stream_options=options).frames
        assert all(f == "[DONE]" or f["choices"] for f in plain)

    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["total_tokens"] == 5
    assert asked[-3]["choices"][0]["finish_reason"] == "stop"
    assert sum(f != "[DONE]" and not f["choices"] for f in asked) == 1


def test_R013_a_run_that_fails_midway(open_site):
    """Content stays as it was; the choice is closed as failed; the error; [DONE]."""
    tokens = [Text(c) for c in "four"]
    site = open_site(scripted(*tokens, EngineError("the engine failed")))

    got = site.chat(stream=True)

    assert got.status == 200
    *chunks, error, done = got.frames
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    finishes = [c["choices"][0]["finish_reason"] for c in chunks]
    assert text == "four"
    assert [f for f in finishes if f] == ["error"]
    assert error["error"]["code"] == "engine_error"
    assert error["error"]["message"] == "the engine failed"
    assert done == "[DONE]"


def test_a_defect_midway_is_masked(open_site):
    """An engine's own exception ends the stream properly and tells nothing."""
    site = open_site(scripted(Text("a"), KeyError("secret prompt")))

    with Lines("ofa.web") as log:
        got = site.chat(stream=True)
        (line,) = log.wait(1)

    assert got.frames[-2]["error"]["code"] == "internal_error"
    assert got.frames[-1] == "[DONE]"
    assert b"secret" not in got.body
    assert "secret" not in line
    assert "KeyError" in line


def test_a_drain_is_told_to_every_stream(open_site):
    """ShuttingDown from the engine reaches the client as its error code."""
    site = open_site(scripted(Text("a"), ShuttingDown("the server is stopping")))

    assert site.chat(stream=True).frames[-2]["error"]["code"] == "server_shutdown"


def test_calls_are_streamed_one_after_the_other(open_site):
    """VS Code ignores the index: a call is complete before the next one begins."""
    calls = [
        Call(ToolCall(f"call_{i}", "read_note", {"p": "x" * 3000 + str(i)}))
        for i in range(3)
    ]
    site = open_site(scripted(Thought("hm"), *calls, End("tools", Usage(1, 1))))

    got = site.chat(stream=True, tools=[NOTE])

    order, joined = [], {}
    for frame in got.frames[:-1]:
        for part in frame["choices"][0]["delta"].get("tool_calls", ()):
            order.append(part["index"])
            joined.setdefault(part["index"], []).append(part["function"]["arguments"])
    assert order == sorted(order)
    assert [json.loads("".join(pieces))["p"][-1] for pieces in joined.values()] == [
        "0",
        "1",
        "2",
    ]
    assert got.frames[-2]["choices"][0]["finish_reason"] == "tool_calls"


def open_files():
    """Return how many files this process has open, where the system tells."""
    listing = Path("/proc/self/fd")
    return len(list(listing.iterdir())) if listing.is_dir() else 0


def leave(connection, how):
    """Hang up on the server, politely or by a reset."""
    if how == "reset":
        reset(connection)
    else:
        connection.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("first", [(), (Text("a"), Text("b"))])
def test_a_client_that_leaves_stops_its_answer(open_site, how, streaming, first):
    """Within a second of the hang-up the reply is closed, whatever it was doing."""
    site = open_site(silent(first))

    with site.socket() as connection:
        connection.sendall(post(chat_body(stream=streaming)))
        if streaming:
            read_until(connection, ROLE)
        assert site.answerer.arrived.wait(5)
        (reply,) = site.answerer.replies
        assert reply.started.wait(5)
        leave(connection, how)

        assert reply.closed.wait(1)

    assert site.ask("GET", "/healthz").status == 200


def test_a_client_that_leaves_while_text_flows(open_site):
    """An engine that never stops is stopped by its reader's absence."""

    class Endless(FakeReply):
        def __iter__(self):
            while not self.closed.is_set():
                yield Text("more and more " * 50)

    site = open_site(FakeAnswerer(lambda chat: Endless(())))

    with site.streaming() as connection:
        read_until(connection, b"more and more")
        reset(connection)

        assert site.answerer.replies[0].closed.wait(2)


def test_the_log_tells_who_was_abandoned(open_site):
    """A hang-up is neither a success nor a failure of the engine."""
    site = open_site(silent())

    with Lines("ofa.access") as log, site.streaming() as connection:
        read_until(connection, ROLE)
        connection.close()
        (line,) = log.wait(1)

    assert "outcome=cancelled" in line or "outcome=abandoned" in line


def test_a_stream_that_is_never_read_is_closed():
    """A response dropped before its first byte still stops its reply."""
    answerer = silent()
    app = create_app(services(answerer))
    builder = EnvironBuilder(
        path="/v1/chat/completions",
        method="POST",
        headers=AUTH,
        json=chat_body(stream=True),
    )

    body, status, _ = run_wsgi_app(app, builder.get_environ())
    assert status.startswith("200")
    assert not answerer.replies[0].started.is_set()
    body.close()

    assert answerer.replies[0].closed.is_set()


def test_R011_many_resets_leave_nothing_behind(open_site, caplog):
    """Streams reset at random points: no traceback, no leaked file, thread or reply."""
    words = [Text("word " * 20) for _ in range(40)]
    site = open_site(scripted(*words, End("stop")))
    site.chat(stream=True)
    files, threads = open_files(), threading.active_count()
    chance = random.Random(4)

    with caplog.at_level(logging.DEBUG):
        for _ in range(60):
            with site.streaming() as connection:
                for _ in range(chance.randrange(4)):
                    connection.recv(300)
                reset(connection)
    assert all(reply.closed.wait(5) for reply in site.answerer.replies)
    assert site.chat().status == 200

    assert threading.active_count() == threads
    assert abs(open_files() - files) <= 4
    assert "Traceback" not in caplog.text
    assert all(r.levelno < logging.ERROR for r in caplog.records)
    assert all("\n" not in r.getMessage() for r in caplog.records)


def test_sixteen_streams_at_once_are_not_mixed(open_site):
    """All run at the same time; each gets its own words, all of them, in order."""
    count, words = 16, 60
    together = threading.Barrier(count)

    def answer(chat):
        name = chat.messages[-1].text

        def script():
            together.wait(20)
            for number in range(words):
                yield Text(f"{name}:{number} ")
            yield End("stop", Usage(1, words))

        return FakeReply(script())

    site = open_site(FakeAnswerer(answer), threads=count + 2)

    def ask(number):
        name = f"canary-{number}"
        asked = [{"role": "user", "content": name}]
        return name, site.chat(stream=True, messages=asked)

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(ask, range(count)))

    ids = set()
    for name, got in answers:
        *chunks, done = got.frames
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        assert text == "".join(f"{name}:{n} " for n in range(words))
        assert done == "[DONE]"
        ids.add(chunks[0]["id"])
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert len(ids) == count


def test_the_probe_answers_beside_full_streams(open_site):
    """/healthz has threads left when all places are taken."""
    site = open_site(silent(), threads=6)
    connections = []
    try:
        for _ in range(4):
            opened = socket.create_connection(("127.0.0.1", site.port), 10)
            connections.append(opened)
            opened.sendall(post(chat_body(stream=True)))
            read_until(opened, ROLE)

        assert site.ask("GET", "/healthz", headers={}).status == 200
    finally:
        for opened in connections:
            opened.close()


def test_http_10_gets_an_unchunked_stream(open_site):
    """An old client reads to the end of the connection."""
    site = open_site(scripted(Text("hello"), End("stop")))
    sent = post(chat_body(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1)

    got = site.raw(sent)

    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert b"transfer-encoding" not in head.lower()
    assert frames(body.decode())[-1] == "[DONE]"


def test_a_slow_reader_gets_everything(open_site):
    """More text than all buffers hold waits for its reader, and nothing is lost."""
    piece = "x" * 10_000
    site = open_site(scripted(*[Text(piece)] * 400, End("stop")))

    with site.streaming() as connection:
        got = read_until(connection, ROLE) + read_all(connection)

    assert got.count(piece.encode()) == 400
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
