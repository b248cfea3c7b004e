"""
The page at /ofa for people's browsers, and the JSON that it shows.

The page itself is the same for everybody and tells nothing: it needs no key, since a
browser could not send one before there is a page to type it into. All that it shows
comes from routes that do. Nothing on it comes from elsewhere, and the policy in its
header lets nothing else run, be fetched or be framed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from .engine.base import Limits, Status
from .modes import Modes
from .rag.health import Documents, Health
from .shipped import shipped
from .web import Route
from .web_chat import Asked, Page

PAGE = "/ofa"

_FOLDER = "page"
_STALE = "the index's file system does not answer; this is how it was"


@dataclass(frozen=True)
class Live:
    """What can be asked of a running server, at no cost to its chats."""

    modes: Modes
    limits: Callable[[str], Limits]
    status: Callable[[], Status]
    depth: Callable[[], tuple[int, int]]  # how many are running, how many waiting
    places: tuple[int, int]
    decode_per_s: Callable[[], float | None]
    documents: Callable[[], Documents | None]  # None: retrieval is off
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def routes(live: Live) -> tuple[Route, ...]:
    """Return the page and ``GET /v1/ofa/status``."""
    text, policy = assembled()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    page = Page(text, media="text/html", headers=headers)
    return (
        Route(PAGE, ("GET",), lambda asked: page, keyless=True),
        Route("/v1/ofa/status", ("GET",), partial(_status, live)),
    )


def assembled() -> tuple[str, str]:
    """Return the page as one text, and the policy that its own parts alone fulfil."""
    folder = shipped(_FOLDER)
    names = {"style": "style.css", "script": "script.js"}
    parts = {
        what: (folder / name).read_text(encoding="utf-8")
        for what, name in names.items()
    }
    text = (folder / "index.html").read_text(encoding="utf-8")
    for what, part in parts.items():
        text = text.replace(f"{{{what}}}", part)
    policy = (
        f"default-src 'none'; script-src {_hash(parts['script'])}; "
        f"style-src {_hash(parts['style'])}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _status(live: Live, asked: Asked) -> Mapping[str, object]:
    status, limits = live.status(), live.limits("")
    running, waiting = live.depth()
    documents = live.documents()
    return {
        "object": "ofa.status",
        "ready": status.ready,
        "reason": status.reason,
        "models": [{"id": mode.id, "name": mode.title} for mode in live.modes],
        "engine": {
            "model": limits.description,
            "context_tokens": limits.context_tokens,
            "output_tokens": limits.output_tokens,
            "prefill_per_s": _rounded(limits.prefill_per_s),
            "decode_per_s": _rounded(live.decode_per_s()),
            "details": dict(status.details),
        },
        "queue": {
            "running": running,
            "waiting": waiting,
            "places": {"running": live.places[0], "waiting": live.places[1]},
        },
        "retrieval": _documents(live, documents) if documents else None,
    }


def _documents(live: Live, documents: Documents) -> dict[str, object]:
    stale = () if documents.is_fresh else (_STALE,)
    return {
        "embedder": {
            "name": documents.embedder,
            "state": documents.embedder_state,
        },
        "problems": [*stale, *documents.problems],
        "collections": [_collection(live, one) for one in documents.collections],
    }


def _collection(live: Live, one: Health) -> dict[str, object]:
    users = [mode.id for mode in live.modes if one.name in mode.collections]
    age_s = None
    if one.created is not None:
        age_s = max(0, int((live.now() - one.created).total_seconds()))
    return {
        "name": one.name,
        "layer": "private" if one.private else "shared",
        "models": [] if one.private else users,  # every model searches those
        "passages": one.passages,
        "created": one.created.isoformat() if one.created else None,
        "age_s": age_s,
        "embedder": one.embedder,
        "problem": one.problem,
    }


def _rounded(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 2)
