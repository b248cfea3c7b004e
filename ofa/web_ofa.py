"""
Routes of ofa's own, outside of any dialect: so far VS Code's entry, ready to be saved.

Handlers in the words of `web_chat`; nothing of Flask. The key in an answer is the one
that the request came with: the key file is not read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import byok
from .auth import only_credential
from .engine.base import Limits
from .errors import BadRequest
from .modes import Modes
from .web import Route
from .web_chat import Asked, Page

_PORT = re.compile(r"[0-9]{1,5}")
_HTTP_PORT = "80"  # what a Host header without a number means


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
            self.modes,
            self.limits(""),
            f"http://127.0.0.1:{port}/v1",
            name=self.name,
            key=only_credential(asked.headers) if keyed else None,
        )
        return Page(byok.merge("", group))


def routes(
    modes: Modes, limits: Callable[[str], Limits], *, name: str, keyed: bool
) -> tuple[Route, ...]:
    """
    Return the routes; *name* is the group's in VS Code, *keyed* whether keys are asked.

    ``GET /v1/ofa/byok``: ``?port=N`` for a URL with another port than the request
    came to, ``?key=ui`` to leave the key out, for one that is entered in VS Code.
    """
    return (Route("/v1/ofa/byok", ("GET",), _Byok(modes, limits, name, keyed)),)


def _port(query: Mapping[str, str], host: str) -> int:
    """Return the port as the client sees it: the tunnel's end on the laptop."""
    asked = query.get("port")
    if asked is None:
        ending = host.rpartition("]")[2].rpartition(":")[2]
        asked = ending if _PORT.fullmatch(ending) else _HTTP_PORT
    if not _PORT.fullmatch(asked) or not 1 <= int(asked) <= 65535:
        raise BadRequest("port: expected a number from 1 to 65535", param="port")
    return int(asked)
