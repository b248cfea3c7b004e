"""
Server-sent events and error answers of an upstream, as bytes and JSON.

Knows framing and the shapes in which servers complain; nothing of sockets, nor of
what an answer consists of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import EngineError

# A frame holds one token or a whole tool call; sixteen megabytes are a broken server.
MAX_LINE_BYTES = 16 << 20

Frame = dict[str, Any]


def frames(pieces: Iterable[bytes]) -> Iterator[Frame | None]:
    """
    Yield the JSON objects of a server-sent event stream, cut anywhere into *pieces*.

    A comment is None: a sign of life without content. Lines end at LF or CRLF only: the
    text in them may hold U+2028, which str.splitlines takes for an end. Event names are
    passed over, ``[DONE]`` ends it.
    """
    for line in _lines(pieces):
        name, _, value = line.partition(b":")
        if not name and line:
            yield None
        elif name == b"error":  # llama-server, before it put errors into data lines
            yield {"error": _parsed(value)}
        elif name == b"data":
            if value.strip() == b"[DONE]":
                return
            frame = _parsed(value)
            if isinstance(frame, dict):
                yield frame


def _parsed(text: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise EngineError("the upstream sent a frame that is not JSON") from None


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        *complete, rest = piece.split(b"\n")
        for part in complete:
            yield b"".join((*held, part)).rstrip(b"\r")
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise EngineError("the upstream sent a line without an end")
    yield b"".join(held)


def whole(pieces: Iterable[bytes]) -> Frame:
    """Return the answer of a server that does not stream: all of it is one frame."""
    frame = _parsed(joined(pieces))
    if not isinstance(frame, dict):
        raise EngineError("the upstream's answer is not a JSON object")
    return frame


def joined(pieces: Iterable[bytes], most: int = MAX_LINE_BYTES) -> bytes:
    """Return *pieces* as one. Raises `EngineError` for more than *most* bytes."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) > most:
            raise EngineError("the upstream's answer is too long")
    return bytes(held)


def error_of(answer: object) -> dict[str, Any]:
    """Return the error object of an answer, in whatever shape it comes."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        return error
    return {"message": error} if error else {}


def error_text(answer: object, key: str) -> str:
    """Return the message of an error answer, on one line and cut short, without the
    *key* that was sent: it may be quoted, and clients are to be told."""
    error = error_of(answer)
    text = error.get("message") or error.get("detail") or "no message"
    said = " ".join(str(text).split())
    return (said.replace(key, "…") if key else said)[:500]
