"""
What goes wrong with an upstream, as errors that a client understands.

A message of httpx may hold a URL, so none is passed on; a message of the upstream is,
without the key that it may quote.
"""

from __future__ import annotations

import email.utils
import json
import math
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx

from ..errors import ContextLengthExceeded, EngineError, EngineTimeout, OfaError
from . import upstream_wire as wire

TRIES = 3  # in all; only while not one byte of an answer has come
RETRIED = (429, 502, 503)
# Who is told by its gateway to be gone is gone; 500, 429 and 503 are answers.
DEAD = (502, 504)

_MOST_ERROR_BYTES = 1 << 20  # OpenAI's are some hundred

_FIRST_WAIT_S = 0.5  # doubled each time, with jitter
LONGEST_WAIT_S = 10.0  # who asks for more time than that is not asked again here

_TOO_LONG = re.compile(
    r"maximum context length|exceeds? the (available )?context|context length exceeded",
    re.IGNORECASE,
)
_TOO_LONG_CODES = ("context_length_exceeded", "exceed_context_size_error")


class UpstreamRefused(EngineError):
    """The upstream answered with a 4xx status, which the client gets as well."""

    kind, code = "invalid_request_error", "upstream_refused"
    retry_after_s = 5  # with 429, where the upstream does not say

    def __init__(self, status: int, message: str, error: Mapping[str, Any]) -> None:
        param = error.get("param")
        super().__init__(message, param=param if isinstance(param, str) else None)
        self.status = status
        if status == 429:
            self.kind = "rate_limit_error"


class TryAgain(Exception):
    """
    No answer has begun, and the next try may get one.

    *error* is what the client is told if there is no next try; *wait_s* is how long
    the upstream asked to be left alone, None if it did not say.
    """

    def __init__(self, error: OfaError, wait_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s


def refusal(response: httpx.Response, key: str) -> OfaError:
    """Return what to tell the client of an error answer, without the *key*."""
    status = response.status_code
    try:
        answer = json.loads(wire.joined(response.iter_bytes(), _MOST_ERROR_BYTES))
    except (ValueError, RecursionError, httpx.HTTPError, EngineError):
        answer = None
    text = wire.error_text(answer, key)
    if status in (401, 403, 407):
        # Not the client's fault: its own key was good here.
        return EngineError("the upstream refuses this server's key; tell its operator")
    if 400 <= status < 500:
        said, error = f"the upstream refused: {text}", wire.error_of(answer)
        if status == 400 and _is_too_long(error):
            return ContextLengthExceeded(said, param="messages")
        told = UpstreamRefused(status, said, error)
        wait_s = retry_after_s(response)
        if status == 429 and wait_s is not None:
            told.retry_after_s = math.ceil(wait_s)
        return told
    return EngineError(f"the upstream failed with status {status}: {text}")


def _is_too_long(error: Mapping[str, Any]) -> bool:
    told = (error.get("code"), error.get("type"))
    text = str(error.get("message"))
    return any(one in _TOO_LONG_CODES for one in told) or bool(_TOO_LONG.search(text))


def foreign(exc: httpx.HTTPError) -> EngineError:
    """Map what httpx raises; its message may hold a URL with a password, so not it."""
    if isinstance(exc, httpx.ConnectTimeout):
        return EngineTimeout("the upstream does not answer (connecting timed out)")
    if isinstance(exc, httpx.TimeoutException):
        return EngineTimeout("the upstream was silent for too long")
    if isinstance(exc, httpx.ConnectError):
        return EngineError("the upstream can't be reached")
    return EngineError(f"the connection to the upstream broke ({type(exc).__name__})")


def retry_after_s(response: httpx.Response) -> float | None:
    """Read ``Retry-After``, seconds or a date; None if it is absent or neither."""
    told = response.headers.get("retry-after", "").strip()
    if told.isdigit() and len(told) < 10:
        return float(told)
    try:
        at = email.utils.parsedate_to_datetime(told)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - time.time())


def pause_s(attempt: int) -> float:
    """Return how long to wait after so many tries where nobody has said how long."""
    return _FIRST_WAIT_S * (1 << (attempt - 1)) * random.uniform(0.5, 1.5)
