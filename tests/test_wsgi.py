"""The socket side: what is refused, when, and what a refused client sees."""

import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from ofa.chat import End, Text
from ofa.errors import Unauthorized
from ofa.web import create_app
from ofa.wsgi import Gate, Patience, connection_limit, make_server
from ofa.wsgi_channel import StrictChannel
from ofa.wsgi_parser import StrictParser, find_problem

from .web_fakes import (
    KEY,
    FakeAnswerer,
    FakeReply,
    Lines,
    SilentReply,
    Site,
    chat_body,
    check_key,
    read_all,
    read_until,
    reset,
    scripted,
    services,
)

HOST = b"Host: 127.0.0.1"
GOOD = f"Authorization: Bearer {KEY}".encode()
JSON = b"Content-Type: application/json"
BODY = json.dumps(chat_body()).encode()
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /v1/models HTTP/1.1"
CHAT = b"POST /v1/chat/completions HTTP/1.1"
CLOSE = b"Connection: close"
NEXT = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n" + GOOD + b"\r\n\r\n"


def head(*lines, body=b""):
    """Return a request's bytes."""
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(*lines):
    """Return an authorized GET that ends its connection, with more headers."""
    return head(GET, HOST, GOOD, *lines, CLOSE)


def chat(*lines, body=BODY):
    """Return an authorized POST whose framing is up to *lines*."""
    return head(CHAT, HOST, GOOD, JSON, *lines, body=body)


OK, BAD = (200,), (400,)

