"""
Every error ofa raises on purpose, and the status a client sees.

* OfaError                    500  internal_error
  + BadRequest                400  invalid_value (or the code given)
    x ContextLengthExceeded   400  context_length_exceeded
    x UnknownModel            404  model_not_found
    x NotFound                404  not_found
    x MethodNotAllowed        405  method_not_allowed
    x RequestTooLarge         413  request_too_large
    x UnsupportedMediaType    415  unsupported_media_type
  + Unauthorized              401  invalid_api_key
  + Forbidden                 403  forbidden
  + EngineError               502  engine_error
    x Overloaded              429  queue_full
    x Cancelled               499  cancelled
    x NotReady                503  not_ready
    x OutOfMemory             503  engine_oom
    x ShuttingDown            503  server_shutdown
    x EngineTimeout           504  engine_timeout
  + ConfigError               (the command line: exit code 78, EX_CONFIG)

A message names the thing and what to do about it. It never holds a key, a
prompt or a document: what is raised here is logged and sent to clients.
"""

from __future__ import annotations


class OfaError(Exception):
    """
    Base of all errors below; what a dialect needs to render one.

    *param* names the request field at fault (``messages[2].content``), or is
    None where no field is. *code* replaces the class's own machine-readable code.
    """

    status = 500
    kind = "server_error"  # OpenAI's `error.type`
    code = "internal_error"  # OpenAI's `error.code`

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class BadRequest(OfaError):
    """The client's body breaks its dialect's rules."""

    status, kind, code = 400, "invalid_request_error", "invalid_value"


class ContextLengthExceeded(BadRequest):
    """The prompt leaves no room for an answer; the message has both numbers."""

    code = "context_length_exceeded"


class UnknownModel(BadRequest):
    """The model name matches no mode."""

    status, code = 404, "model_not_found"


class NotFound(BadRequest):
    """No route has this path."""

    status, code = 404, "not_found"


class MethodNotAllowed(BadRequest):
    """The route exists, for other methods."""

    status, code = 405, "method_not_allowed"


class RequestTooLarge(BadRequest):
    """The body is over a limit."""

    status, code = 413, "request_too_large"


class UnsupportedMediaType(BadRequest):
    """The body is not plain JSON in UTF-8."""

    status, code = 415, "unsupported_media_type"


class Unauthorized(OfaError):
    """The key is missing, empty or wrong."""

    status, kind, code = 401, "invalid_request_error", "invalid_api_key"


class Forbidden(OfaError):
    """The request comes from where none is expected: a foreign Host or Origin."""

    status, kind, code = 403, "invalid_request_error", "forbidden"


class EngineError(OfaError):
    """The engine could not answer."""

    status, code = 502, "engine_error"


class Overloaded(EngineError):
    """All places in the queue are taken."""

    status, kind, code = 429, "rate_limit_error", "queue_full"
    retry_after_s = 5


class Cancelled(EngineError):
    """The client left; nobody reads this but the log."""

    status, code = 499, "cancelled"  # nginx's number for a client that hung up


class NotReady(EngineError):
    """The model is not loaded yet, or is being brought back."""

    status, code = 503, "not_ready"
    retry_after_s = 10


class OutOfMemory(EngineError):
    """There was not enough memory for this request; a smaller one may do."""

    status, code = 503, "engine_oom"
    retry_after_s = 10


class ShuttingDown(EngineError):
    """The server is draining; the answer was cut or never started."""

    status, code = 503, "server_shutdown"


class EngineTimeout(EngineError):
    """The engine was silent for longer than allowed."""

    status, code = 504, "engine_timeout"


class ConfigError(OfaError):
    """What was configured can't be used; the command line exits with `exit_code`."""

    exit_code = 78  # EX_CONFIG of sysexits.h
