"""
Routes of ofa's own, outside of any dialect: VS Code's entry, and what is looked up.

Handlers in the words of `web_chat`; nothing of Flask. The key in an answer is the one
that the request came with: the key file is not read here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import byok
from .auth import only_credential
from .engine.base import Limits
from .errors import BadRequest, NotFound, Overloaded
from .modes import Modes
from .rag.report import Inspector, as_json
from .web import Route
from .web_chat import Asked, Page

_PORT = re.compile(r"[0-9]{1,5}")
_HTTP_PORT = "80"  # what a Host header without a number means

# Of a question in a URL; more of one is not searched for anyway.
MAX_QUESTION_CHARS = 4000
# Reports at a time: chats have the same threads and the same places for searches.
_REPORTS = 2


@dataclass(frozen=True)
class _Byok:
    modes: Modes
    limits: Callable[[str], Limits]
    name: str
    keyed: bool

    def __call__(self, asked: Asked) -> Page:
        """Answer with a whole chatLanguageModels.json, for `curl -o`."""
        where = asked.query.get("key", "header")
        if where not in ("header", "ui"):
            raise BadRequest("key: expected header or ui", param="key")
        port = _port(asked.query, asked.headers.get("Host", ""))
        keyed = self.keyed and where == "header"
        group = byok.entry(
            [(mode, self.limits(mode.weights)) for mode in self.modes],
            f"http://127.0.0.1:{port}/v1",
            name=self.name,
            key=only_credential(asked.headers) if keyed else None,
        )
        return Page(byok.merge("", group))


class _Retrieve:
    """Answers with what a question would bring along; see `ofa.rag.report`."""

    def __init__(self, modes: Modes, inspector: Inspector | None) -> None:
        self._modes = modes
        self._inspector = inspector
        self._places = threading.BoundedSemaphore(_REPORTS)

    def __call__(self, asked: Asked) -> Mapping[str, object]:
        """Look a question up as for a chat, and answer with all that came of it."""
        mode = self._modes.pick(_text(asked.query, "model"))
        asked.notes["mode"] = mode.name
        question = _text(asked.query, "q")
        previous = _text(asked.query, "previous", needed=False)
        if self._inspector is None:
            raise NotFound(
                "retrieval is off on this server ([rag] enabled = false, or --no-rag)",
                code="retrieval_off",
            )
        if not self._places.acquire(blocking=False):
            raise Overloaded(
                f"{_REPORTS} of these look-ups run already; try again in a few seconds"
            )
        try:
            return as_json(self._inspector.report(mode, question, previous))
        finally:
            self._places.release()


def routes(
    modes: Modes,
    limits: Callable[[str], Limits],
    *,
    name: str,
    keyed: bool,
    inspector: Inspector | None = None,
) -> tuple[Route, ...]:
    """
    Return the routes; *name* is the group's in VS Code, *keyed* whether keys are asked.

    ``GET /v1/ofa/byok``: ``?port=N`` for a URL with another port than the request
    came to, ``?key=ui`` to leave the key out, for one that is entered in VS Code.
    ``GET /v1/ofa/retrieve``: ``?model=…&q=…``, and ``&previous=…`` for the question
    before; without an *inspector* retrieval is off.
    """
    return (
        Route("/v1/ofa/byok", ("GET",), _Byok(modes, limits, name, keyed)),
        Route("/v1/ofa/retrieve", ("GET",), _Retrieve(modes, inspector)),
    )


def _text(query: Mapping[str, str], name: str, *, needed: bool = True) -> str:
    text = query.get(name, "")
    if needed and not text.strip():
        raise BadRequest(f"{name}: it is missing", param=name)
    if len(text) > MAX_QUESTION_CHARS:
        raise BadRequest(
            f"{name}: at most {MAX_QUESTION_CHARS} characters, this has {len(text)}",
            param=name,
        )
    return text


def _port(query: Mapping[str, str], host: str) -> int:
    """Return the port as the client sees it: the tunnel's end on the laptop."""
    asked = query.get("port")
    if asked is None:
        ending = host.rpartition("]")[2].rpartition(":")[2]
        asked = ending if _PORT.fullmatch(ending) else _HTTP_PORT
    if not _PORT.fullmatch(asked) or not 1 <= int(asked) <= 65535:
        raise BadRequest("port: expected a number from 1 to 65535", param="port")
    return int(asked)
