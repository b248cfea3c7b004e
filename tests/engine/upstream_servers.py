"""Servers on loopback that answer as upstreams do: by script, or as recorded."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ofa.chat import Chat, Message
from ofa.engine.upstream import UpstreamEngine
from ofa.engine.upstream_server import UpstreamSettings

RECORDED = Path(__file__).parent / "recorded"

CHAT = Chat("ofa-hpc", (Message("system", "S"), Message("user", "hi")))
MODELS = {"data": [{"id": "gemma", "owned_by": "vllm", "max_model_len": 8192}]}
DONE = b"data: [DONE]\n\n"


def recorded(name: str):
    """Return a recording: a stream as bytes, anything else parsed."""
    raw = (RECORDED / name).read_bytes()
    return json.loads(raw) if name.endswith(".json") else raw


def sse(*frames: object) -> bytes:
    """Return frames as a stream's body."""
    return b"".join(b"data: " + json.dumps(f).encode() + b"\n\n" for f in frames)


def delta(finish=None, **parts) -> dict:
    """Return one chunk."""
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish}]}


HALF = sse(delta(content="half"))
HELLO = sse(delta(role="assistant", content=""), delta(content="hello"), delta("stop"))
HELLO += DONE


class Upstream:
    """
    A server that gives `answers` in turn, then hello; GETs are answered from `pages`.

    `asked` keeps bodies, `headers` those of the requests, `paths` all that was asked
    for; `connections` counts those that were made.
    """

    def __init__(self, *answers, models: object = MODELS, port: int = 0) -> None:
        self.answers = list(answers)
        self.pages: dict[str, object] = {"/v1/models": models}
        self.asked: list[dict] = []
        self.headers: list[dict] = []
        self.paths: list[str] = []
        self.sockets: list[socket.socket] = []
        self.cut = threading.Event()  # the client hung up while we waited
        self.waiting = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            upstream = self

            def setup(self) -> None:
                outer.sockets.append(self.request)
                super().setup()

            def log_message(self, *args) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                outer.paths.append(self.path)
                page = outer.pages.get(self.path)
                if callable(page):
                    page(self)
                else:
                    outer.reply(self, 404 if page is None else 200, page)

            def do_POST(self) -> None:
                outer.paths.append(self.path)
                length = int(self.headers["Content-Length"])
                self.body = json.loads(self.rfile.read(length))
                outer.asked.append(self.body)
                outer.headers.append(dict(self.headers))
                answer = outer.answers.pop(0) if outer.answers else HELLO
                answer(self) if callable(answer) else outer.reply(self, 200, answer)

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        serve = partial(self.server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()

    def reply(self, handler, status, body, **headers) -> None:
        """Send bytes as a stream, anything else as JSON."""
        raw = isinstance(body, bytes)
        payload = body if raw else json.dumps(body).encode()
        self.start(handler, status, "text/event-stream" if raw else "application/json")
        handler.send_header("Content-Length", str(len(payload)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(payload)

    def start(self, handler, status=200, kind="text/event-stream") -> None:
        """Send a status and a content type; the caller ends the headers."""
        handler.send_response(status)
        handler.send_header("Content-Type", kind)

    def status(self, status, body, **headers) -> Callable:
        """Return an answer with another status."""
        return lambda handler: self.reply(handler, status, body, **headers)

    def chunked(self, *pieces: bytes | threading.Event | None) -> Callable:
        """
        Return a chunked stream of *pieces*; an event is waited for, None waits for the
        client to hang up and never ends the stream.
        """

        def answer(handler) -> None:
            self.start(handler)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for piece in pieces:
                if piece is None:
                    return self.wait_for_hang_up(handler)
                if isinstance(piece, threading.Event):
                    piece.wait(10)
                    continue
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            handler.wfile.write(b"0\r\n\r\n")
            return None

        return answer

    def wait_for_hang_up(self, handler) -> None:
        """Send nothing until the client is gone."""
        self.waiting.set()
        handler.close_connection = True
        handler.connection.settimeout(10)
        try:
            if handler.connection.recv(1) == b"":
                self.cut.set()
        except ConnectionError:
            self.cut.set()

    @property
    def connections(self) -> int:
        """How many were made."""
        return len(self.sockets)

    def close(self) -> None:
        """Die: nobody listens any more, and what was open is closed."""
        self.server.shutdown()
        self.server.server_close()
        for one in self.sockets:
            with suppress(OSError):  # closed already
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def engine(*servers: Upstream | str, **options) -> Iterator[UpstreamEngine]:
    """Yield an engine that asks *servers*."""
    urls = [one if isinstance(one, str) else one.url for one in servers]
    with closing(UpstreamEngine(urls, UpstreamSettings(**options))) as made:
        yield made


def free_url() -> str:
    """Return the URL of a port where nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        return f"http://127.0.0.1:{held.getsockname()[1]}/v1"


@contextmanager
def never_accepting() -> Iterator[str]:
    """Yield a URL where connecting hangs: the line of those who wait is full."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        where = listener.getsockname()
        fillers = []
        try:
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(where)
                fillers.append(filler)
            yield f"http://127.0.0.1:{where[1]}/v1"
        finally:
            for filler in fillers:
                filler.close()


def until(happened: Callable[[], object], limit_s: float = 10.0) -> None:
    """Wait for what another thread or process brings about; fail if it does not."""
    end_s = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)
