"""
The command line's own small client of a running server, on loopback mostly.

Knows the wire of chat completions; nothing of the server's insides. Proxies of the
environment are never used: they would be asked for 127.0.0.1 too, and answer 502.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from . import __version__
from .engine.base import Limits
from .errors import ConfigError, OfaError

if TYPE_CHECKING:
    import httpx

# A server that runs answers its probe at once, even under full load.
PROBE_S = 3.0
# A stream has a sign of life every 10 s, but headers may wait for a model to load.
SILENCE_S = 300.0

_DONE = "[DONE]"


class ServerUnreachable(OfaError):
    """Nobody answers there, or nobody that is an ofa server."""


@dataclass(frozen=True)
class ListedModel:
    """One line of a server's model list."""

    id: str
    title: str
    limits: Limits


class Client:
    """
    Asks the server at *base_url*, which ends in /v1; *key* may be empty.

    Every method raises `OfaError` with the server's own words where it refuses, and
    `ServerUnreachable` within *probe_s* where there is none.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        probe_s: float = PROBE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        import httpx  # late: `ofa --help` needs no HTTP

        self._url = _checked(base_url)
        self._keyed = {"Authorization": f"Bearer {key}"} if key else {}
        self._probe_s = probe_s
        self._client = httpx.Client(
            headers={"User-Agent": f"ofa/{__version__}"},
            timeout=httpx.Timeout(silence_s, connect=probe_s),
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def probe(self) -> None:
        """Raise `ServerUnreachable` unless a server answers; no key is sent."""
        status, answer = self._get("/healthz", {}, _root(self._url))
        if status != 200 or answer.get("status") != "ok":
            raise ServerUnreachable(
                f"what answers at {self._url} is no ofa server; `ofa serve` prints "
                "where yours is"
            )

    def not_ready(self) -> str:
        """Return why the server can't answer yet, in its words; empty if it can."""
        self.probe()
        status, answer = self._get("/readyz", self._keyed, _root(self._url))
        reasons = answer.get("reasons")
        if status != 503 or not isinstance(reasons, list):
            return ""
        return ", ".join(str(reason) for reason in reasons)

    def models(self) -> tuple[ListedModel, ...]:
        """Return what the server offers, with its true limits."""
        self.probe()
        status, answer = self._get("/models", self._keyed)
        if status != 200:
            raise _refusal(status, answer)
        try:
            return tuple(_listed(model) for model in answer["data"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise OfaError(f"{self._url}/models: no list as ofa's is") from None

    def stream(self, model: str, messages: Sequence[Mapping[str, str]]) -> Streamed:
        """Ask *messages* of *model*; returns once the answer is about to start."""
        self.probe()
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = self._client.build_request(
            "POST", f"{self._url}/chat/completions", json=body, headers=self._keyed
        )
        with _translated(self._url):
            response = self._client.send(request, stream=True)
            if response.status_code != 200:
                raise _refusal(response.status_code, _object(response.read()))
        return Streamed(response, self._url)

    def _get(
        self, path: str, headers: Mapping[str, str], base: str = ""
    ) -> tuple[int, Mapping[str, Any]]:
        """Return the status and the JSON object of an answer that comes at once."""
        with _translated(self._url):
            got = self._client.get(
                f"{base or self._url}{path}", headers=headers, timeout=self._probe_s
            )
        return got.status_code, _object(got.content)


class Streamed:
    """
    An answer as it comes: iterate for its text, once, and close it.

    *rag* and *sources* are known at once; *finish_reason* and *usage* at the end.
    """

    def __init__(self, response: httpx.Response, url: str) -> None:
        self._response = response
        self._url = url
        self.rag = response.headers.get("x-ofa-rag", "")
        self.sources = _sources(self.rag)
        self.finish_reason = ""
        self.usage: Mapping[str, Any] | None = None

    def __enter__(self) -> Streamed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the server stops its work."""
        self._response.close()

    def __iter__(self) -> Iterator[str]:
        with _translated(self._url):
            for frame in _frames(self._response.iter_bytes()):
                if frame == _DONE:
                    break
                yield from self._texts(_object(frame))
        if not self.finish_reason:
            raise OfaError("the answer was cut: its stream ended without an end")

    def _texts(self, chunk: Mapping[str, Any]) -> Iterator[str]:
        if "error" in chunk:
            raise OfaError(_message(chunk) or "the server failed; its log says why")
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if text := (choice.get("delta") or {}).get("content"):
                yield str(text)


def _frames(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of server-sent events from *pieces*, cut wherever they may be."""
    rest = b""
    for piece in pieces:
        # Bytes of one kind end a line here; str.splitlines() knows nine more.
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", errors="replace")


def _object(text: str | bytes) -> Mapping[str, Any]:
    """Return the JSON object in *text*; an empty one for anything else."""
    try:
        value = json.loads(text)
    except ValueError:  # UnicodeDecodeError is one as well
        return {}
    return value if isinstance(value, dict) else {}


def _listed(model: Mapping[str, Any]) -> ListedModel:
    able = model["capabilities"]
    limits = Limits(
        int(model["context_window"]),
        int(model["max_output_tokens"]),
        tools="tools" in able,
        vision="image" in able,
    )
    return ListedModel(str(model["id"]), str(model["name"]), limits)


def _sources(rag: str) -> tuple[str, ...]:
    listed = rag.partition("sources=")[2]
    return tuple(unquote(source) for source in listed.split(",") if source)


def _refusal(status: int, answer: Mapping[str, Any]) -> OfaError:
    said = _message(answer)
    return OfaError(said or f"the server refused with status {status}")


def _message(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _checked(base_url: str) -> str:
    """Return *base_url* without the slash at its end, if it is one."""
    try:
        parts = urlsplit(base_url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_url = is_url and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is none, half an IPv6 address
        is_url = False
    if not is_url or parts.username is not None:
        raise ConfigError("--url: expected a URL such as http://127.0.0.1:40123/v1")
    return base_url.rstrip("/")


def _root(url: str) -> str:
    """Return *url* without the /v1 that probes are not under."""
    return url.removesuffix("/v1")


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn what httpx raises into words about the server at *url*."""
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise ServerUnreachable(_absent(url)) from None
    except httpx.TimeoutException:
        raise ServerUnreachable(
            f"the server at {url} takes connections and says nothing: it hangs, or the "
            "tunnel's other end is gone"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise ServerUnreachable(
            f"the connection to {url} broke ({type(exc).__name__})"
        ) from None


def _absent(url: str) -> str:
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return f"no server answers at {url}; `ofa serve` prints where yours is"
    return (
        f"no server is running on port {parts.port or 80} of this machine; start one "
        "with `ofa serve`, or name another machine's with --url"
    )
