"""
Requests and streams over raw sockets, with the time of every frame.

One thread reads all streams, so that the client costs the measured server little of
their shared cores. Knows HTTP/1.1 as far as servers here speak it, and SSE.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

SILENCE_S = 600.0  # a prompt on the reference BLAS takes minutes


def request(
    path: str, body: object = None, *, key: str = "", method: str = "POST"
) -> bytes:
    """Return the bytes of one request; *body* is sent as JSON, bytes as they are."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    head += [f"Authorization: Bearer {key}"] if key else []
    if method == "POST":
        head += ["Content-Type: application/json", f"Content-Length: {len(sent)}"]
    head += ["Connection: close", "", ""]
    return "\r\n".join(head).encode() + (sent if method == "POST" else b"")


@dataclass
class Heard:
    """What came back on one connection, and when; times are `perf_counter`'s."""

    began_s: float
    head: bytes = b""
    body: bytes = b""
    frames: list[tuple[float, bytes]] = field(default_factory=list)
    ended_s: float = 0.0
    broken: str = ""  # why the connection ended early

    @property
    def status(self) -> int:
        """The status code; 0 if none came."""
        words = self.head.split(b" ", 2)
        return int(words[1]) if len(words) > 1 else 0

    @cached_property
    def events(self) -> list[tuple[float, Any]]:
        """The JSON of each data frame with its time; "[DONE]" stays a string."""
        found = []
        for at_s, frame in self.frames:
            for line in frame.split(b"\n"):
                if line.startswith(b"data: "):
                    text = line[6:].strip()
                    found.append((at_s, _json(text)))
        return found

    @cached_property
    def pieces(self) -> list[tuple[float, str]]:
        """Each piece of content that shows something, with its time."""
        return [
            (at_s, content)
            for at_s, event in self.events
            if isinstance(event, dict)
            for choice in event.get("choices") or ()
            if (content := (choice.get("delta") or {}).get("content"))
        ]

    @property
    def text(self) -> str:
        """All content."""
        return "".join(content for _, content in self.pieces)

    @property
    def usage(self) -> Mapping[str, Any]:
        """The token counts that the stream told last; empty if none."""
        told = [
            e["usage"] for _, e in self.events if isinstance(e, dict) and e.get("usage")
        ]
        return told[-1] if told else {}

    @property
    def ttft_s(self) -> float:
        """Seconds from before the connection to the first content."""
        return self.pieces[0][0] - self.began_s

    @property
    def tokens(self) -> int:
        """Tokens written, as the server counts them; else the pieces."""
        return int(self.usage.get("completion_tokens") or len(self.pieces))

    @property
    def decode_per_s(self) -> float:
        """Tokens a second between the first piece and the last."""
        return (self.tokens - 1) / (self.pieces[-1][0] - self.pieces[0][0])

    @property
    def is_whole(self) -> bool:
        """Whether the stream came to its proper end."""
        return bool(self.events) and self.events[-1][1] == "[DONE]"


def _json(text: bytes) -> Any:
    return text.decode() if text == b"[DONE]" else json.loads(text)


class _Reader:
    """Takes one response apart as it arrives."""

    def __init__(self, sock: socket.socket, heard: Heard) -> None:
        self.sock = sock
        self.heard = heard
        self._raw = b""
        self._text = b""  # decoded and not yet a whole frame
        self._chunked = False
        self._left: int | None = None  # of the body, where its length is told

    def feed(self, data: bytes, at_s: float) -> bool:
        """Take *data*; return whether the response is complete."""
        self._raw += data
        if not self.heard.head and not self._take_head():
            return False
        decoded, done = self._decode()
        self.heard.body += decoded
        self._text += decoded
        while (end := self._text.find(b"\n\n")) >= 0:
            self.heard.frames.append((at_s, self._text[:end]))
            self._text = self._text[end + 2 :]
        return done

    def _take_head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return False
        self.heard.head, self._raw = head, rest
        named = dict(
            (name.strip().lower(), value.strip().lower())
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
        )
        self._chunked = named.get(b"transfer-encoding") == b"chunked"
        if b"content-length" in named:
            self._left = int(named[b"content-length"])
        return True

    def _decode(self) -> tuple[bytes, bool]:
        if not self._chunked:
            data, self._raw = self._raw, b""
            if self._left is not None:
                self._left -= len(data)
            return data, self._left is not None and self._left <= 0
        parts: list[bytes] = []
        while (end := self._raw.find(b"\r\n")) >= 0:
            size = int(self._raw[:end].split(b";")[0] or b"0", 16)
            if size == 0:
                return b"".join(parts), True
            if len(self._raw) < end + 4 + size:
                break
            parts.append(self._raw[end + 2 : end + 2 + size])
            self._raw = self._raw[end + 4 + size :]
        return b"".join(parts), False


def ask_all(
    port: int,
    requests: Sequence[bytes],
    *,
    silence_s: float = SILENCE_S,
    at_once: int = 0,
) -> list[Heard]:
    """
    Send *requests*, each on its own connection; read them to the end, in their order.

    All at once, or *at_once* of them: then the next is sent when one has ended.
    """
    chosen = selectors.DefaultSelector()
    heard: list[Heard] = []

    def fill() -> None:
        while len(heard) < len(requests):
            if at_once and len(chosen.get_map()) >= at_once:
                return
            heard.append(_send(chosen, port, requests[len(heard)]))

    fill()
    while chosen.get_map():
        ready = chosen.select(silence_s)
        at_s = time.perf_counter()
        if not ready:
            for key in list(chosen.get_map().values()):
                _finish(chosen, key.data, at_s, f"silent for {silence_s:g} s")
        for key, _ in ready:
            _read(chosen, key.data, at_s)
        fill()
    chosen.close()
    return heard


def _send(chosen: selectors.BaseSelector, port: int, sent: bytes) -> Heard:
    one = Heard(time.perf_counter())
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.sendall(sent)
    sock.setblocking(False)
    chosen.register(sock, selectors.EVENT_READ, _Reader(sock, one))
    return one


def ask(port: int, sent: bytes, *, silence_s: float = SILENCE_S) -> Heard:
    """Send one request and read its answer to the end."""
    return ask_all(port, [sent], silence_s=silence_s)[0]


def _read(chosen: selectors.BaseSelector, reader: _Reader, at_s: float) -> None:
    try:
        data = reader.sock.recv(1 << 18)
    except BlockingIOError:
        return
    except OSError as exc:
        _finish(chosen, reader, at_s, str(exc))
        return
    if not data or reader.feed(data, at_s):
        _finish(chosen, reader, at_s)


def _finish(
    chosen: selectors.BaseSelector, reader: _Reader, at_s: float, broken: str = ""
) -> None:
    chosen.unregister(reader.sock)
    reader.sock.close()
    reader.heard.ended_s = at_s
    reader.heard.broken = broken


def is_up(port: int, path: str, *, key: str = "") -> bool:
    """Return whether a GET of *path* is answered with 200 now."""
    try:
        sent = request(path, key=key, method="GET")
        return ask(port, sent, silence_s=10).status == 200
    except OSError:
        return False


def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
