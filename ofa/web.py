"""
The HTTP face: one table of routes, one guard before all of them, JSON everywhere.

Every route needs the key but the liveness probe and a page that tells nothing; a path
that isn't in the table is refused the same way, so nobody without a key learns of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, Request, Response, g, request
from flask.globals import app_ctx, request_ctx
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as NotThatMethod

from .answer import Answering
from .auth import redacted
from .engine.base import Limits, Status
from .errors import (
    BadRequest,
    MethodNotAllowed,
    NotFound,
    OfaError,
    RequestTooLarge,
    Unauthorized,
)
from .modes import CREATED, Mode, Modes
from .protocols import openai_chat
from .protocols.frames import encode
from .web_chat import Asked, ChatRoute, ChatRules, Page, Stream, internal_error
from .web_guard import (
    check_host,
    check_media_type,
    check_origin,
    cors_headers,
    header_value,
    log_field,
    normal_path,
    preflight_headers,
    request_id,
)

__all__ = [
    "Asked",
    "ChatRules",
    "Page",
    "Route",
    "Services",
    "Stream",
    "WebSettings",
    "create_app",
]

_access = logging.getLogger("ofa.access")

MAX_BODY_BYTES = 32 << 20
HEALTHZ = "/healthz"

_RETRY_AFTER_S = 5  # where an error of its kind names no time of its own
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STREAM = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

CheckKey = Callable[[Mapping[str, str]], str]
Handler = Callable[[Asked], Mapping[str, Any] | Page | Stream]


@dataclass(frozen=True)
class Route:
    """A path of the server; a handler that takes a body gets JSON only."""

    path: str
    methods: tuple[str, ...]
    handler: Handler
    keyless: bool = False  # what it answers tells nothing of anything


@dataclass(frozen=True)
class Services:
    """What the routes need: the Answerer, and three things to ask of the rest."""

    answerer: Answering
    modes: Modes
    limits: Callable[[str], Limits]
    status: Callable[[], Status]
    check_key: CheckKey  # returns the key's id; raises `Unauthorized`


@dataclass(frozen=True)
class WebSettings:
    """What a site chooses; names of hosts are lower case and without a port."""

    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    max_body_bytes: int = MAX_BODY_BYTES
    chat: ChatRules = field(default_factory=ChatRules)


def create_app(
    services: Services, settings: WebSettings | None = None, more: Iterable[Route] = ()
) -> Flask:
    """Return the app with the built-in routes and *more*."""
    settings = settings or WebSettings()
    app = Flask("ofa", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False  # `normal_path` does it, without a redirect
    routes = (*_routes(services, settings), *more)
    for route in routes:
        app.add_url_rule(
            route.path,
            endpoint=route.path,
            view_func=partial(_serve, route),
            methods=list(route.methods),
            provide_automatic_options=False,
        )
    app.before_request(partial(_guard, services.check_key, settings))
    app.after_request(partial(_finish, settings))
    app.register_error_handler(OfaError, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _defect)
    keyless = frozenset(route.path for route in routes if route.keyless)
    clock = settings.chat.clock
    app.wsgi_app = _Entrance(app, keyless, clock)  # type: ignore[method-assign]
    return app


def _routes(services: Services, settings: WebSettings) -> tuple[Route, ...]:
    models = _Models(services.modes, services.limits)
    chat = ChatRoute(services.answerer, services.modes, settings.chat)
    return (
        Route(HEALTHZ, ("GET",), _healthz, keyless=True),
        Route("/readyz", ("GET",), partial(_readyz, services.status)),
        Route("/v1/models", ("GET",), models.all),
        Route("/v1/models/<model>", ("GET",), models.one),
        Route("/v1/chat/completions", ("POST",), chat),
    )


def _healthz(asked: Asked) -> Mapping[str, Any]:
    return {"status": "ok"}


def _readyz(status: Callable[[], Status], asked: Asked) -> Page:
    now = status()
    if now.ready:
        return Page(encode({"status": "ready", **now.details}))
    body = encode({"status": "unavailable", "reasons": [now.reason]})
    return Page(body, 503, headers={"Retry-After": str(_RETRY_AFTER_S)})


class _Models:
    """The modes as OpenAI's model list."""

    def __init__(self, modes: Modes, limits: Callable[[str], Limits]) -> None:
        self._modes = modes
        self._limits = limits

    def all(self, asked: Asked) -> Mapping[str, Any]:
        return {"object": "list", "data": [self._entry(mode) for mode in self._modes]}

    def one(self, asked: Asked) -> Mapping[str, Any]:
        return self._entry(self._modes.pick(asked.args["model"]))

    def _entry(self, mode: Mode) -> dict[str, Any]:
        limits = self._limits(mode.weights)
        able = {"text": True, "image": limits.vision, "tools": limits.tools}
        return {
            "id": mode.id,
            "object": "model",
            "created": CREATED,
            "owned_by": "ofa",
            "name": mode.title,
            "context_window": limits.context_tokens,
            "max_output_tokens": limits.output_tokens,
            "capabilities": [name for name, is_able in able.items() if is_able],
        }


