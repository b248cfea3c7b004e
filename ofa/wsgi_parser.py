"""
A stricter request parser for waitress: what two servers could read differently, and
what nobody with a key sends, is refused as soon as its bytes are in.

waitress 3.0 lets through a body framed twice, HTTP/1.0 with chunks, folded headers,
missing and doubled Hosts; it stores a stranger's body on disk before the app can ask
for the key. `find_problem` is the whole of the rules for a head, as a pure function.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

from waitress.adjustments import Adjustments
from waitress.parser import HTTPRequestParser, ParsingError

from .errors import BadRequest, OfaError, RequestTooLarge, Unauthorized

MAX_HEAD_BYTES = 16 << 10
MAX_HEADERS = 100

_CHUNK_LINE_BYTES = 1024  # a chunk's size and extensions
_TRAILER_BYTES = 8 << 10
_CHUNK_OVERHEAD = 2  # times the body's own size; real clients stay under 1.01

_FIRST_LINE = re.compile(
    rb"(?P<method>[A-Z!#$%&'*+.^_`|~0-9-]{1,32}) "
    rb"(?P<target>[\x21-\x7e]+) HTTP/1\.(?P<minor>[01])"
)
_METHOD_START = re.compile(rb"[A-Z!#$%&'*+.^_`|~0-9-]{1,32}(?: |$)")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_LENGTH = re.compile(rb"[0-9]{1,15}")
# What waitress parses in place of a head that is too long, before it refuses that.
_STAND_IN = b"GET / HTTP/1.0\r\n"
# Where a second one could mean something else to another reader.
_ONCE = (
    b"host",
    b"content-length",
    b"content-type",
    b"content-encoding",
    b"expect",
    b"origin",
)


class Refused(BadRequest):
    """A request that never reaches the app, with a status of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.status = status


@dataclass(frozen=True)
class Patience:
    """How long a client may take for what, in seconds."""

    header_s: float = 10.0  # from the first byte of a request to the end of its head
    body_s: float = 30.0  # for the body, and a second more a `body_bytes_per_s`
    body_bytes_per_s: int = 256 << 10
    idle_s: float = 60.0  # a connection with no request under way
    crowded_idle_s: float = 5.0  # the same when most places are taken
    stall_s: float = 60.0  # with an answer that isn't being read
    linger_s: float = 2.0  # after a refusal, to finish sending and read why


@dataclass(frozen=True)
class Gate:
    """Who gets in with how much, and how patiently the door is held."""

    check_key: Callable[[Mapping[str, str]], str]  # raises `Unauthorized`
    max_body_bytes: int
    patience: Patience = Patience()
    clock: Callable[[], float] = time.monotonic


