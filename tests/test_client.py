"""The command line's client: clear words within seconds, whatever is or isn't there."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.chat import End, Text, Thought, Usage
from ofa.client import Client, ServerUnreachable, _frames
from ofa.engine.base import Status
from ofa.errors import ConfigError, EngineError, OfaError, Overloaded

from .running import serving
from .web_fakes import KEY, FakeAnswerer, Refusing, SilentReply, Site, scripted

HI = [{"role": "user", "content": "hi"}]
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@contextmanager
def asking(answerer=None, key=KEY, **parts):
    """Yield a client of a server with *answerer*, and the server."""
    site = Site(answerer, **parts)
    try:
        with Client(f"{site.url}/v1", key) as client:
            yield client, site
    finally:
        site.close()


@contextmanager
def answering(*answers: bytes):
    """Yield the port of something that gives *answers*, one a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for answer in answers:
                opened, _ = server.accept()
                with opened:
                    opened.recv(65536)
                    opened.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def http(body: bytes, status: str = "200 OK") -> bytes:
    """Return an answer with a length."""
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


OK = http(b'{"status": "ok"}')


def test_an_answer_arrives_with_its_end_and_counts():
    """Text as it comes, then why it ended and what it took."""
    with asking() as (client, _), client.stream("ofa-hpc", HI) as answer:
        texts = list(answer)

    assert texts == ["Hel", "lo"]
    assert answer.finish_reason == "stop"
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (7, 3)


def test_thoughts_are_no_part_of_the_answer():
    """A person asked for the answer."""
    script = (Thought("hm"), Text("42"), End("length", Usage(1, 1)))
    with asking(scripted(*script)) as (client, _), client.stream("hpc", HI) as answer:
        assert list(answer) == ["42"]
    assert answer.finish_reason == "length"


def test_sources_come_with_the_first_header():
    """They are percent-encoded there, and plain for people."""
    rag = "hit; n=2; tokens=9; sources=hpc/a%2Cb.md,hpc/caf%C3%A9 d.md"
    answerer = FakeAnswerer(headers={"x-ofa-rag": rag})
    with asking(answerer) as (client, _), client.stream("hpc", HI) as answer:
        assert answer.sources == ("hpc/a,b.md", "hpc/café d.md")
        assert answer.rag == rag


def test_models_tell_the_true_limits():
    """What VS Code and others are to be told."""
    with asking() as (client, _):
        models = client.models()

    assert [model.id for model in models][:2] == ["ofa-openfoam", "ofa-hpc"]
    assert models[0].title == "OFA · OpenFOAM"
    assert (models[0].limits.context_tokens, models[0].limits.output_tokens) == (
        32768,
        4096,
    )
    assert (models[0].limits.tools, models[0].limits.vision) == (True, False)


@pytest.mark.parametrize(
    ("key", "words"),
    [("", "Authorization: Bearer KEY"), ("ofa-wrong", "a wrong API key")],
)
def test_a_refused_key_is_explained_in_the_servers_words(tmp_path, key, words):
    """They name the remedy."""
    with (
        serving(tmp_path) as server,
        Client(f"http://127.0.0.1:{server.port}/v1", key) as client,
        pytest.raises(OfaError, match=words),
    ):
        client.stream("hpc", HI)


def test_a_refusal_is_raised_before_the_answer():
    """A full queue, an unknown model: nothing has been printed yet."""
    with (
        asking(Refusing(Overloaded("all places are taken"))) as (client, _),
        pytest.raises(OfaError, match="all places are taken"),
    ):
        client.stream("hpc", HI)


def test_a_failure_in_the_stream_is_an_error():
    """The text so far came; that it was cut is said."""
    answerer = scripted(Text("half"), EngineError("the engine broke"))
    with asking(answerer) as (client, _), client.stream("hpc", HI) as answer:
        texts = iter(answer)
        assert next(texts) == "half"
        with pytest.raises(OfaError, match="the engine broke"):
            next(texts)


def test_closing_stops_the_work():
    """Ctrl-C must not leave a model writing for nobody."""
    replies = []

    def endless(chat):
        replies.append(SilentReply((Text("on"),)))
        return replies[-1]

    with asking(FakeAnswerer(endless)) as (client, _):
        with client.stream("hpc", HI) as answer:
            assert next(iter(answer)) == "on"
        assert replies[0].closed.wait(5)


def test_a_stream_without_an_end_is_cut():
    """What a dropped connection leaves is not passed off as an answer."""
    body = b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
    with (
        answering(OK, http(body)) as port,
        Client(f"http://127.0.0.1:{port}/v1", KEY) as client,
        client.stream("hpc", HI) as answer,
        pytest.raises(OfaError, match="the answer was cut"),
    ):
        list(answer)


def test_a_broken_connection_is_told():
    """Fewer bytes than announced: the server or the tunnel died."""
    cut = http(b"data: {}\n" * 9)[:-5]
    with (
        answering(OK, cut) as port,
        Client(f"http://127.0.0.1:{port}/v1", KEY) as client,
        client.stream("hpc", HI) as answer,
        pytest.raises(ServerUnreachable, match="broke"),
    ):
        list(answer)