class _Entrance:
    """The first thing a request meets: its path is put right, its clock started."""

    def __init__(
        self, app: Flask, keyless: frozenset[str], clock: Callable[[], float]
    ) -> None:
        self._inner: WSGIApplication = app.wsgi_app
        self._paths = app.url_map.bind("localhost")
        self._plain = {rule.rule for rule in app.url_map.iter_rules()}
        self._keyless = keyless
        self._clock = clock

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        sent = environ.get("PATH_INFO", "")
        # The one spelling that needs no key: as sent, before anyone decoded it.
        target = str(environ.get("REQUEST_URI") or sent).partition("?")[0]
        environ["ofa.is_open"] = target in self._keyless
        environ["ofa.elapsed"] = partial(_elapsed, self._clock, self._clock())
        environ["PATH_INFO"] = normal_path(sent, self._is_route)
        return self._inner(environ, start_response)

    def _is_route(self, path: str) -> bool:
        if path in self._plain:  # the quick way for nearly all
            return True
        try:
            self._paths.match(path, method="GET")
        except NotThatMethod:
            return True
        except HTTPException:
            return False
        return True


def _guard(check_key: CheckKey, settings: WebSettings) -> Response | None:
    """Refuse what may not come in; the same for paths that exist and others."""
    # The objects themselves: each use of a proxy would look them up again.
    given, kept = request_ctx.request, app_ctx.g
    kept.notes = {}
    kept.headers = headers = dict(given.headers)
    kept.request_id = request_id(headers.get("X-Request-Id", ""))
    check_host(headers.get("Host", ""), settings.allowed_hosts)
    check_origin(headers, settings.allowed_origins)
    if given.method == "OPTIONS" and _is_preflight(headers):
        return _nothing(preflight_headers(headers))
    if given.environ["ofa.is_open"] and given.method in ("GET", "HEAD"):
        return None
    try:
        kept.key_id = check_key(headers)
    except Unauthorized:
        kept.notes["key"] = redacted(headers)
        raise
    if given.method == "OPTIONS":
        return _options()
    return None


def _is_preflight(headers: Mapping[str, str]) -> bool:
    # Its Origin was found good before; a browser sends no key with the question.
    return "Origin" in headers and "Access-Control-Request-Method" in headers


def _options() -> Response:
    wrong = request.routing_exception
    if not isinstance(wrong, NotThatMethod):
        raise _no_such_path()
    return _nothing({"Allow": _allow(wrong)})


def _nothing(headers: Mapping[str, str]) -> Response:
    response = Response(status=204, headers=dict(headers))
    del response.headers["Content-Type"]
    return response


