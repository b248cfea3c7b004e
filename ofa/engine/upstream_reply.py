"""
One answer of an upstream, from asking to the end, with what may be tried again.

Asks the servers it is given, in their order, as long as not one byte of an answer has
come; after that byte there is one server, and no second try.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import httpx

from ..chat import Chat, Event, Waiting
from ..errors import Cancelled, NotReady, OfaError
from . import upstream_wire as wire
from .text_calls import offered
from .upstream_events import Reader
from .upstream_faults import (
    DEAD,
    LONGEST_WAIT_S,
    RETRIED,
    TRIES,
    TryAgain,
    foreign,
    pause_s,
    refusal,
    retry_after_s,
)
from .upstream_lines import Line
from .upstream_server import Server

log = logging.getLogger("ofa.upstream")

# After "[DONE]" a server ends the response at once; if it does not, its connection is
# not worth the wait.
_DRAIN_S = 0.25


class UpstreamReply:
    """
    The answer to *chat* of the first of *servers* that gives one.

    Where tools are in force `Failed` may be among its events: see `Careful`.
    """

    def __init__(self, chat: Chat, servers: Sequence[Server]) -> None:
        self._chat = chat
        self._servers = servers
        self._gone = threading.Event()
        self._lock = threading.Lock()
        self._line: Line | None = None

    @property
    def patient(self) -> bool:
        """No: it waits for a server's bytes."""
        return False

    @property
    def told(self) -> Mapping[str, str]:
        """Nothing beside the answer."""
        return {}

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self._events()
        except OfaError as exc:
            if self._gone.is_set():
                raise Cancelled("the reader left") from None
            if exc.status >= 500:
                log.warning("the upstream failed: %s", type(exc).__name__)
            raise

    def close(self) -> None:
        """Cut the connection under the reader, wherever it waits."""
        self._gone.set()
        with self._lock:
            if self._line is not None:
                self._line.cut()

    def _events(self) -> Iterator[Event]:
        for attempt in range(1, TRIES + 1):
            server = self._servers[(attempt - 1) % len(self._servers)]
            try:
                yield from self._ask(server)
                return
            except TryAgain as again:
                log.info("upstream %s: %s", server.base, type(again.error).__name__)
                wait_s = self._pause_s(attempt, again)
            if self._gone.wait(wait_s):
                raise Cancelled("the reader left")

    def _pause_s(self, attempt: int, again: TryAgain) -> float:
        """Return how long to wait for the next try, or raise if there is none."""
        if attempt == TRIES:
            raise again.error from None
        if attempt < len(self._servers):
            return 0.0  # another one is asked
        wait_s = pause_s(attempt) if again.wait_s is None else again.wait_s
        if wait_s > LONGEST_WAIT_S:
            raise again.error from None
        return wait_s

    def _ask(self, server: Server) -> Iterator[Event]:
        chat = self._chat
        top, fails = chat.logprobs or 0, bool(offered(chat))
        reader = Reader(choices=chat.choices, top=top, fails=fails, key=server.key)
        with (
            _let_in(server),
            server.lines.lend() as line,
            self._holding(line),
            closing(self._answer(server, line)) as response,
        ):
            try:
                pieces = response.iter_bytes()
                yield from _noted(_read(response, pieces, reader), server)
                with server.lines.hurry(line, _DRAIN_S):
                    _drain(pieces, line)
            except httpx.HTTPError as exc:
                if not self._gone.is_set():
                    server.failed()
                raise foreign(exc) from None
        yield from reader.end()  # the line is free for the next by now
        server.breaker.worked()

    @contextmanager
    def _holding(self, line: Line) -> Iterator[None]:
        """Let `close` cut *line*, for as long as it is ours."""
        with self._lock:
            self._line = line
        try:
            if self._gone.is_set():
                raise Cancelled("the reader left")
            yield
        finally:
            with self._lock:
                self._line = None

    def _answer(self, server: Server, line: Line) -> httpx.Response:
        """Return an answer that has begun; raises for every other outcome."""
        response = self._send(server, line)
        if response.status_code == httpx.codes.OK:
            return response
        with closing(response):
            error = refusal(response, server.key)
            if response.status_code not in RETRIED:
                if response.status_code == httpx.codes.NOT_FOUND:
                    server.look_again()
                raise error
            wait_s = retry_after_s(response)
            server.rest(wait_s)
            raise TryAgain(error, wait_s)

    def _send(self, server: Server, line: Line) -> httpx.Response:
        """Return whatever the server answers, and tell its breaker."""
        try:
            response = self._post(server, line)
            if response.status_code in DEAD:
                server.failed()
            elif response.status_code != httpx.codes.OK:
                server.breaker.worked()  # else that is seen by what follows
            return response
        except httpx.HTTPError as exc:
            if self._gone.is_set():
                raise Cancelled("the reader left") from None
            server.failed()
            if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout):
                raise TryAgain(foreign(exc)) from None
            raise foreign(exc) from None

    def _post(self, server: Server, line: Line) -> httpx.Response:
        sent, gone = server.body_for(self._chat), self._gone.is_set
        try:
            return line.send(server.url, sent, gone)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            # A kept connection that the server closed in the very moment in which we
            # wrote to it: nobody has read the request, and no byte came.
            if line.fresh or gone():
                raise
            return line.send(server.url, sent, gone)


@contextmanager
def _let_in(server: Server) -> Iterator[None]:
    """Hold what *server*'s breaker gives, be it the trial, until it is clear."""
    try:
        trial = server.breaker.enter()
    except NotReady as refused:  # it opened since the server was chosen
        raise TryAgain(refused, math.inf) from None
    try:
        yield
    finally:
        server.breaker.leave(trial=trial)


def _noted(events: Iterator[Event], server: Server) -> Iterator[Event]:
    """Yield *events*; the first that says something tells that *server* answers.

    Headers tell nothing: some servers send them, and then hang.
    """
    begun = False
    for event in events:
        if not begun and not isinstance(event, Waiting):
            begun = True
            server.breaker.begun()
        yield event


def _read(
    response: httpx.Response, pieces: Iterable[bytes], reader: Reader
) -> Iterator[Event]:
    if response.headers.get("content-type", "").startswith("application/json"):
        yield from reader.read(wire.whole(pieces))
    else:
        for frame in wire.frames(pieces):
            yield from reader.read(frame)


def _drain(pieces: Iterable[bytes], line: Line) -> None:
    """Read what is left of a response, so that its connection can be used again."""
    try:
        for _ in pieces:
            pass
    except httpx.HTTPError:
        line.cut()  # the answer is complete all the same
