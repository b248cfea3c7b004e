"""Small real parts for tests of the HTTP side: an Answerer, a server, a client."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ofa.answer import Answered, Caller
from ofa.chat import Chat, End, Event, Text, Usage, Waiting
from ofa.engine.base import Limits, Status
from ofa.errors import Cancelled, Unauthorized
from ofa.modes import Modes
from ofa.web import Route, Services, WebSettings, create_app
from ofa.wsgi import Gate, Patience, Server, make_server

KEY = "ofa-" + "k" * 43
AUTH = {"Authorization": f"Bearer {KEY}"}
HELLO = (Text("Hel"), Text("lo"), End("stop", Usage(7, 3, 2)))

Script = Iterable[Event | Exception]


def check_key(headers: Mapping[str, str]) -> str:
    """Let the one good key in, in a Bearer header of any case."""
    given = next((v for k, v in headers.items() if k.lower() == "authorization"), "")
    if given != f"Bearer {KEY}":
        raise Unauthorized("a wrong or missing API key")
    return "key-1"


class FakeReply:
    """Gives a script's events; an exception in it is raised."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.closed = threading.Event()

    told: Mapping[str, str] = {}

    def __iter__(self) -> Iterator[Event]:
        for event in self._script:
            if isinstance(event, Exception):
                raise event
            yield event

    def close(self) -> None:
        """Note that the work is to stop."""
        self.closed.set()


class SilentReply(FakeReply):
    """Says nothing until it is closed, as an engine in a long prefill does."""

    def __init__(self, first: Script = (), tick_s: float = 0.02) -> None:
        super().__init__(first)
        self._tick_s = tick_s
        self.started = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        self.started.set()
        yield from super().__iter__()
        while not self.closed.wait(self._tick_s):
            yield Waiting()
        raise Cancelled("closed")


@dataclass
class FakeAnswerer:
    """Answers every chat by what `answer` makes of it; keeps what it was asked."""

    answer: Callable[[Chat], FakeReply] = lambda chat: FakeReply(HELLO)
    headers: dict[str, str] = field(default_factory=dict)
    chats: list[Chat] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    replies: list[FakeReply] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)

    def reply(self, chat: Chat, caller: Caller) -> Answered:
        """Keep *chat* and answer it."""
        self.chats.append(chat)
        self.callers.append(caller)
        reply = self.answer(chat)
        self.replies.append(reply)
        self.arrived.set()
        return Answered(reply, dict(self.headers))


class Refusing(FakeAnswerer):
    """Refuses every chat with the same error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def reply(self, chat: Chat, caller: Caller) -> Answered:
        """Raise the error."""
        raise self._error


def scripted(*script: Event | Exception) -> FakeAnswerer:
    """Return an Answerer that gives *script* each time."""
    return FakeAnswerer(lambda chat: FakeReply(script))


def services(answerer: FakeAnswerer | None = None, **parts: Any) -> Services:
    """Return services around *answerer*, ready, with a 32k context."""
    ready = Services(
        answerer=answerer or FakeAnswerer(),
        modes=Modes(),
        limits=lambda _: Limits(32768, 4096, tools=True),
        status=lambda: Status(True),
        check_key=check_key,
    )
    return replace(ready, **parts)


class Lines(logging.Handler):
    """Collects what a logger says; lets a test wait for a number of lines."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._logger = logging.getLogger(name)
        self._more = threading.Condition()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        with self._more:
            self._lines.append(record.getMessage())
            self._more.notify_all()

    def wait(self, count: int, about: str = "") -> list[str]:
        """Return the lines that start with *about* once there are *count* of them."""

        def lines() -> list[str]:
            return [line for line in self._lines if line.startswith(about)]

        with self._more:
            assert self._more.wait_for(lambda: len(lines()) >= count, 10)
            return lines()

    def __enter__(self) -> Lines:
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)


class Site:
    """A server on a loopback port of its own, and ways to ask it."""

    def __init__(
        self,
        answerer: FakeAnswerer | None = None,
        *,
        settings: WebSettings | None = None,
        patience: Patience | None = None,
        threads: int = 8,
        max_body_bytes: int = 32 << 20,
        more: Iterable[Route] = (),
        **parts: Any,
    ) -> None:
        self.answerer = answerer or FakeAnswerer()
        app = create_app(services(self.answerer, **parts), settings, more)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.refused: list[tuple[int, str]] = []
        self.server: Server = make_server(
            app,
            [listening],
            threads=threads,
            gate=Gate(
                parts.get("check_key", check_key),
                max_body_bytes,
                patience or Patience(),
            ),
            on_refused=lambda problem, headers: self.refused.append(
                (problem.status, problem.code)
            ),
        )
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def close(self) -> None:
        """Stop the server; fails if its thread does not end."""
        self.server.stop(0.5)
        self.thread.join(10)
        assert not self.thread.is_alive()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] = AUTH,
    ) -> Got:
        """Send one request as http.client does; return the whole answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            sent = dict(headers)
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            if body is not None:
                sent.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            got = {k.lower(): v for k, v in answer.getheaders()}
            return Got(answer.status, got, answer.read())
        finally:
            connection.close()

    def chat(self, headers: Mapping[str, str] = AUTH, **fields: Any) -> Got:
        """Ask a chat with *fields* over the usual ones."""
        return self.ask("POST", "/v1/chat/completions", chat_body(**fields), headers)

    def raw(self, sent: bytes, *, timeout_s: float = 10.0) -> bytes:
        """Send bytes, return all that comes back until the server closes."""
        with self.socket(timeout_s) as connection:
            connection.sendall(sent)
            return read_all(connection)

    @contextmanager
    def socket(self, timeout_s: float = 10.0) -> Iterator[socket.socket]:
        """Open a connection of one's own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as opened:
            yield opened

    @contextmanager
    def streaming(self, **fields: Any) -> Iterator[socket.socket]:
        """Open a connection and send a chat on it, reading nothing yet."""
        with self.socket() as connection:
            connection.sendall(post(chat_body(stream=True, **fields)))
            yield connection


@dataclass(frozen=True)
class Got:
    """An answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error object of a refusal."""
        return self.json["error"]

    @property
    def frames(self) -> list[Any]:
        """The events of a stream, parsed."""
        return frames(self.body.decode())


def chat_body(**fields: Any) -> dict[str, Any]:
    """Return the smallest chat request, with *fields* over it."""
    base = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}
    return {**base, **fields}


def post(
    body: Any, path: str = "/v1/chat/completions", *lines: str, key: str = KEY
) -> bytes:
    """Return the bytes of a POST with a length; *lines* are further headers."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *lines,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + payload


def frames(text: str) -> list[Any]:
    """Return the data of server-sent events, parsed; comments are left out."""
    events = [line for line in text.split("\n\n") if line.startswith("data: ")]
    bodies = [event.removeprefix("data: ") for event in events]
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes; a reset counts as the end."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until *mark* has come."""
    got = b""
    while mark not in got:
        piece = connection.recv(65536)
        assert piece, got
        got += piece
    return got


def reset(connection: socket.socket) -> None:
    """Close with a reset, as a killed client does."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()
