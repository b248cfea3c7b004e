"""
Frames for streamed bodies: server-sent events, comments, lines of JSON.

Knows how bytes are framed; nothing of dialects, models or HTTP.
"""

from __future__ import annotations

import json
import re

# json.dumps leaves these as they are. Readers that cut lines with Python's splitlines()
# (or JavaScript's older idea of a line) would break a frame at the first three; a lone
# surrogate cannot be encoded at all.
_UNSAFE = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(value: object) -> str:
    """
    Return *value* as one line of compact JSON that any line splitter leaves whole.

    Raises `ValueError` for NaN and infinities, which JSON doesn't have.
    """
    text = _ENCODER.encode(value)
    return text if text.isascii() else _UNSAFE.sub(_escaped, text)


def sse(value: object, *, event: str = "") -> str:
    """Return one server-sent event; *event* names it where the dialect does.

    A string is sent as it is (``[DONE]``) and must be a single line.
    """
    head = f"event: {event}\n" if event else ""
    body = value if isinstance(value, str) else encode(value)
    return f"{head}data: {body}\n\n"


def comment(text: str) -> str:
    """Return a comment, which readers of server-sent events skip."""
    return f": {' '.join(text.split())}\n\n"


def ndjson(value: object) -> str:
    """Return one line of newline-delimited JSON."""
    return encode(value) + "\n"


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    return f"\\u{ord(character):04x}"