# name, bytes, the statuses it may be answered with
VECTORS = [
    # plain requests in all their good forms
    ("get", get(), OK),
    ("get-10", head(b"GET /v1/models HTTP/1.0", HOST, GOOD), OK),
    ("leading-crlf", b"\r\n\r\n" + get(), OK),
    ("absolute-form", head(b"GET http://127.0.0.1/v1/models HTTP/1.1", HOST, GOOD,
                           CLOSE), OK),
    ("absolute-form-case", head(b"GET HTTP://LOCALHOST/v1/models HTTP/1.1",
                                b"Host: localhost", GOOD, CLOSE), OK),
    ("header-case", head(GET, b"hOsT: 127.0.0.1",
                         GOOD.replace(b"Authorization", b"aUTHORIZATION"),
                         b"CONNECTION: close"), OK),
    ("header-blanks", get(b"X-A: \t b \t"), OK),
    ("header-empty", get(b"X-A:"), OK),
    ("header-latin1", get(b"X-A: \xe9"), OK),
    ("header-underscore-dropped", get(b"Content_Length: 5"), OK),
    ("hundred-headers", get(*(b"X-%d: 1" % i for i in range(96))), OK),
    ("query", head(b"GET /v1/models?a=%ff&b=c HTTP/1.1", HOST, GOOD,
                   CLOSE), OK),
    ("length-body", chat(LENGTH, CLOSE), OK),
    ("length-zero-get", get(b"Content-Length: 0"), OK),
    ("length-leading-zero", chat(b"Content-Length: 000%d" % len(BODY),
                                 CLOSE), OK),
    ("chunked-body", chat(CHUNKED, CLOSE, body=CHUNKS), OK),
    ("chunked-case", chat(b"tRANSFER-eNCODING: CHUNKED", CLOSE,
                          body=CHUNKS), OK),
    ("chunked-upper-hex", chat(CHUNKED, CLOSE,
                               body=b"%X\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)), OK),
    ("chunked-small", chat(CHUNKED, CLOSE, body=b"".join(
        b"1\r\n" + BODY[i:i + 1] + b"\r\n" for i in range(len(BODY))) + b"0\r\n\r\n"),
     OK),
    ("chunk-extension", chat(CHUNKED, CLOSE,
                             body=CHUNKS.replace(b"\r\n", b";a=b\r\n", 1)), OK),
    ("chunk-trailer", chat(CHUNKED, CLOSE,
                           body=CHUNKS[:-2] + b"X-T: 1\r\n\r\n"), OK),
    ("expect-continue", chat(LENGTH, b"Expect: 100-continue", CLOSE),
     (100, 200)),
    ("expect-case", chat(LENGTH, b"expect: 100-CONTINUE", CLOSE),
     (100, 200)),
    ("upgrade-ignored", get(b"Upgrade: h2c"), OK),
    # a body framed in two ways, or in one that others read differently
    ("both-framings", chat(LENGTH, CHUNKED, body=CHUNKS + NEXT), BAD),
    ("both-framings-other-order", chat(CHUNKED, LENGTH, body=CHUNKS + NEXT), BAD),
    ("both-framings-zero", chat(b"Content-Length: 0", CHUNKED, body=CHUNKS), BAD),
    ("chunked-in-10", head(CHAT.replace(b"1.1", b"1.0"), HOST, GOOD, JSON, CHUNKED,
                           body=CHUNKS + NEXT), BAD),
    ("chunked-twice", chat(b"Transfer-Encoding: chunked, chunked", body=CHUNKS), BAD),
    ("chunked-two-lines", chat(CHUNKED, CHUNKED, body=CHUNKS), BAD),
    ("gzip-chunked", chat(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), (501,)),
    ("chunked-gzip", chat(b"Transfer-Encoding: chunked, gzip", body=CHUNKS), (501,)),
    ("xchunked", chat(b"Transfer-Encoding: xchunked", body=CHUNKS), (501,)),
    ("chunked-x", chat(b"Transfer-Encoding: chunkedx", body=CHUNKS), (501,)),
    ("identity", chat(b"Transfer-Encoding: identity", LENGTH), (400, 501)),
    ("empty-coding", chat(b"Transfer-Encoding:", body=CHUNKS), (400, 501)),
    ("comma-coding", chat(b"Transfer-Encoding: ,chunked", body=CHUNKS), (400, 501)),
    ("vt-coding", chat(b"Transfer-Encoding: \x0bchunked", body=CHUNKS), (400, 501)),
    ("nbsp-coding", chat(b"Transfer-Encoding: \xa0chunked", body=CHUNKS), (400, 501)),
    ("quoted-coding", chat(b'Transfer-Encoding: "chunked"', body=CHUNKS), (400, 501)),
    ("get-both", head(GET, HOST, GOOD, b"Content-Length: 5", CHUNKED), BAD),
    # lengths
    ("length-twice-same", chat(LENGTH, LENGTH), BAD),
    ("length-twice-other", chat(LENGTH, b"Content-Length: 3"), BAD),
    ("length-list", chat(b"Content-Length: 5, 5"), BAD),
    ("length-plus", chat(b"Content-Length: +5"), BAD),
    ("length-minus", chat(b"Content-Length: -5"), BAD),
    ("length-hex", chat(b"Content-Length: 0x10"), BAD),
    ("length-float", chat(b"Content-Length: 5.0"), BAD),
    ("length-exponent", chat(b"Content-Length: 1e2"), BAD),
    ("length-empty", chat(b"Content-Length:"), BAD),
    ("length-word", chat(b"Content-Length: five"), BAD),
    ("length-underscore", chat(b"Content-Length: 1_0"), BAD),
    ("length-arabic", chat(b"Content-Length: \xd9\xa5"), BAD),
    ("length-inner-space", chat(b"Content-Length: 1 0"), BAD),
    ("length-5000-digits", chat(b"Content-Length: " + b"9" * 5000), BAD),
    ("length-20-digits", chat(b"Content-Length: " + b"9" * 20), BAD),
    ("length-huge", chat(b"Content-Length: 999999999999999"), (413,)),
    ("length-over", chat(b"Content-Length: 33554433"), (413,)),
    # chunks
    ("chunk-bad-size", chat(CHUNKED, body=b"zz\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-minus", chat(CHUNKED, body=b"-1\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-plus", chat(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-0x", chat(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-space", chat(CHUNKED, body=b"5 \r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-space-before", chat(CHUNKED, body=b" 5\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-too-short", chat(CHUNKED, body=b"3\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-no-crlf", chat(CHUNKED, body=b"5\r\nhelloXX0\r\n\r\n"), BAD),
    ("chunk-bad-extension", chat(CHUNKED, body=b"5;\x00\r\nhello\r\n0\r\n\r\n"), BAD),
    ("chunk-long-line", chat(CHUNKED, body=b"5;" + b"a" * 5000), BAD),
    ("chunk-long-number", chat(CHUNKED, body=b"0" * 5000), BAD),
    ("chunk-long-trailer", chat(CHUNKED, body=CHUNKS[:-2] + b"X: " + b"a" * 9000), BAD),
    # hosts
    ("host-missing", head(GET, GOOD), BAD),
    ("host-missing-10", head(b"GET /v1/models HTTP/1.0", GOOD), BAD),
    ("host-empty", head(GET, b"Host:", GOOD), BAD),
    ("host-twice", head(GET, HOST, HOST, GOOD), BAD),
    ("host-twice-other", head(GET, HOST, b"Host: evil.example", GOOD), BAD),
    ("host-twice-case", head(GET, HOST, b"HOST: localhost", GOOD), BAD),
    ("host-comma", head(GET, b"Host: 127.0.0.1,evil.example", GOOD, CLOSE), (403,)),
    ("host-space", head(GET, b"Host: 127.0.0.1 evil.example", GOOD, CLOSE), (403,)),
    ("host-userinfo", head(GET, b"Host: a@127.0.0.1", GOOD, CLOSE), (403,)),
    ("host-path", head(GET, b"Host: 127.0.0.1/x", GOOD, CLOSE), (403,)),
    ("host-evil", head(GET, b"Host: evil.example", GOOD, CLOSE), (403,)),
    ("absolute-other", head(b"GET http://evil.example/v1/models HTTP/1.1", HOST, GOOD),
     BAD),
    ("absolute-userinfo", head(b"GET http://a@127.0.0.1/v1/models HTTP/1.1", HOST,
                               GOOD), BAD),
    ("absolute-broken", head(b"GET http://[::1/v1/models HTTP/1.1", HOST, GOOD), BAD),
    # first lines
    ("version-09", b"GET /v1/models\r\n\r\n", BAD),
    ("version-20", head(b"GET /v1/models HTTP/2.0", HOST, GOOD), BAD),
    ("version-12", head(b"GET /v1/models HTTP/1.2", HOST, GOOD), BAD),
    ("version-11x", head(b"GET /v1/models HTTP/1.1x", HOST, GOOD), BAD),
    ("version-lower", head(b"GET /v1/models http/1.1", HOST, GOOD), BAD),
    ("version-space", head(b"GET /v1/models HTTP/ 1.1", HOST, GOOD), BAD),
    ("version-missing-minor", head(b"GET /v1/models HTTP/1", HOST, GOOD), BAD),
    ("h2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
    ("method-lower", head(b"get /v1/models HTTP/1.1", HOST, GOOD), BAD),
    ("method-long", head(b"G" * 40 + b" /v1/models HTTP/1.1", HOST, GOOD), BAD),
    ("method-empty", head(b" /v1/models HTTP/1.1", HOST, GOOD), BAD),
    ("method-parenthesis", head(b"GE(T /v1/models HTTP/1.1", HOST, GOOD), BAD),
    ("two-spaces", head(b"GET  /v1/models HTTP/1.1", HOST, GOOD), BAD),
    ("tab", head(b"GET\t/v1/models\tHTTP/1.1", HOST, GOOD), BAD),
    ("target-space", head(b"GET /v1/mod els HTTP/1.1", HOST, GOOD), BAD),
    ("target-nul", head(b"GET /v1/models\x00 HTTP/1.1", HOST, GOOD), BAD),
    ("target-raw-utf8", head(b"GET /v1/mod\xc3\xa9ls HTTP/1.1", HOST, GOOD), BAD),
    ("target-escaped-crlf", head(b"GET /v1/a%0d%0ab HTTP/1.1", HOST, GOOD), BAD),
    ("target-escaped-nul", head(b"GET /v1/a%00 HTTP/1.1", HOST, GOOD), BAD),
    ("target-escaped-esc", head(b"GET /v1/a%1b[31m HTTP/1.1", HOST, GOOD), BAD),
    ("target-del", head(b"GET /v1/a\x7f HTTP/1.1", HOST, GOOD), BAD),
    # headers
    ("bare-lf", b"GET /v1/models HTTP/1.1\nHost: 127.0.0.1\n\n", BAD),
    ("bare-lf-in-head", GET + b"\r\n" + HOST + b"\n" + GOOD + b"\r\n\r\n", BAD),
    ("bare-cr-in-head", GET + b"\r\n" + HOST + b"\r" + GOOD + b"\r\n\r\n", BAD),
    ("space-before-colon", get(b"X-A : b"), BAD),
    ("tab-before-colon", get(b"X-A\t: b"), BAD),
    ("no-colon", get(b"X-A"), BAD),
    ("no-name", get(b": b"), BAD),
    ("name-space", get(b"X A: b"), BAD),
    ("name-utf8", get(b"X-\xc3\xa9: b"), BAD),
    ("value-nul", get(b"X-A: a\x00b"), BAD),
    ("value-esc", get(b"X-A: a\x1bb"), BAD),
    ("fold-space", get(b"X-A: a", b" b"), BAD),
    ("fold-tab", get(b"X-A: a", b"\tb"), BAD),
    ("fold-first", head(GET, b" X-A: a", HOST, GOOD), BAD),
    ("101-headers", get(*(b"X-%d: 1" % i for i in range(101))), (431,)),
    ("10000-headers", get(*(b"X: %d" % i for i in range(10_000))), (431,)),
    ("header-20k", get(b"X-A: " + b"a" * 20_000), (431,)),
    ("header-300k", get(b"X-A: " + b"a" * 300_000), (431,)),
    ("target-20k", head(b"GET /" + b"a" * 20_000 + b" HTTP/1.1", HOST), (400, 431)),
    ("content-type-twice", chat(LENGTH, JSON), BAD),
    ("content-encoding-twice", chat(LENGTH, b"Content-Encoding: gzip",
                                    b"Content-Encoding: identity"), BAD),
    ("origin-twice", get(b"Origin: null", b"Origin: null"), BAD),
    ("expect-unknown", chat(LENGTH, b"Expect: 200-maybe"), (417,)),
    ("expect-twice", chat(LENGTH, b"Expect: 100-continue", b"Expect: x"), BAD),
    ("key-missing", head(GET, HOST, CLOSE), (401,)),
    ("key-twice", get(GOOD), (401,)),
    ("key-basic", head(GET, HOST, b"Authorization: Basic b2ZhOg==", CLOSE), (401,)),
    ("key-nonascii", head(GET, HOST, b"Authorization: Bearer \xff\xfe", CLOSE), (401,)),
    # other protocols
    ("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), BAD),
    ("ssh", b"SSH-2.0-OpenSSH_9.6\r\n", BAD),
    ("redis", b"*1\r\n$4\r\nPING\r\n", BAD),
    ("smtp", b"EHLO example.org\r\n", BAD),
    ("nul-bytes", bytes(100), BAD),
    ("random", bytes(range(128, 256)), BAD),
    ("junk-line", b"hello\r\n", BAD),
    ("long-junk", b"A" * 5000, BAD),
]  # fmt: skip


@pytest.fixture(scope="module")
def site():
    """A server with short deadlines, for connections that would wait."""
    opened = Site(patience=Patience(header_s=2, body_s=2, linger_s=1))
    yield opened
    opened.close()


def statuses(got):
    """Return the status of each answer in *got*."""
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", got)]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [pytest.param(sent, expected, id=name) for name, sent, expected in VECTORS],
)
def test_H_vectors(site, sent, expected):
    """One request, one answer of the right kind, and nothing read as a second one."""
    got = site.raw(sent)

    seen = statuses(got)
    assert seen in ([expected[-1]], [*expected], *([s] for s in expected)), got[:300]
    if seen[-1] >= 400:
        top, _, body = got.partition(b"\r\n\r\n")
        assert json.loads(body)["error"]["message"]
        assert b"content-type: application/json" in top.lower()
        assert b"waitress" not in got
        if seen[-1] not in (401, 403):
            assert b"connection: close" in top.lower()
    assert site.ask("GET", "/healthz", headers={}).status == 200


def test_there_are_enough_vectors():
    """The table only grows."""
    assert len(VECTORS) >= 100
    assert len({name for name, _, _ in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize("step", [1, 7])
def test_requests_may_come_in_pieces(site, step):
    """However the bytes are cut, a request is the same request."""
    sent = chat(CHUNKED, CLOSE, body=CHUNKS)

    with site.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(sent), step):
            connection.sendall(sent[start : start + step])
        got = read_all(connection)

    assert statuses(got) == [200]


def test_N3_a_stranger_is_refused_after_his_headers(site):
    """A body that is announced without the key is never asked for, nor waited for."""
    announced = head(
        CHAT, HOST, JSON, b"Content-Length: 30000000", b"Expect: 100-continue"
    )

    with site.socket() as connection:
        connection.sendall(announced)
        got = read_until(connection, b"}}")

    assert statuses(got) == [401]
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == (
        "invalid_api_key"
    )


@pytest.mark.parametrize("framing", [b"Content-Length: 3000000", CHUNKED])
def test_a_refused_client_can_read_why(site, framing):
    """Still sending, it gets the 401 and not a reset: VS Code shows the text."""
    body = b"{" + b" " * 3_000_000
    if framing == CHUNKED:
        body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"

    with site.socket() as connection:
        connection.sendall(head(CHAT, HOST, JSON, framing))
        connection.sendall(body[:2_900_000])
        got = read_all(connection)

    assert statuses(got) == [401]
    assert b"API key" in got


def test_a_refused_client_is_not_read_for_ever(open_site):
    """After the refusal a few megabytes are thrown away, then the door shuts."""
    site = open_site()

    with site.socket() as connection:
        connection.sendall(head(CHAT, HOST, JSON, b"Content-Length: 30000000"))
        sent = 0
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while sent < 30_000_000:
                sent += connection.send(bytes(100_000))

    assert sent < 25_000_000


def test_the_key_is_asked_for_before_the_size(site):
    """A stranger doesn't learn the limits."""
    announced = head(CHAT, HOST, JSON, b"Content-Length: 999999999999999")

    assert statuses(site.raw(announced)) == [401]


def test_expect_continue_is_answered_before_the_body(site):
    """With the key, 100 comes at once; the body is then read."""
    with site.socket() as connection:
        connection.sendall(chat(LENGTH, b"Expect: 100-continue", CLOSE, body=b""))
        assert statuses(read_until(connection, b"\r\n\r\n")) == [100]
        connection.sendall(BODY)
        assert statuses(read_all(connection)) == [200]


@pytest.mark.parametrize(
    ("sent", "drip"),
    [
        (b"GET /v1/models HTTP/1.1\r\n", b"X"),
        (GET + b"\r\n" + HOST + b"\r\nX-A: ", b"a"),
        (chat(b"Content-Length: 5000", body=b"{"), b" "),
        (chat(CHUNKED, body=b"1388\r\n"), b" "),
    ],
    ids=["headers", "a-header", "a-body", "chunks"],
)
def test_H13_drips_are_cut(open_site, sent, drip):
    """A client that sends a byte now and then has a deadline for the whole request."""
    patience = Patience(header_s=0.5, body_s=0.5, idle_s=60, linger_s=0.2)
    site = open_site(patience=patience)

    with site.socket() as connection:
        connection.sendall(sent)
        connection.settimeout(0.2)
        got, tries = b"", 0
        while not got and tries < 50:
            tries += 1
            try:
                connection.sendall(drip)
                got = connection.recv(1000)
            except TimeoutError:
                continue

    assert statuses(got) == [408]
    assert site.refused == [(408, "request_timeout")]


def test_idle_connections_are_closed(open_site):
    """A connection with no request under way is not kept for ever."""
    site = open_site(patience=Patience(idle_s=0.2))

    with site.socket() as connection:
        assert connection.recv(1) == b""
    with site.socket() as connection:
        connection.sendall(head(GET, HOST, GOOD))
        assert statuses(read_all(connection)) == [200]


def test_a_running_answer_is_not_idle(open_site):
    """Silence of the engine is not the client's: no deadline ends it."""
    held = SilentReply()
    site = open_site(
        FakeAnswerer(lambda chat: held), patience=Patience(idle_s=0.1, header_s=0.1)
    )

    with site.streaming() as connection:
        read_until(connection, b"assistant")
        connection.settimeout(2.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert not held.closed.is_set()


def test_H14_a_reader_that_stalls_is_cut(open_site):
    """A stream nobody reads stops its engine instead of holding a place."""

    class Endless(FakeReply):
        def __iter__(self):
            while not self.closed.is_set():
                yield Text("x" * 50_000)
            yield End("stop")

    site = open_site(
        FakeAnswerer(lambda chat: Endless(())), patience=Patience(stall_s=0.5)
    )

    with site.streaming() as connection:
        assert site.answerer.arrived.wait(5)
        connection.settimeout(10)

        assert site.answerer.replies[0].closed.wait(8)


def test_N2_idle_neighbours_do_not_lock_the_owner_out(open_site):
    """Far more silent connections than waitress would hold by itself."""
    site = open_site()
    neighbours = [
        socket.create_connection(("127.0.0.1", site.port), 10) for _ in range(150)
    ]
    try:
        assert site.chat().status == 200
    finally:
        for neighbour in neighbours:
            neighbour.close()


def test_H21_short_connections_leave_nothing_behind(site):
    """Opened and dropped, half a head, or reset: files and threads are as before."""
    site.ask("GET", "/healthz")
    threads = threading.active_count()

    for number in range(200):
        connection = socket.create_connection(("127.0.0.1", site.port), 10)
        connection.sendall(GET[: number % 20])
        if number % 2:
            reset(connection)
        else:
            connection.close()

    assert site.ask("GET", "/healthz").status == 200
    assert threading.active_count() == threads
    with site.socket() as connection:
        connection.sendall(get())
        assert statuses(read_all(connection)) == [200]


def test_crowded_servers_are_less_patient():
    """When most places are taken, an idle connection has seconds, not a minute."""
    now = SimpleNamespace(s=100.0)
    ours, theirs = socket.socketpair()
    gate = Gate(check_key, 1000, clock=lambda: now.s)
    server = SimpleNamespace(gate=gate, on_refused=None, active_channels={})
    adj = SimpleNamespace(outbuf_overflow=1000, channel_request_lookahead=1)
    channel = StrictChannel(server, ours, ("127.0.0.1", 1), adj, map={})

    now.s += 6
    channel.tend(crowded=False)
    still_open = channel.socket is not None
    channel.tend(crowded=True)

    assert still_open
    assert channel.socket is None
    theirs.close()


def test_the_hooks_of_waitress_are_called(open_site):
    """If waitress stops calling what we replaced in it, this is the loud failure."""
    site = open_site(patience=Patience(header_s=0.3, linger_s=0.2))

    framed_twice = site.raw(chat(LENGTH, CHUNKED, body=CHUNKS))  # parser_class
    dripped = site.raw(GET + b"\r\n")  # channel_class, and `tend` of its channels

    assert statuses(framed_twice) == [400]
    assert statuses(dripped) == [408]
    assert b'{"error":' in framed_twice  # error_task_class
    assert site.refused == [(400, "invalid_http"), (408, "request_timeout")]


def test_stop_accepting_lets_streams_go_on(open_site):
    """Draining: new connections are refused at once, those there are served."""
    gate = threading.Event()

    def script():
        yield Text("before ")
        assert gate.wait(10)
        yield Text("after")
        yield End("stop")

    site = open_site(FakeAnswerer(lambda chat: FakeReply(script())))

    with site.streaming() as connection:
        read_until(connection, b"before")
        site.server.stop_accepting()
        with pytest.raises(OSError):
            while True:
                socket.create_connection(("127.0.0.1", site.port), 5).close()
        gate.set()
        got = read_all(connection)

    assert b"after" in got
    assert b"[DONE]" in got
    assert site.thread.is_alive()


def test_stop_waits_for_answers_under_way(open_site):
    """Everything that is being sent is sent before the loop returns."""
    gate = threading.Event()

    def script():
        yield Text("before ")
        assert gate.wait(10)
        yield Text("after")
        yield End("stop")

    site = open_site(FakeAnswerer(lambda chat: FakeReply(script())))

    with site.streaming() as connection:
        read_until(connection, b"before")
        site.server.stop(10)
        gate.set()
        got = read_all(connection)

    assert b"[DONE]" in got
    site.thread.join(5)
    assert not site.thread.is_alive()


def test_stop_cuts_what_takes_too_long(open_site):
    """At the end of the wait a silent stream is closed, and its engine stopped."""
    site = open_site(FakeAnswerer(lambda chat: SilentReply()))

    with site.streaming() as connection:
        read_until(connection, b"assistant")
        site.server.stop(0.2)
        site.thread.join(5)

    assert not site.thread.is_alive()
    assert site.answerer.replies[0].closed.is_set()
    site.server.stop()  # safe to call again


def test_an_idle_server_stops_at_once(open_site):
    """Keep-alive connections without a request hold nobody up."""
    site = open_site(scripted(End("stop")))

    with site.socket() as connection:
        connection.sendall(head(GET, HOST, GOOD))
        read_until(connection, b"ofa-reframe")
        site.server.stop(30)
        site.thread.join(5)

    assert not site.thread.is_alive()


@contextmanager
def running(server):
    """Run *server* on a thread that has ended when this is left, come what may."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield thread
    finally:
        server.stop(0)
        thread.join(10)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_a_unix_socket_is_served(tmp_path):
    """The same server, on a socket that only its owner can open."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        app = create_app(services())
        server = make_server(app, [listening], threads=2, gate=Gate(check_key, 1000))
        with running(server), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(tmp_path / "sock"))
            connection.sendall(get())
            got = read_all(connection)

    assert statuses(got) == [200]


def test_two_sockets_are_served(open_site):
    """IPv4 and IPv6, or a loopback and a cluster address: one server."""
    app = create_app(services())
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in sockets]
    server = make_server(app, sockets, threads=2, gate=Gate(check_key, 1000))
    with running(server) as thread:
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(get())
                assert statuses(read_all(connection)) == [200]
    assert not thread.is_alive()


def test_find_problem_is_total():
    """Any head gets an answer: a problem, or none for the good ones."""
    good = head(CHAT, HOST, GOOD, JSON, LENGTH)

    assert find_problem(good) is None
    for end in range(len(good) - 1):
        problem = find_problem(good[:end])
        assert problem is None or problem.status in (400, 401)


def test_connections_leave_files_for_the_rest():
    """The model and the index need some of what the process may open."""
    assert connection_limit(1 << 20) == 1024
    assert connection_limit(1024) == 768
    assert connection_limit(100) == 64


def test_a_defect_of_the_app_is_json_and_one_line():
    """What escapes the app is a 500 without a word, and a log line without its text."""

    def broken(environ, start_response):
        raise RuntimeError("secret\nprompt")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = make_server(broken, [listening], threads=1, gate=Gate(check_key, 1000))
        with running(server), Lines("ofa.http") as log, Lines("ofa.access") as access:
            with socket.create_connection(listening.getsockname(), 10) as connection:
                connection.sendall(get(b"X-Request-Id: abc"))
                got = read_all(connection)
            (line,) = log.wait(1)
            # Another test's server may still write its last line on this logger.
            (refused,) = [line for line in access.wait(1) if "refused 500" in line]

    assert statuses(got) == [500]
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == (
        "internal_error"
    )
    assert "RuntimeError at " in line
    assert "\n" not in line
    assert "secret" not in line
    assert "refused 500 outcome=internal_error" in refused


def test_a_refused_client_that_stays_is_closed(open_site):
    """It has read why; its connection ends after a moment all the same."""
    site = open_site(patience=Patience(linger_s=0.1))

    with site.socket() as connection:
        connection.sendall(b"hello\r\n")
        assert statuses(read_all(connection)) == [400]
        with pytest.raises(OSError):
            for _ in range(200):
                connection.sendall(b"x")
                time.sleep(0.02)


def test_a_check_that_refuses_is_the_only_gate():
    """Unauthorized from the key check is what the client is told."""

    def refuse(headers):
        assert headers["x-api-key"] == "k"
        raise Unauthorized("no luck")

    parser = StrictParser(
        SimpleNamespace(
            max_request_header_size=10_000,
            max_request_body_size=10**9,
            url_scheme="http",
            inbuf_overflow=1000,
        ),
        gate=Gate(refuse, 1000),
    )
    parser.received(head(CHAT, HOST, b"X-Api-Key: k", JSON, LENGTH))

    assert str(parser.error) == "no luck"
    assert parser.completed
