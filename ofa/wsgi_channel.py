"""
One connection of waitress, with deadlines, JSON errors and a polite end.

waitress looks only at silence, so a client that drips bytes or never reads keeps its
connection for ever; and it closes on a client that is still sending, which then sees a
reset instead of the reason. Times are monotonic: the wall clock may jump.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, WSGITask

from .errors import OfaError
from .protocols import openai_chat
from .protocols.frames import encode
from .web_guard import log_line, raised_at, request_id
from .wsgi_parser import MAX_HEAD_BYTES, Gate, Refused, StrictParser

DISCARD_BYTES = 4 << 20  # read from a refused client before it is cut off

OnRefused = Callable[[OfaError, dict[str, str]], None]

_HEADERS = [
    ("Content-Type", "application/json"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


class OneLine(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages can't be broken over lines by what clients send."""

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Escape *msg*, which waitress has formatted, and fold a traceback into it."""
        if kwargs.pop("exc_info", None):
            caught = sys.exc_info()[1]
            msg = f"{raised_at(caught)}: {msg}" if caught else msg
        return log_line(str(msg)), kwargs


class JsonErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """Sends the refusal of a request that never reached the app."""

    def execute(self) -> None:
        """Write the error in the form that the app's own errors have."""
        problem = _as_ours(self.request.error)
        given = self.request.given_headers()
        given["x-request-id"] = request_id(given.get("x-request-id", ""))
        body = encode(openai_chat.error(problem)).encode()
        self.status = f"{problem.status} {HTTPStatus(problem.status).phrase}"
        self.response_headers.extend(_HEADERS)
        self.response_headers.append(("x-request-id", given["x-request-id"]))
        if problem.status == 401:
            self.response_headers.append(("WWW-Authenticate", "Bearer"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.channel.note_refusal(problem, given)
        self.write(b"" if self.request.command == "HEAD" else body)


class OneSendTask(WSGITask):  # type: ignore[misc]  # waitress has no types
    """Sends the head of an answer together with the first bytes behind it."""

    wrote_header: bool

    def write(self, data: bytes) -> None:
        """Take bytes of the body."""
        if data and self.complete and self.has_body and not self.wrote_header:
            self.channel.hold(self.build_response_header())
            self.wrote_header = True
        super().write(data)


class StrictChannel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """One connection; `tend` is called every second by the server's loop."""

    task_class = OneSendTask
    error_task_class = JsonErrorTask
    logger = OneLine(logging.getLogger("ofa.http"))

    def __init__(self, server: Any, *args: Any, **kw: Any) -> None:  # noqa: ANN401 - waitress's
        self._gate: Gate = server.gate
        self._patience = self._gate.patience
        self._on_refused: OnRefused = server.on_refused
        self.request: StrictParser | None = None  # the one that is arriving
        self._refused = False
        self._lingers_until_s: float | None = None
        self._discarded = 0
        self._held = b""  # goes out before the next bytes, together with them
        self._touched_s = self._gate.clock()
        self.parser_class = partial(StrictParser, gate=self._gate)
        super().__init__(server, *args, **kw)

    def note_refusal(self, problem: OfaError, headers: dict[str, str]) -> None:
        """Remember that the client may still be sending, and tell the log."""
        self._refused = True
        self._on_refused(problem, headers)

    def is_busy(self) -> bool:
        """Tell whether a request or its answer is still under way."""
        return bool(
            self.requests or self.total_outbufs_len or self._lingers_until_s is not None
        )

    def received(self, data: bytes) -> bool:
        """Take bytes from the client."""
        self._touched_s = self._gate.clock()
        return bool(super().received(data))

    def hold(self, data: bytes) -> None:
        """Keep *data* for the next `write_soon`."""
        self._held = data

    def write_soon(self, data: Any) -> int:  # noqa: ANN401 - bytes, or waitress's buffers
        """
        Take bytes for the client, from a worker's thread.

        They are sent at once if nothing waits before them, and what the socket does
        not take is left to waitress, whose buffer costs more than the send itself.
        """
        if isinstance(data, bytes):
            data, self._held = self._held + data, b""
        with self.outbuf_lock:
            if not self.total_outbufs_len:  # the wait for the reader starts now
                self._touched_s = self._gate.clock()
                if isinstance(data, bytes) and self.connected:
                    data = data[self._send_now(data) :]
            return int(super().write_soon(data))

    def _send_now(self, data: bytes) -> int:
        try:
            return int(self.send(data, do_close=False))
        except OSError:  # found again by the buffer's flush, which knows what to do
            return 0

    def readable(self) -> bool:
        """Tell the loop whether to wait for bytes."""
        return self._lingers_until_s is not None or bool(super().readable())

    def writable(self) -> bool:
        """Tell the loop whether to wait for room to send."""
        return self._lingers_until_s is None and bool(super().writable())

    def handle_read(self) -> None:
        """Read what the client sends; after a refusal only to throw it away."""
        if self._lingers_until_s is None:
            super().handle_read()
            return
        # An OSError closes the channel too: the loop sees to that.
        self._discarded += len(self.recv(self.adj.recv_bytes))
        if self._discarded > DISCARD_BYTES:
            self.handle_close()

    def handle_write(self) -> None:
        """Send what waits; after a refusal leave the client time to read it."""
        if self._refused and self.close_when_flushed:
            self._flush_exception(self._flush_some)
            if not (self.total_outbufs_len or self.will_close):
                self._linger()
                return
        super().handle_write()

    def tend(self, *, crowded: bool) -> None:
        """Close or refuse what has taken too long. Called on the loop's thread only."""
        quiet_s = self._gate.clock() - self._touched_s
        idle_s = self._patience.crowded_idle_s if crowded else self._patience.idle_s
        if self._lingers_until_s is not None:
            if self._gate.clock() >= self._lingers_until_s:
                self.handle_close()
        elif self.total_outbufs_len:
            if quiet_s > self._patience.stall_s:
                self.handle_close()
        elif self.requests:
            return
        elif self.request is None:
            if quiet_s > idle_s:
                self.handle_close()
        elif self.request.is_late():
            self._refuse_late()

    def _flush_some(self, do_close: bool = True) -> bool:
        sent = bool(super()._flush_some(do_close=do_close))
        if sent:
            self._touched_s = self._gate.clock()
        return sent

    def _linger(self) -> None:
        """Stop sending, go on reading: closing now would reset what wasn't read yet."""
        if not self.connected:  # it left while the refusal was sent
            return
        self.close_when_flushed = False
        self._lingers_until_s = self._gate.clock() + self._patience.linger_s
        with suppress(OSError):  # it left just now: the next read tells
            self.socket.shutdown(socket.SHUT_WR)

    def _refuse_late(self) -> None:
        with self.requests_lock:
            request = self.request
            if request is None or self.requests:  # pragma: no cover - a worker's race
                return
            request.refuse(
                Refused(408, "request_timeout", "the request took too long to arrive")
            )
            self.request = None
            self.requests.append(request)
            self.server.add_task(self)


def _as_ours(error: Any) -> OfaError:  # noqa: ANN401 - ours or one of waitress's
    """Return *error* as one of ours; waitress's own texts quote the client's bytes."""
    if isinstance(error, OfaError):
        return error
    if error.code == 431:
        message = f"the headers are over {MAX_HEAD_BYTES} bytes"
        return Refused(431, "headers_too_large", message)
    if error.code == 400:
        return Refused(400, "invalid_http", "the request is not valid HTTP/1.1")
    return OfaError("internal error; the server's log says where")