def test_nobody_there_is_said_at_once():
    """A stale port file is no two-minute hang; the remedy is in the line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started_s = time.monotonic()

    with (
        Client(f"http://127.0.0.1:{port}/v1", KEY) as client,
        pytest.raises(ServerUnreachable) as caught,
    ):
        client.stream("hpc", HI)

    assert time.monotonic() - started_s < 3
    assert f"no server is running on port {port}" in str(caught.value)
    assert "`ofa serve`" in str(caught.value)


def test_a_server_that_hangs_is_given_up():
    """It takes connections and says nothing: the other end of a tunnel is gone."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(
            f"http://127.0.0.1:{silent.getsockname()[1]}/v1", KEY, probe_s=0.2
        ) as client,
        pytest.raises(ServerUnreachable, match="says nothing"),
    ):
        client.models()


@pytest.mark.parametrize(
    "answer", [http(b"{}"), http(b"<html>", "404 Not Found"), b"SSH-2.0-OpenSSH_9\r\n"]
)
def test_something_else_on_the_port_gets_no_key(answer):
    """The probe goes first and bare; what is no ofa is told apart."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        seen = []

        def serve():
            opened, _ = server.accept()
            with opened:
                seen.append(opened.recv(65536))
                opened.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with (
            Client(f"http://127.0.0.1:{port}/v1", KEY) as client,
            pytest.raises(ServerUnreachable),
        ):
            client.stream("hpc", HI)
        thread.join(10)

    assert seen and KEY.encode() not in seen[0]


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"data": [1]}', b'{"data": [{}]}'])
def test_a_strange_model_list_is_refused(body):
    """No guess is made of another server's limits."""
    with (
        answering(OK, http(body)) as port,
        Client(f"http://127.0.0.1:{port}/v1", KEY) as client,
        pytest.raises(OfaError, match="no list"),
    ):
        client.models()


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error": "no"}', b"\xff"])
def test_a_refusal_without_words_is_told_by_its_status(body):
    """A gateway in between may answer anything."""
    with (
        answering(OK, http(body, "502 Bad Gateway")) as port,
        Client(f"http://127.0.0.1:{port}/v1", KEY) as client,
        pytest.raises(OfaError, match="status 502"),
    ):
        client.models()


def test_a_loading_model_is_told_in_the_servers_words():
    """The wait has a reason."""
    status = Status(False, "loading the model")
    with asking(status=lambda: status) as (client, _):
        assert client.not_ready() == "loading the model"
    with asking() as (client, _):
        assert client.not_ready() == ""


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:40000",
        "ftp://h/v1",
        "http://",
        "http://[::1",
        "http://h:port/v1",
        "http://h:99999/v1",
        "http://u:p@h/v1",
    ],
)
def test_what_is_no_url_is_refused(url):
    """With an example, and without repeating it: it may hold a password."""
    words = "--url: expected a URL such as http://127.0.0.1:40123/v1"
    with pytest.raises(ConfigError, match=f"^{words}$"):
        Client(url, KEY)


def test_a_slash_at_the_end_is_no_mistake():
    """Base URLs are typed by people."""
    site = Site()
    try:
        with Client(f"{site.url}/v1/", KEY) as client:
            assert client.models()
    finally:
        site.close()


@pytest.mark.parametrize("no_proxy", ["", "example.org"])
def test_R067_proxies_of_the_environment_are_not_used(monkeypatch, no_proxy):
    """A proxy that answered for 127.0.0.1 would say 502, while curl works."""
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    monkeypatch.setenv("no_proxy", no_proxy)

    with asking() as (client, _), client.stream("hpc", HI) as answer:
        assert "".join(answer) == "Hello"


def test_R068_odd_no_proxy_values_do_no_harm(monkeypatch):
    """CIDR blocks and bracketed addresses made the library raise when it was made."""
    value = "localhost,127.0.0.1,10.0.0.0/8,::1,[::1],*.cluster"
    monkeypatch.setenv("NO_PROXY", value)
    monkeypatch.setenv("no_proxy", value)

    with asking() as (client, _):
        assert client.models()


FRAMES = (
    ": keep-alive\n\n"
    'data: {"a": "\u2028 \x85 é"}\n\n'
    "data:[DONE]\r\n\r\n"
    "event: x\ndata: 3\n\n"
)


@given(st.lists(st.integers(0, len(FRAMES.encode())), max_size=6).map(sorted))
def test_frames_may_be_cut_anywhere(places):
    """A piece of the network's ends inside a character as likely as not."""
    whole = FRAMES.encode()
    cuts = [0, *places, len(whole)]
    pieces = [whole[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]

    frames = list(_frames(pieces))

    assert frames == ['{"a": "\u2028 \x85 é"}', "[DONE]", "3"]
    assert json.loads(frames[0]) == {"a": "\u2028 \x85 é"}
