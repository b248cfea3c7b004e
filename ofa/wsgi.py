"""
The socket side: waitress, set up for a node that is shared with strangers.

Knows sockets, threads and time; nothing of routes, chats or models. It leans on
waitress's inner hooks, so the version is bounded and tests fail if one is not called.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from wsgiref.types import WSGIApplication

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ThreadedTaskDispatcher

from .auth import redacted
from .errors import OfaError
from .web_guard import log_field
from .wsgi_channel import OneLine, OnRefused, StrictChannel
from .wsgi_parser import MAX_HEAD_BYTES, Gate, Patience

__all__ = ["Gate", "Patience", "Server", "make_server"]

_access = logging.getLogger("ofa.access")

_CONNECTIONS = 1024
_SPARE_FILES = 256  # for the model, the index and logs, out of the process's limit
_CROWDED = 0.75  # of all connections, from where on idle ones are closed early
_ANSWER_BUFFER_BYTES = 1 << 20  # of one answer that isn't read as fast as it is made
_TEND_EVERY_S = 1.0
_NEVER = float("inf")


class Server:
    """
    Serves an app on bound sockets until `stop`; made by `make_server`.

    `stop_accepting` and `stop` may be called from any thread and from a signal handler.
    """

    def __init__(
        self,
        app: WSGIApplication,
        adj: Adjustments,
        *,
        gate: Gate,
        on_refused: OnRefused,
    ) -> None:
        self._clock = gate.clock
        self._connections = adj.connection_limit
        self._map: dict[int, wasyncore.dispatcher] = {}
        self._workers = ThreadedTaskDispatcher()
        self._workers.logger = OneLine(logging.getLogger("ofa.http"))
        self._workers.set_thread_count(adj.threads)
        self._listeners = [
            _listener(app, sock, adj, self._map, self._workers) for sock in adj.sockets
        ]
        for listener in self._listeners:
            listener.gate, listener.on_refused = gate, on_refused
        self._accepting = True
        self._stop_by_s = _NEVER
        self._tend_at_s = 0.0

    def run(self) -> None:
        """Serve on this thread until `stop`; then close everything, threads too."""
        try:
            while not self._is_done():
                wasyncore.loop(1.0, use_poll=True, map=self._map, count=1)
                self._close_listeners()
                self._tend()
        finally:
            self._close()

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections there are go on."""
        self._accepting = False
        self._wake()

    def stop(self, wait_s: float = 5.0) -> None:
        """Let `run` return once all answers are sent, at the latest after *wait_s*."""
        self._accepting = False
        self._stop_by_s = min(self._stop_by_s, self._clock() + wait_s)
        self._wake()

    def _wake(self) -> None:
        # The loop may have closed its pipe: then there is nobody to wake.
        with suppress(OSError):
            self._listeners[0].pull_trigger()

    def _channels(self) -> list[StrictChannel]:
        return [c for c in list(self._map.values()) if isinstance(c, StrictChannel)]

    def _is_done(self) -> bool:
        if self._stop_by_s == _NEVER:
            return False
        if self._clock() >= self._stop_by_s:
            return True
        return not any(channel.is_busy() for channel in self._channels())

    def _close_listeners(self) -> None:
        if self._accepting:
            return
        for listener in self._listeners:
            if listener.accepting:
                listener.stop_listening()

    def _tend(self) -> None:
        now_s = self._clock()
        if now_s < self._tend_at_s:
            return
        self._tend_at_s = now_s + _TEND_EVERY_S
        crowded = len(self._map) > self._connections * _CROWDED
        for channel in self._channels():
            channel.tend(crowded=crowded)

    def _close(self) -> None:
        """Cut what is left. Workers see their clients gone, and end."""
        self._accepting = False
        self._close_listeners()
        for channel in self._channels():
            channel.handle_close()
        self._workers.shutdown(timeout=5)
        wasyncore.close_all(self._map, ignore_all=True)


class _Strict:
    """What our listening sockets add to waitress's."""

    channel_class = StrictChannel
    next_channel_cleanup = _NEVER  # `Server` tends them, by a clock that can't jump
    gate: Gate
    on_refused: OnRefused

    def stop_listening(self) -> None:
        """Close the listening socket alone: channels still use the rest of it."""
        wasyncore.dispatcher.close(self)


class _TcpListener(_Strict, TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """A listening TCP socket."""


class _UnixListener(_Strict, UnixWSGIServer):  # type: ignore[misc]  # waitress has no types
    """A listening Unix socket."""


def make_server(
    app: WSGIApplication,
    sockets: Sequence[socket.socket],
    *,
    threads: int,
    gate: Gate,
    on_refused: OnRefused | None = None,
) -> Server:
    """
    Return a server for *app* on *sockets*, which are bound but need not listen yet.

    *threads* is the number of requests handled at once: each stream holds one for its
    whole life, so give it those running and waiting, and a few for short questions.
    """
    adj = Adjustments(
        sockets=list(sockets),
        threads=threads,
        connection_limit=connection_limit(_open_files()),
        asyncore_use_poll=True,
        backlog=1024,
        recv_bytes=64 << 10,
        max_request_header_size=MAX_HEAD_BYTES,
        # The parser has limits of its own, which know about the key and about chunks.
        max_request_body_size=10**16,
        inbuf_overflow=gate.max_body_bytes * 2,  # in memory: no prompt touches a disk
        outbuf_overflow=_ANSWER_BUFFER_BYTES * 4,
        outbuf_high_watermark=_ANSWER_BUFFER_BYTES,
        channel_request_lookahead=1,  # the only way to see that a client hung up
        ident="",
        log_socket_errors=False,
        expose_tracebacks=False,
        clear_untrusted_proxy_headers=True,
    )
    return Server(app, adj, gate=gate, on_refused=on_refused or _log_refusal)


def _listener(
    app: WSGIApplication,
    sock: socket.socket,
    adj: Adjustments,
    map_: dict[int, wasyncore.dispatcher],
    workers: ThreadedTaskDispatcher,
) -> _TcpListener | _UnixListener:
    is_unix = sock.family == getattr(socket, "AF_UNIX", None)
    kind = _UnixListener if is_unix else _TcpListener
    sockinfo = (sock.family, sock.type, sock.proto, sock.getsockname())
    return kind(
        app,
        map_,
        _sock=sock,
        dispatcher=workers,
        adj=adj,
        sockinfo=sockinfo,
        bind_socket=False,
    )


def connection_limit(open_files: int) -> int:
    """Return how many connections a process may hold that may open *open_files*."""
    return max(64, min(_CONNECTIONS, open_files - _SPARE_FILES))


def _open_files() -> int:
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows has no such limit
        return _CONNECTIONS + _SPARE_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    return _CONNECTIONS + _SPARE_FILES if unlimited else soft


def _log_refusal(problem: OfaError, headers: dict[str, str]) -> None:
    _access.info(
        "%s refused %d outcome=%s key=%s",
        headers["x-request-id"],
        problem.status,
        problem.code,
        log_field(redacted(headers)),
    )
