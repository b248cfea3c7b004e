"""
Who may talk to the server from where, and what may be repeated of what they send.

Pure functions over strings: hosts, origins, paths, request ids, log fields. They hold
on every bind address, because the browser that could be abused sits on the laptop end
of the tunnel, not beside the server.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

from .errors import Forbidden, UnsupportedMediaType

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\[\]:,\s/@]+?)\.?(?::[0-9]{1,5})?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN_LIST = re.compile(r"[A-Za-z0-9_,\- ]{0,1024}")
_NOT_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]")

_EXPOSED = (
    "Retry-After, x-request-id, x-ofa-cache, x-ofa-ignored, x-ofa-rag, x-ofa-tools"
)
_LOG_CHARACTERS = 200
_HEADER_CHARACTERS = 1024
_IGNORED_NAMES = 8
_IGNORED_BYTES = 64


def check_host(host: str, allowed: Collection[str]) -> None:
    """
    Raise `Forbidden` unless *host* is this machine's or one of *allowed*.

    A page that rebinds its own name to 127.0.0.1 sends that name here. Any case, a
    port and a final dot are fine; *allowed* holds lower-case names without a port.
    """
    match = _HOST.fullmatch(host.strip().lower())
    name = match["name"] if match else ""
    if not name or not (_is_local(name) or name.strip("[]") in allowed):
        raise Forbidden(
            "this host name is not one of the server's: use 127.0.0.1 or localhost, "
            "or add the name to server.allowed_hosts in site.toml",
            code="host_not_allowed",
        )


def check_origin(headers: Mapping[str, str], allowed: Collection[str]) -> None:
    """
    Raise `Forbidden` for requests that a web page elsewhere has caused.

    Editors and command lines send no Origin; a page's fetch and forms do. Where the
    browser leaves the Origin out, Sec-Fetch-Site still tells.
    """
    origin = headers.get("Origin")
    if origin is not None:
        if origin not in allowed:
            raise Forbidden(
                "requests from web pages are refused: add the page's exact origin to "
                "server.allowed_origins in site.toml if you trust it",
                code="origin_not_allowed",
            )
    elif headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Forbidden(
            "this request was caused by a web page elsewhere",
            code="origin_not_allowed",
        )


def cors_headers(
    headers: Mapping[str, str], allowed: Collection[str]
) -> dict[str, str]:
    """Return what lets a page of an allowed origin read the answer; else no more than
    the note that answers differ by origin."""
    if not allowed:
        return {}
    origin = headers.get("Origin", "")
    if origin not in allowed:
        return {"Vary": "Origin"}
    return {
        "Vary": "Origin",
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": _EXPOSED,
    }


def preflight_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what a preflight of an allowed origin is told beside `cors_headers`."""
    asked = headers.get("Access-Control-Request-Headers", "")
    if not _TOKEN_LIST.fullmatch(asked):
        asked = ""
    told = {
        "Access-Control-Allow-Methods": "GET, HEAD, POST",
        "Access-Control-Max-Age": "600",
    }
    return told | ({"Access-Control-Allow-Headers": asked} if asked else {})


def check_media_type(headers: Mapping[str, str]) -> None:
    """
    Raise `UnsupportedMediaType` unless the body is announced as plain UTF-8 JSON.

    A form or text/plain needs no preflight, so a page could send it from anywhere; and
    a compressed body could unpack to anything.
    """
    media, *parameters = headers.get("Content-Type", "").lower().split(";")
    if media.strip() != "application/json" or not all(map(_is_utf8, parameters)):
        raise UnsupportedMediaType("send the body as Content-Type: application/json")
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("send the body without a Content-Encoding")


def normal_path(path: str, is_route: Callable[[str], bool]) -> str:
    """
    Return the spelling of *path* that routes are written in.

    Base URLs are typed by people: slashes come doubled or trailing, /v1 twice or not
    at all. A redirect would lose the body of a POST, so the path is corrected instead.
    """
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    while parts[:2] == ["v1", "v1"]:
        del parts[0]
    plain = "/" + "/".join(parts)
    return "/v1" + plain if not is_route(plain) and is_route("/v1" + plain) else plain


def request_id(given: str) -> str:
    """Return *given* if it may be repeated in headers and logs, else a new one."""
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def log_line(text: str) -> str:
    """Return *text* on one line without control characters, cut to a readable size."""
    if not text.isprintable() or not text.isascii():
        text = text[:_LOG_CHARACTERS].encode("unicode_escape").decode("ascii")
    return text[:_LOG_CHARACTERS]


def log_field(text: str) -> str:
    """Return *text* as one word of a log line."""
    return log_line(text).replace(" ", "_") or "-"


def raised_at(exc: BaseException) -> str:
    """
    Return the type of *exc* and where it was raised, on one line.

    Without its text, which could quote a prompt.
    """
    places = (
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        for frame in reversed(traceback.extract_tb(exc.__traceback__))
    )
    return f"{type(exc).__name__} at {' < '.join(places)}"


def header_value(text: str) -> str:
    """Return *text* fit for a response header: printable ASCII, bounded."""
    return _NOT_PRINTABLE.sub("?", text[:_HEADER_CHARACTERS])


def ignored_header(names: Iterable[str]) -> str:
    """Return the field *names* as the value of ``x-ofa-ignored``."""
    listed = list(dict.fromkeys(names))
    told = [_NOT_NAME.sub("_", n[:_IGNORED_BYTES]) for n in listed[:_IGNORED_NAMES]]
    more = len(listed) - _IGNORED_NAMES
    return ", ".join([*told, f"and {more} more"] if more > 0 else told)


@lru_cache(maxsize=64)
def _is_local(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_utf8(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    charsets = ("utf-8", "utf8", "us-ascii")
    return name.strip() != "charset" or value.strip().strip('"') in charsets
