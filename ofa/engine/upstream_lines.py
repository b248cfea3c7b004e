"""
Connections to one upstream: a bounded number, kept for a while between answers.

Each is an httpx client of its own that holds one connection, so that its socket is
known and can be shut under a reader who waits for headers. In a client's own pool it
is not: httpcore tells the socket of a connection when it is made, and nothing that
leads to it when one is used again.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from ..errors import Overloaded

log = logging.getLogger("ofa.upstream")

# Servers close what is idle after 5 s (uvicorn, llama-server's cpp-httplib): to let go
# a little earlier spares the race between their closing and our next request.
KEEP_S = 4.0
MOST_IDLE = 16
# As many as [server] running can be; the line that waits is the queue's.
MOST_LINES = 256

_WATCH_S = 0.05  # how late the cutting of a line in a hurry may come

# A list of models is a matter of milliseconds.
_PROBE_TIMES = httpx.Timeout(5.0, connect=2.0)

# A connection attempt can't be cut: httpcore tells of the socket when it is connected.
# So attempts are short, and there are more of them; the kernel would send a lost SYN
# again after a second, we do so a little earlier.
CONNECT_S = 5.0
_ATTEMPT_S = 0.8


class Line:
    """One connection, used for one answer after another, that anybody may cut."""

    def __init__(self, client: httpx.Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cut = False
        self.fresh = True  # the connection was made for the request that runs
        self.idle_since_s = 0.0

    def send(
        self, url: str, body: Mapping[str, Any], gone: Callable[[], bool]
    ) -> httpx.Response:
        """
        Post *body* and return the answer when its headers are there.

        Between attempts to connect it looks whether the reader is *gone*.
        """
        until_s = self._clock() + CONNECT_S
        while True:
            self.fresh = False
            request = self._client.build_request(
                "POST", url, json=body, extensions={"trace": self._trace}
            )
            try:
                return self._client.send(request, stream=True)
            except httpx.ConnectTimeout:
                if gone() or self._clock() >= until_s:
                    raise

    def get(self, url: httpx.URL) -> httpx.Response:
        """Return the answer to a small question about the server itself."""
        return self._client.get(
            url, timeout=_PROBE_TIMES, extensions={"trace": self._trace}
        )

    def cut(self) -> None:
        """Shut the connection under its reader; for good."""
        with self._lock:
            self._cut = True
            if self._socket is not None:
                with suppress(OSError):  # closed already
                    # Not SSLSocket's own: that takes the TLS layer from the reader.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @property
    def is_cut(self) -> bool:
        """Whether it is of no more use."""
        return self._cut

    def close(self) -> None:
        """Close the connection, which nobody reads any more."""
        self._client.close()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        # "connection.…", and "proxy.…" where a proxy is in between.
        if event.endswith(".connect_tcp.started"):
            self.fresh = True
        elif event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self._cut:
                self.cut()


class Lines:
    """The lines to one upstream."""

    def __init__(
        self,
        make_client: Callable[[], httpx.Client],
        *,
        most: int = MOST_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_client = make_client
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Line] = []
        self._lent = 0
        self._open = True
        self._hurried: dict[Line, float] = {}
        self._watched = threading.Event()  # there is a line to be cut in time
        self._watcher: threading.Thread | None = None

    @property
    def lent(self) -> int:
        """How many are in use."""
        return self._lent

    @contextmanager
    def lend(self) -> Iterator[Line]:
        """Lend a line that no one else uses. Raises `Overloaded` at the limit."""
        self.prune()
        with self._lock:
            if self._lent >= self._most:
                raise Overloaded(
                    f"all {self._most} connections to the upstream are in use"
                )
            self._lent += 1
            line = self._idle.pop() if self._idle else None
        try:
            line = line or Line(self._make_client(), self._clock)
            yield line
        finally:
            self._take_back(line)

    @contextmanager
    def hurry(self, line: Line, limit_s: float) -> Iterator[None]:
        """Cut *line* if what is done meanwhile takes longer than *limit_s*."""
        with self._lock:
            self._hurried[line] = self._clock() + limit_s
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="ofa-upstream-lines", daemon=True
                )
                self._watcher.start()
        self._watched.set()
        try:
            yield
        finally:
            with self._lock:
                self._hurried.pop(line, None)

    def prune(self) -> None:
        """Close what has been idle for too long."""
        old_s = self._clock() - KEEP_S
        with self._lock:
            old = [line for line in self._idle if line.idle_since_s <= old_s]
            self._idle = [line for line in self._idle if line not in old]
        for line in old:
            line.close()

    def close(self) -> None:
        """Close all that are idle now, and the others when they come back."""
        with self._lock:
            self._open = False
            idle, self._idle = self._idle, []
        self._watched.set()
        for line in idle:
            line.close()

    def _watch(self) -> None:
        # One thread for all: a timer each would cost every answer a thread's start.
        while self._watched.wait() and self._open:
            with self._lock:
                late = [
                    ln for ln, end_s in self._hurried.items() if end_s <= self._clock()
                ]
                if not self._hurried:
                    self._watched.clear()
            for line in late:
                line.cut()
            time.sleep(_WATCH_S)

    def _take_back(self, line: Line | None) -> None:
        with self._lock:
            self._lent -= 1
            if line is None:
                return
            line.idle_since_s = self._clock()
            if self._open and not line.is_cut and len(self._idle) < MOST_IDLE:
                self._idle.append(line)
                return
        line.close()


def client_maker(
    base: httpx.URL, *, key: str, silence_s: float
) -> Callable[[], httpx.Client]:
    """
    Return a maker of clients for the server at *base*, each with one connection.

    *key* is all that they tell of anybody: no cookie is kept, no header passed on.
    """
    headers = {"User-Agent": "ofa", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    tls = httpx.create_ssl_context()  # reads a file of certificates: once
    trust_env = not _stays_here(base.host) and _proxies_are_sound(tls)

    def make() -> httpx.Client:
        return httpx.Client(
            headers=headers,
            verify=tls,
            timeout=httpx.Timeout(silence_s, connect=_ATTEMPT_S, pool=CONNECT_S),
            limits=httpx.Limits(
                max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEP_S
            ),
            follow_redirects=False,
            trust_env=trust_env,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    return make


def _proxies_are_sound(tls: Any) -> bool:  # noqa: ANN401 - an SSLContext
    """Return whether httpx can read the environment's proxies; NO_PROXY may be odd."""
    try:
        httpx.Client(verify=tls).close()
    except (httpx.InvalidURL, ValueError):
        log.warning("the proxies of the environment can't be read; none is used")
        return False
    return True


def _stays_here(host: str) -> bool:
    """
    Return whether *host* is on this machine or this site's own network.

    A proxy of the environment leads outside: it can't reach what stays here, and
    should not see it.
    """
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host
