"""Field failures of servers like this one that concern more than one part."""

import base64
import re
import struct
import zlib
from pathlib import Path

import pytest

from .running import frames, serving, text_of

# Reported failures of such servers, by what they concern; each has tests of its name.
CASES = {
    "rag": ("R049", "R050"),
    "rag-security": ("R046", "R047"),
    "offline": ("R052",),
    "storage": ("R053",),
    "tool-calls": ("R019", "R020", "R022", "R023", "R028", "R029"),
    "gemma-template": ("R025", "R026", "R031", "R032", "R034", "R035"),
}
HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", CASES)
def test_each_case_has_a_test_of_its_name(kind):
    """Who reads of a case finds what shows it by searching for its number."""
    tests = "\n".join(path.read_text("utf-8") for path in HERE.rglob("test_*.py"))
    named = set(re.findall(r"R\d{3}", " ".join(re.findall(r"def test_\w+", tests))))

    assert set(CASES[kind]) <= named


def test_R007_a_long_prompt_is_answered_with_signs_of_life(tmp_path):
    """24,000 words, no stream options, a slow engine: comments, then the answer."""
    script = [[{"wait_s": 0.8}, {"text": "read"}]]
    body = {
        "model": "ofa-hpc",
        "stream": True,
        "temperature": 0.1,
        "max_tokens": 16000,
        "messages": [
            {"role": "system", "content": "word " * 6000},
            {"role": "user", "content": "word " * 18000},
        ],
    }
    with serving(tmp_path, script, server__keep_alive_s=0.1) as client:
        status, _, answer = client.chat(body, {"Accept": "*/*"})

    assert status == 200
    assert text_of(answer) == "read"
    assert answer.count(b": keep-alive") >= 2
    assert frames(answer)[-1] == "[DONE]"


def bomb(width: int, height: int) -> str:
    """Return a one-colour PNG of that size as a data URL: a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        sum_ = struct.pack(">I", zlib.crc32(checked))
        return struct.pack(">I", len(data)) + checked + sum_

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * ((width // 8 + 1) * height), 9)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels)
    png += chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def test_R041_no_pixel_of_an_image_bomb_is_ever_unpacked(tmp_path):
    """A model without eyes refuses by name; nothing decodes what it can't use."""
    parts = [
        {"type": "image_url", "image_url": {"url": bomb(13000, 13000)}}
        for _ in range(20)
    ]
    body = {"model": "ofa-hpc", "messages": [{"role": "user", "content": parts}]}
    with serving(tmp_path) as client:
        status, _, answer = client.chat(body)
        again, _, _ = client.chat(
            {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}
        )

    assert (status, again) == (400, 200)
    assert b"image_not_supported" in answer