class StrictParser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """
    One request of a connection, judged in three steps: first line, head, body.

    A body is not read before the key was good, and never with ``100 Continue``.
    """

    command = path = ""  # waitress's tasks look at them, also if no head was parsed

    def __init__(self, adj: Adjustments, *, gate: Gate) -> None:
        super().__init__(adj)
        self._gate = gate
        self.error: OfaError | None = None  # before a body is taken, and while it comes
        self._problem: OfaError | None = None
        self._started_s = gate.clock()
        self._body_since_s: float | None = None

    def received(self, data: bytes) -> int:
        """Take *data*; return how many of its bytes belong to this request."""
        if not self.headers_finished:
            problem = _early_problem((self.header_plus + data).lstrip(b"\r\n"))
            if problem:
                self.refuse(problem)
                return len(data)
        consumed: int = super().received(data)
        if self._problem is not None:
            self.error = self._problem
        elif self.error is None and self.headers_finished:
            self._judge()
        if self.error is not None:
            # What follows is part of the refused request, as far as anyone can tell.
            self.expect_continue, self.completed = False, True
            return len(data)
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Check the whole head before waitress reads it."""
        if header_plus != _STAND_IN:
            self._problem = find_problem(header_plus)
        if self._problem is not None:
            raise ParsingError("refused")
        super().parse_header(header_plus)

    def refuse(self, problem: OfaError) -> None:
        """End the request with an error, whatever has arrived of it."""
        self.error, self.completed, self.expect_continue = problem, True, False

    def is_late(self) -> bool:
        """Tell whether the request has been arriving for longer than it may."""
        now_s = self._gate.clock()
        patience = self._gate.patience
        if self._body_since_s is None:
            return now_s > self._started_s + patience.header_s
        received: int = self.body_bytes_received
        earned_s = received / patience.body_bytes_per_s
        return now_s > self._body_since_s + patience.body_s + earned_s

    def given_headers(self) -> dict[str, str]:
        """Return the headers by their names in lower case."""
        return {
            name.lower().replace("_", "-"): value
            for name, value in self.headers.items()
        }

    def _judge(self) -> None:
        if self.body_rcv is None:
            return
        if self._body_since_s is None:
            self._body_since_s = self._gate.clock()
            self.error = self._unwelcome()
        elif self.chunked:
            self.error = self._bad_chunks()

    def _unwelcome(self) -> OfaError | None:
        """Decide on a body that is announced, before any more of it is kept."""
        if self._is_over(self.content_length):
            return self._checked() or self._too_large()
        # One that came with its head is here already: the app asks for the key.
        return None if self.completed else self._checked()

    def _checked(self) -> OfaError | None:
        try:
            self._gate.check_key(self.given_headers())
        except Unauthorized as exc:
            return exc
        return None

    def _bad_chunks(self) -> OfaError | None:
        receiver = self.body_rcv
        wire_limit = self._gate.max_body_bytes * _CHUNK_OVERHEAD + _TRAILER_BYTES
        if self._is_over(len(receiver)) or self.body_bytes_received > wire_limit:
            return self._too_large()
        if len(receiver.control_line) > _CHUNK_LINE_BYTES:
            return _bad("a chunk's first line is too long")
        if len(receiver.trailer) > _TRAILER_BYTES:
            return _bad("the trailer is too long")
        return None

    def _is_over(self, size: int) -> bool:
        return size > self._gate.max_body_bytes

    def _too_large(self) -> OfaError:
        return RequestTooLarge(f"the body is over {self._gate.max_body_bytes} bytes")


def find_problem(head: bytes) -> OfaError | None:
    """Return why a request with *head* (first line and headers) is refused, or None."""
    first, *lines = head.split(b"\r\n")
    lines = [line for line in lines if line]
    unended = head.replace(b"\r\n", b"")
    if b"\n" in unended or b"\r" in unended:
        return _bad("a line ends in a bare CR or LF")
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        return _bad("the first line is not METHOD TARGET HTTP/1.1")
    if _CONTROL.search(unquote_to_bytes(match["target"])):
        return _bad("the target has a control character")
    if len(lines) > MAX_HEADERS:
        return Refused(431, "headers_too_large", f"over {MAX_HEADERS} headers")
    if b"\r\n " in head or b"\r\n\t" in head:
        return _bad("a header is folded over two lines")
    headers = [_split(line) for line in lines]
    by_name = dict(headers)
    return (
        (_repeated(headers) if len(by_name) < len(headers) else None)
        or _bad_host(by_name.get(b"host", b""), match["target"])
        or _bad_framing(headers, is_http_10=match["minor"] == b"0")
        or _bad_expectation(by_name)
    )


def _early_problem(seen: bytes) -> OfaError | None:
    """Judge by the first bytes: TLS and other protocols never send an empty line."""
    line, end, _ = seen.partition(b"\n")
    if not end:
        line = line[:64]
        return None if not line or _METHOD_START.match(line) else _not_http()
    if not line.endswith(b"\r"):
        return _bad("a line ends in a bare CR or LF")
    return None if _FIRST_LINE.fullmatch(line[:-1]) else _not_http()


def _repeated(headers: list[tuple[bytes, bytes]]) -> OfaError | None:
    counts = Counter(name for name, _ in headers)
    for name in _ONCE:
        if counts[name] > 1:
            return _bad(f"{name.decode()} is given twice")
    return None


def _bad_host(host: bytes, target: bytes) -> OfaError | None:
    if not host:
        return _bad("the Host header is missing")
    if not target.startswith(b"/") and b"://" in target:
        try:
            authority = urlsplit(target).netloc
        except ValueError:
            return _bad("the target is no URL")
        if authority.lower() != host.lower():
            return _bad("the target and the Host header name different servers")
    return None


def _bad_framing(
    headers: list[tuple[bytes, bytes]], *, is_http_10: bool
) -> OfaError | None:
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    length = dict(headers).get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        return _bad("Content-Length is not a number")
    if not codings:
        return None
    if length is not None:
        return _bad("the body is framed twice, by length and by chunks")
    if is_http_10:
        return _bad("HTTP/1.0 has no Transfer-Encoding")
    return None if codings == [b"chunked"] else _bad_codings(b",".join(codings))


def _bad_codings(codings: bytes) -> OfaError:
    if {coding.strip(b" \t") for coding in codings.split(b",")} <= {b"chunked", b""}:
        return _bad("Transfer-Encoding must be chunked, once")
    return Refused(
        501, "unsupported_transfer_encoding", "only chunked bodies are understood"
    )


def _bad_expectation(headers: Mapping[bytes, bytes]) -> OfaError | None:
    if headers.get(b"expect", b"100-continue").lower() == b"100-continue":
        return None
    return Refused(417, "expectation_failed", "only 100-continue may be expected")


def _split(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")


def _bad(message: str) -> OfaError:
    return Refused(400, "invalid_http", message)


def _not_http() -> OfaError:
    return _bad("this is not an HTTP/1.1 request; the server speaks plain HTTP only")
