"""
One upstream: what it serves, whether it is there, and the way to it.

Knows where it is and how it is; which of several is asked, and what an answer means,
is decided elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from ..chat import Chat
from ..errors import ConfigError
from . import upstream_kinds as kinds
from .base import Limits, Status
from .upstream_body import body, within
from .upstream_breaker import Breaker
from .upstream_lines import Line, Lines, client_maker

log = logging.getLogger("ofa.upstream")

PROBE_S = 5.0  # the longest that the first look may take
PROBE_EVERY_S = 30.0  # how old its model list may get; a model may be changed any time
PROBE_DOWN_EVERY_S = 2.0  # a server that comes back is used again within that
_REST_S = 1.0  # of one that is busy and does not say for how long


@dataclass(frozen=True)
class UpstreamSettings:
    """What a site says of its upstreams, all of them."""

    key: str = ""  # sent to them only, and never logged
    model: str = ""  # empty: the first that each lists
    context_tokens: int = 0  # 0: what each says
    output_tokens: int = 4096
    silence_s: float = 600.0  # the longest time without a byte: a long prefill's
    features: tuple[str, ...] = ("auto",)
    running: int = 4  # answers of one, while others have room
    probe_every_s: float = PROBE_EVERY_S


class Server:
    """An OpenAI-compatible server at *url*, which is looked after from the start on."""

    def __init__(self, url: str, settings: UpstreamSettings) -> None:
        self.base = base_url(url)
        self.url = f"{self.base}/chat/completions"
        self.key = settings.key
        self.breaker = Breaker()
        self._settings = settings
        make = client_maker(self.base, key=settings.key, silence_s=settings.silence_s)
        self.lines = Lines(make)
        self._probing = Line(make(), time.monotonic)
        self._served = kinds.Served("", kinds.UNKNOWN)
        self._problem = "the upstream has not been asked yet"
        self._rests_until_s = 0.0
        self._closed = False
        self._wake = threading.Event()
        self._probed = threading.Event()
        self._prober = threading.Thread(
            target=self._keep_probing, name="ofa-upstream", daemon=True
        )
        self._prober.start()

    @property
    def is_known(self) -> bool:
        """Whether it has told of itself, at any time."""
        return bool(self._served.model)

    @property
    def is_busy(self) -> bool:
        """Whether another should be asked, if there is one that has room."""
        return self.is_resting or self.lines.lent >= self._settings.running

    @property
    def is_resting(self) -> bool:
        """Whether it has asked to be left alone for now."""
        return time.monotonic() < self._rests_until_s

    def rest(self, wait_s: float | None) -> None:
        """Leave it alone for *wait_s*, if there are others to be asked."""
        self._rests_until_s = time.monotonic() + (_REST_S if wait_s is None else wait_s)

    def wait_until_probed(self, limit_s: float) -> None:
        """Wait for the first look at it, if that is still under way."""
        self._probed.wait(limit_s)

    def failed(self) -> None:
        """Note that it did not answer, and see at once whether it is there at all."""
        self.breaker.failed()
        self._wake.set()

    def look_again(self) -> None:
        """Read its model list now: it did not know the model that it had listed."""
        self._wake.set()

    def model_for(self, chat: Chat) -> str:
        """Return the name of the model to ask for; empty if none is known."""
        served = self._served
        if self._settings.model or served.kind is not kinds.OFA:
            return self._settings.model or served.model
        # Another ofa: its models are modes, which have the same names as ours.
        same = (
            name for name in (chat.model, f"ofa-{chat.model}") if name in served.all
        )
        return next(same, served.model)

    def body_for(self, chat: Chat) -> dict[str, Any]:
        """Return *chat* in the form that this server understands."""
        served = self._served
        context = self._settings.context_tokens or served.context_tokens
        fits = within(chat, context, self.limits().output_tokens)
        return body(fits, self.model_for(chat), served.kind, self.features())

    def features(self) -> frozenset[str]:
        """Return what may be asked of it."""
        return kinds.features_of(self._served, self._settings.features)

    def limits(self, weights: str = "") -> Limits:
        """Return what it says of itself, else what was configured."""
        settings = self._settings
        model = settings.model or self._served.model
        return kinds.limits_of(
            replace(self._served, model=model),
            settings.features,
            context=settings.context_tokens,
            output=settings.output_tokens,
            where=str(self.base),
        )

    def status(self) -> Status:
        """Return whether the last look at it found it well, and answers come."""
        problem = self._problem
        if not problem and (refused := self.breaker.refusal()):
            problem = str(refused)
        return Status(not problem, problem)

    def close(self) -> None:
        """Stop looking after it; running replies are cut by their readers."""
        self._closed = True
        self._wake.set()
        self._probing.cut()
        self.lines.close()
        self._prober.join(PROBE_S)
        self._probing.close()

    def _keep_probing(self) -> None:
        while not self._closed:
            self._wake.clear()
            before, self._problem = self._problem, self._probe()
            self._probed.set()
            if before != self._problem and not self._closed:
                log.info("upstream %s: %s", self.base, self._problem or "up")
            self.lines.prune()
            if before and not self._problem:
                # It has come back. One that only hangs lists its models all the time.
                self.breaker.allow_trial()
            well = self.status().ready
            if not self._closed:
                self._wake.wait(
                    self._settings.probe_every_s if well else PROBE_DOWN_EVERY_S
                )

    def _probe(self) -> str:
        """Ask which models there are; return what is wrong, empty if nothing."""
        named = self._settings.model
        try:
            answer = self._probing.get(httpx.URL(f"{self.base}/models"))
            if answer.status_code in (401, 403):
                return "the upstream refuses its key ([engine] upstream_key_file)"
            if answer.status_code != httpx.codes.OK:
                # Some serve chat and no list: then it must be named, and that is all.
                problem = f"its model list answers {answer.status_code}"
                return "" if named else problem
            listed = answer.json()
            rows = [row for row in listed["data"] if isinstance(row, dict)]
        except httpx.HTTPError as exc:
            return f"the upstream can't be reached ({type(exc).__name__})"
        except (ValueError, KeyError, TypeError):
            return "the upstream's model list can't be read"
        wanted = sorted(
            (row for row in rows if _is_called(row, named)),
            key=lambda row: not named and "embed" in str(row["id"]).lower(),
        )
        if wanted or named:
            row = wanted[0] if wanted else {"id": named}
            self._served = self._described(rows, row, listed)
        return "" if wanted else f"the upstream does not list {named or 'any model'}"

    def _described(
        self,
        rows: Sequence[Mapping[str, Any]],
        row: Mapping[str, Any],
        listed: Mapping[str, Any],
    ) -> kinds.Served:
        known = kinds.served(kinds.kind_of(rows, self.base.host), row, listed)
        if not known.kind.more_at:
            return known
        root = self.base.path.rstrip("/").removesuffix("/v1")
        try:
            page = self.base.copy_with(path=root + known.kind.more_at)
            answer = self._probing.get(page)
            told = answer.json() if answer.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError):
            return known  # its other page is a courtesy
        return kinds.with_more(known, told)


def _is_called(row: Mapping[str, Any], name: str) -> bool:
    """Return whether *name* means the model of *row*; no name means any model."""
    own, others = row.get("id"), row.get("aliases")
    names = [own, *(others if isinstance(others, list) else ())]
    # Ollama lists "gemma3:latest", and answers to "gemma3" as well.
    return bool(own) and (not name or name in names or own == f"{name}:latest")


def base_url(url: str) -> httpx.URL:
    """Return *url* up to ``/v1``, however much of a path it had."""
    base = url.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL as exc:
        raise ConfigError(f"engine.upstream_url: {exc}") from exc
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError("engine.upstream_url: expected http://HOST:PORT/v1")
    if parsed.userinfo or parsed.query:
        raise ConfigError(
            "engine.upstream_url: a key does not belong into the URL: "
            "upstream_key_file holds it"
        )
    return parsed if parsed.path not in ("", "/") else parsed.copy_with(path="/v1")
