"""
What answers on the server's port while no worker does: that it lives, and why it waits.

Minimal HTTP on sockets that never block: the head is read up to a limit and a deadline,
answered and closed. It looks at no key and keeps no word of a request: what it says is
the same for everybody, and names nobody.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

RETRY_AFTER_S = 5
CODE = "engine_restarting"

_VISITORS = 64  # at once; the newest are answered, the oldest go
_HEAD_BYTES = 16 << 10
_HEAD_WAIT_S = 5.0
# A client still sends its body when it is answered, and would see a reset for it.
_LINGER_S = 5.0
_STATUS = {200: "OK", 503: "Service Unavailable"}


@dataclass(eq=False)
class _Visitor:
    socket: socket.socket
    until_s: float
    head: bytearray = field(default_factory=bytearray)
    answered: bool = False


class StandIn:
    """
    Answers on *listener* from `open` to `close`, driven by *selector*'s loop.

    Whoever selects calls each key's data. `tend` is due once a second or so.
    """

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        self._listener = listener
        self._selector = selector
        self._visitors: dict[_Visitor, None] = {}  # in the order they came
        self.is_open = False  # for connections that come
        self.reason = ""

    def open(self) -> None:
        """Take connections; `reason` is what they are told."""
        if not self.is_open:
            self.is_open = True
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Take no more; those there are get their answer."""
        if self.is_open:
            self.is_open = False
            self._selector.unregister(self._listener)

    def tend(self) -> None:
        """Close what has taken too long."""
        now_s = time.monotonic()
        for visitor in tuple(self._visitors):
            if visitor.until_s <= now_s:
                self._drop(visitor)

    def drop_all(self) -> None:
        """Close every connection."""
        for visitor in tuple(self._visitors):
            self._drop(visitor)

    def _accept(self) -> None:
        try:
            opened, _ = self._listener.accept()
        except OSError:  # the worker was faster, or the client is gone
            return
        if len(self._visitors) >= _VISITORS:
            self._drop(next(iter(self._visitors)))
        opened.setblocking(False)
        visitor = _Visitor(opened, time.monotonic() + _HEAD_WAIT_S)
        self._visitors[visitor] = None
        read = partial(self._read, visitor)
        self._selector.register(opened, selectors.EVENT_READ, read)

    def _read(self, visitor: _Visitor) -> None:
        if visitor not in self._visitors:  # dropped in this very turn
            return
        try:
            heard = visitor.socket.recv(_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._drop(visitor)
        elif not visitor.answered:
            visitor.head += heard
            if b"\r\n\r\n" in visitor.head or len(visitor.head) >= _HEAD_BYTES:
                self._answer(visitor)

    def _answer(self, visitor: _Visitor) -> None:
        answer = render(bytes(visitor.head), self.reason)
        visitor.answered = True
        visitor.head.clear()
        visitor.until_s = time.monotonic() + _LINGER_S
        with suppress(OSError):  # it left: then the next read says so
            visitor.socket.send(answer)  # whole: its buffer is empty
            visitor.socket.shutdown(socket.SHUT_WR)

    def _drop(self, visitor: _Visitor) -> None:
        del self._visitors[visitor]
        self._selector.unregister(visitor.socket)
        visitor.socket.close()


def render(head: bytes, reason: str) -> bytes:
    """Return the answer to a request with this *head* (its first line is looked at)."""
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, body = 503, _error(reason)
    if path == b"/healthz" and method in (b"GET", b"HEAD"):
        status, body = 200, {"status": "ok"}
    elif path == b"/readyz":
        body = {"status": "unavailable", "reasons": [reason]}
    text = json.dumps(body, separators=(",", ":")).encode()
    lines = [
        f"HTTP/1.1 {status} {_STATUS[status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(text)}",
        "Connection: close",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Cross-Origin-Resource-Policy: same-origin",
        *([f"Retry-After: {RETRY_AFTER_S}"] if status == 503 else []),
    ]
    written = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return written if method == b"HEAD" else written + text


def _error(reason: str) -> dict[str, object]:
    message = f"{reason}; ask again in {RETRY_AFTER_S} s"
    error = {"message": message, "type": "server_error", "param": None, "code": CODE}
    return {"error": error}
