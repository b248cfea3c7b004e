"""
An engine that forwards to another server: vLLM, Ollama, llama-server, LM Studio, exo.

Knows one OpenAI-compatible server over httpx: its model, its limits, whether it is
there. A reply owns its connection, so that it can be cut at any time by closing the
socket under the reader: a pooled connection that waits for headers can't be.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx

from ..chat import Chat, Event
from ..errors import (
    Cancelled,
    ConfigError,
    EngineError,
    EngineTimeout,
    NotReady,
    OfaError,
)
from . import upstream_wire as wire
from .base import Limits, Status, refuse_unable

log = logging.getLogger("ofa.upstream")

CONNECT_S = 5.0
PROBE_S = 5.0
PROBE_EVERY_S = 30.0

# Where the upstream does not tell: what most local servers are started with.
DEFAULT_CONTEXT_TOKENS = 32768
# vLLM, then llama-server, LM Studio and ofa itself.
_CONTEXT_NAMES = ("max_model_len", "context_window", "max_context_length")

TRIES = 3  # in all; only while not one byte has come
_RETRIED = (429, 502, 503)
_RETRY_S = 0.5  # doubled each time, with jitter; an upstream's own Retry-After counts
_LONGEST_RETRY_S = 10.0

# After so many failures in a row nothing is sent for a while: a dead upstream should
# cost its callers milliseconds, not a connection time-out each.
_OPENS_AFTER, _OPEN_S = 3, 10.0


class UpstreamRefused(EngineError):
    """The upstream answered with an error status, which the client gets as well."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        if status < 500:
            self.kind, self.code = "invalid_request_error", "upstream_refused"


class UpstreamEngine:
    """
    Forward chats to the server at *url*, as *model* or the first that it lists.

    *silence_s* is the longest time without a byte, a long prefill's; there is no limit
    on the whole answer. *key* goes to that server only and is never logged.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        model: str = "",
        context_tokens: int = 0,
        output_tokens: int = 4096,
        silence_s: float = 600.0,
    ) -> None:
        self._base = _base_url(url)
        self._named = model
        self._context_tokens = context_tokens
        self._output_tokens = output_tokens
        headers = {"User-Agent": "ofa"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(silence_s, connect=CONNECT_S, pool=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
            # A proxy from the environment must not see what stays on this machine.
            trust_env=not _is_loopback(self._base),
        )
        self._local = self._base.host != "api.openai.com"
        self._breaker = _Breaker()
        self._served: Mapping[str, Any] = {}
        self._problem = "the upstream has not been asked yet"
        self._stop = threading.Event()
        self._probed = threading.Event()
        self._prober = threading.Thread(
            target=self._keep_probing, name="ofa-upstream", daemon=True
        )
        self._prober.start()

    def reply(self, chat: Chat) -> UpstreamReply:
        """Return the reply of the upstream; `NotReady` while it is known to be down."""
        refuse_unable(chat, self.limits())
        self._breaker.check()
        self._probed.wait(PROBE_S)
        model = self._named or str(self._served.get("id") or "")
        if not model:
            raise NotReady(
                f"no model is known of the upstream ({self._problem}); name one with "
                "[engine] upstream_model"
            )
        body = wire.body(chat, model, local=self._local)
        return UpstreamReply(self._client, self._base, body, self._breaker)

    def limits(self) -> Limits:
        """Return what the upstream says of itself, else what was configured."""
        sizes = [self._served.get(name) for name in _CONTEXT_NAMES]
        meta = self._served.get("meta")
        sizes.append(meta.get("n_ctx") if isinstance(meta, dict) else None)
        native = next((n for n in sizes if isinstance(n, int) and n > 0), 0)
        context = self._context_tokens or native or DEFAULT_CONTEXT_TOKENS
        able = self._served.get("capabilities")
        vision = isinstance(able, list) and bool(
            {"image", "vision"} & set(map(str, able))
        )
        model = self._named or self._served.get("id") or "its model"
        return Limits(
            context_tokens=context,
            output_tokens=min(self._output_tokens, context),
            tools=True,
            vision=vision,
            description=f"{model} at {self._base}",
        )

    def status(self) -> Status:
        """Return whether the last look at the upstream found it well."""
        return Status(not self._problem, self._problem)

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Do nothing: what the upstream keeps ready is its own matter."""

    def count_tokens(self, text: str) -> int:
        """Return an estimate on the high side: the tokenizer is the upstream's."""
        return len(text.encode("utf-8", "replace")) // 3 + 1

    def close(self) -> None:
        """Stop looking after the upstream; running replies are cut by their readers."""
        self._stop.set()
        self._client.close()
        self._prober.join(PROBE_S)

    def _keep_probing(self) -> None:
        while not self._stop.is_set():
            self._problem = self._probe()
            self._probed.set()
            self._stop.wait(PROBE_EVERY_S if not self._problem else _OPEN_S / 5)

    def _probe(self) -> str:
        """Ask which models there are; return what is wrong, empty if nothing."""
        try:
            answer = self._client.get(f"{self._base}/models", timeout=PROBE_S)
            if answer.status_code in (401, 403):
                return "the upstream refuses its key ([engine] upstream_key_file)"
            if answer.status_code != 200:
                # Some serve chat and no list: then it must be named, and that is all.
                problem = f"its model list answers {answer.status_code}"
                return "" if self._named else problem
            listed = answer.json()["data"]
        except (httpx.HTTPError, RuntimeError) as exc:  # RuntimeError: we are closing
            return f"the upstream can't be reached ({type(exc).__name__})"
        except (ValueError, KeyError, TypeError):
            return "the upstream's model list can't be read"
        rows = [row for row in listed if isinstance(row, dict)]
        wanted = [r for r in rows if not self._named or r.get("id") == self._named]
        if not wanted and not self._named:
            return "the upstream lists no model"
        self._served = wanted[0] if wanted else {}
        return "" if wanted else f"the upstream does not list {self._named}"


