"""Field failures of servers like this one that concern more than one part."""

import base64
import struct
import zlib

from .running import frames, serving, text_of


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
