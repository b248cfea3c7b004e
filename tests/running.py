"""A whole server on loopback, made as `ofa serve` makes it, and how to talk to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ofa.config import load
from ofa.serve import Running, build
from ofa.state import StateFolder


@dataclass
class Site:
    """Where a test's server keeps its state, and with which keys it starts."""

    folder: Path
    overrides: Mapping[str, object]

    def build(self, env: Mapping[str, str] | None = None) -> Running:
        """Make the server; it listens, nobody answers yet."""
        home = {"HOME": str(self.folder), **(env or {})}
        config = load(None, home, self.overrides)
        return build(config, StateFolder(self.folder / "state"), home)


class Client:
    """Asks one server, with its key."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.port = running.connection.port
        self.running = running
        key_file = folder / "state" / ".ofa_api_key"
        self.key = key_file.read_text().strip() if key_file.exists() else ""

    @property
    def engine(self) -> Any:
        """The engine that answers, behind the queue and what tells its pace."""
        return self.running.queue._engine._engine

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers (lower-case names) and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            if not any(name.lower() == "content-type" for name in sent):
                sent["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, named, answer.read()
        finally:
            connection.close()

    def chat(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Post one chat."""
        return self.ask("POST", "/v1/chat/completions", body, headers)


@contextmanager
def serving(
    folder: Path, script: object = ("ok",), **overrides: object
) -> Iterator[Client]:
    """Yield a client of a running server with a scripted engine."""
    path = folder / "script.json"
    path.write_text(json.dumps(script if isinstance(script, list) else list(script)))
    keys = {
        "engine.kind": "scripted",
        "engine.script": str(path),
        "rag.enabled": False,
        **{name.replace("__", "."): value for name, value in overrides.items()},
    }
    running = Site(folder, keys).build()
    with in_background(running.run):
        try:
            yield Client(running, folder)
        finally:
            running.stop()


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[threading.Thread]:
    """Run *work* on a thread that has ended when this is left."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


def frames(stream: bytes) -> list[Any]:
    """Return the JSON of a stream's data lines; "[DONE]" stays a string."""
    lines = [line[6:] for line in stream.decode().split("\n") if line[:6] == "data: "]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(stream: bytes) -> str:
    """Return the content of a streamed answer."""
    deltas = [
        choice["delta"].get("content") or ""
        for frame in frames(stream)
        if isinstance(frame, dict)
        for choice in frame.get("choices", ())
    ]
    return "".join(deltas)