class UpstreamReply:
    """One answer of the upstream, on a connection of its own."""

    def __init__(
        self,
        client: httpx.Client,
        base: httpx.URL,
        body: Mapping[str, Any],
        breaker: _Breaker,
    ) -> None:
        self._client = client
        self._url = f"{base}/chat/completions"
        self._body = body
        self._breaker = breaker
        self._gone = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

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
            if self._socket is not None:
                with suppress(OSError):  # closed already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _events(self) -> Iterator[Event]:
        for attempt in range(1, TRIES + 1):
            wait_s = yield from self._try(attempt)
            if wait_s is None:
                return
            if self._gone.wait(wait_s):
                raise Cancelled("the reader left")

    def _try(self, attempt: int) -> Generator[Event, None, float | None]:
        """Yield the answer and return None, or return how long to wait for the next."""
        last = attempt == TRIES
        try:
            with self._open() as response:
                if response.status_code == httpx.codes.OK:
                    self._breaker.worked()
                    yield from wire.events(_frames(response))
                    return None
                if last or response.status_code not in _RETRIED:
                    raise _refusal(response)
                return _wait_s(response, attempt)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            self._breaker.failed()
            if last:
                raise _foreign(exc) from None
            return _wait_s(None, attempt)
        except httpx.HTTPError as exc:
            self._breaker.failed()
            raise _foreign(exc) from None

    def _open(self) -> Any:  # noqa: ANN401 - httpx's context manager has no public type
        return self._client.stream(
            "POST", self._url, json=self._body, extensions={"trace": self._trace}
        )

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep the socket of the connection, as soon as there is one."""
        if event not in (
            "connection.connect_tcp.complete",
            "connection.start_tls.complete",
        ):
            return
        made = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._socket = made
        if self._gone.is_set():
            self.close()


def _frames(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    if response.headers.get("content-type", "").startswith("application/json"):
        # A server that does not stream: its whole answer is one frame.
        try:
            whole = json.loads(response.read())
        except (ValueError, RecursionError):
            whole = None
        if not isinstance(whole, dict):
            raise EngineError("the upstream's answer is not a JSON object")
        yield whole
        return
    yield from wire.frames(response.iter_raw())


def _refusal(response: httpx.Response) -> EngineError:
    """Return what to tell the client of an error answer."""
    status = response.status_code
    try:
        text = wire.error_text(json.loads(response.read()))
    except (ValueError, RecursionError, httpx.HTTPError):
        text = "no message"
    if status in (401, 403):
        # Not the client's fault: its own key was good here.
        return EngineError("the upstream refuses this server's key; tell its operator")
    if status in (400, 404, 413, 415, 422, 429):
        return UpstreamRefused(status, f"the upstream refused: {text}")
    return EngineError(f"the upstream failed with status {status}: {text}")


def _foreign(exc: httpx.HTTPError) -> EngineError:
    """Map what httpx raises; its message may hold a URL with a password, so not it."""
    if isinstance(exc, httpx.ConnectTimeout):
        return EngineTimeout("the upstream does not answer (connecting timed out)")
    if isinstance(exc, httpx.TimeoutException):
        return EngineTimeout("the upstream was silent for too long")
    if isinstance(exc, httpx.ConnectError):
        return EngineError("the upstream can't be reached")
    return EngineError(f"the connection to the upstream broke ({type(exc).__name__})")


def _wait_s(response: httpx.Response | None, attempt: int) -> float:
    """Return how long to wait before the next try: as told, else longer each time."""
    told = response.headers.get("retry-after", "") if response is not None else ""
    if told.isdigit():
        return min(float(told), _LONGEST_RETRY_S)
    return _RETRY_S * (1 << (attempt - 1)) * random.uniform(0.5, 1.5)


class _Breaker:
    """Counts failures in a row, and says when to leave a dead upstream alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until_s = 0.0

    def check(self) -> None:
        """Raise `NotReady` while it is open."""
        left_s = self._open_until_s - self._clock()
        if left_s > 0:
            raise NotReady(
                f"the upstream failed {_OPENS_AFTER} times in a row; it is asked again "
                f"in {left_s:.0f} s"
            )

    def worked(self) -> None:
        """Forget the failures."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Count one; after enough of them, open."""
        with self._lock:
            self._failures += 1
            if self._failures >= _OPENS_AFTER:
                self._failures = 0
                self._open_until_s = self._clock() + _OPEN_S


def _base_url(url: str) -> httpx.URL:
    """Return *url* up to ``/v1``, however much of a path it had."""
    base = url.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL as exc:
        raise ConfigError(f"engine.upstream_url: {exc}") from exc
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError("engine.upstream_url: expected http://HOST:PORT/v1")
    return parsed if parsed.path not in ("", "/") else parsed.copy_with(path="/v1")


def _is_loopback(url: httpx.URL) -> bool:
    if url.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(url.host).is_loopback
    except ValueError:
        return False