def _serve(route: Route, **args: str) -> Response:
    given, kept = request_ctx.request, app_ctx.g
    if given.method == "POST":
        check_media_type(kept.headers)
    asked = Asked(
        headers=kept.headers,
        key_id=kept.get("key_id", ""),
        args=args,
        query=given.args,
        body=partial(_body, given),
        gone=given.environ.get("waitress.client_disconnected", bool),
        notes=kept.notes,
    )
    answer = route.handler(asked)
    if isinstance(answer, Stream):
        return _streamed(answer)
    page = answer if isinstance(answer, Page) else Page(encode(answer))
    return Response(
        page.text.encode(),
        status=page.status,
        headers=_clean(page.headers),
        mimetype=page.media,
    )


def _body(given: Request) -> bytes:
    """Return the body; where the server has all of it, as it lies there."""
    length, limit = given.content_length, given.max_content_length
    fits = length is not None and (limit is None or length <= limit)
    if fits and given.environ.get("wsgi.input_terminated"):
        return bytes(given.environ["wsgi.input"].read())
    return given.get_data(cache=False)


def _streamed(answer: Stream) -> Response:
    # Without a length waitress closes the connection at the end, and says so.
    response = Response(
        (frame.encode() for frame in answer.frames),
        headers={**_clean(answer.headers), **_STREAM},
        mimetype="text/event-stream",
    )
    response.call_on_close(answer.close)
    return response


def _clean(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: header_value(value) for name, value in headers.items()}


def _refused(exc: OfaError) -> Response:
    response = Response(
        encode(openai_chat.error(exc)), status=exc.status, mimetype="application/json"
    )
    if exc.status in (429, 503):
        wait_s = getattr(exc, "retry_after_s", _RETRY_AFTER_S)
        response.headers["Retry-After"] = str(wait_s)
    if exc.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    g.notes.setdefault("outcome", exc.code)
    return response


def _http_error(exc: HTTPException) -> Response:
    """Answer what Flask refuses by itself in the form of all other refusals."""
    if isinstance(exc, NotThatMethod):
        response = _refused(MethodNotAllowed(f"this path takes {_allow(exc)}"))
        response.headers["Allow"] = _allow(exc)
        return response
    if exc.code == 413:
        limit = request.max_content_length
        return _refused(RequestTooLarge(f"the body is over {limit} bytes"))
    if exc.code == 404:
        return _refused(_no_such_path())
    return _refused(BadRequest("the request could not be read"))


def _defect(exc: Exception) -> Response:
    return _refused(internal_error(exc))


def _no_such_path() -> NotFound:
    return NotFound(
        "no such path; chat is at POST /v1/chat/completions, models at GET /v1/models"
    )


def _allow(exc: NotThatMethod) -> str:
    return ", ".join(sorted({*(exc.valid_methods or ()), "OPTIONS"}))


def _finish(settings: WebSettings, response: Response) -> Response:
    given, kept = request_ctx.request, app_ctx.g
    headers = response.headers
    headers.update(_SECURITY)
    headers.setdefault("Cache-Control", "no-store")
    headers["x-request-id"] = kept.request_id
    headers.update(cors_headers(kept.headers, settings.allowed_origins))
    line = _Line(
        kept.request_id,
        given.method,
        str(given.url_rule or given.path),
        response.status_code,
        given.environ["ofa.elapsed"],
        kept.notes,
    )
    response.call_on_close(line.write)
    return response


@dataclass(frozen=True)
class _Line:
    """What the log says of one request, once it is over; nothing of its content."""

    request_id: str
    method: str
    path: str
    status: int
    elapsed: Callable[[], float]
    notes: Mapping[str, object]

    def write(self) -> None:
        noted = "".join(f" {k}={log_field(str(v))}" for k, v in self.notes.items())
        _access.info(
            "%s %s %s %d%s %.3fs",
            self.request_id,
            log_field(self.method),
            log_field(self.path),
            self.status,
            noted,
            self.elapsed(),
        )


def _elapsed(clock: Callable[[], float], since: float) -> float:
    return clock() - since
