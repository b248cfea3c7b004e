"""
One snapshot as a file: our header, the tokens, and the caches as safetensors.

Knows bytes; nothing of folders, owners' rights and threads. Whatever a file holds
that we did not write so raises `Damaged`, and sizes are checked before memory is
taken for them.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Literal, get_args

from .prefix_index import count, width
from .snapshot import Snapshot

if TYPE_CHECKING:
    import mlx.core as mx

FORMAT = 1
_MAGIC = b"ofa-kv\r\n"  # as in PNG: a copy in text mode shows
# Magic, format, bytes of the facts, tokens, CRC of facts and tokens, CRC of the rest.
# A CRC finds damage, which is what happens in a folder that only its owner can enter,
# at three times the speed of SHA-256.
_START = struct.Struct("<8sIIIII")
_LENGTH = struct.Struct("<Q")  # what a safetensors file begins with
_MAX_JSON = 1 << 20
_MAX_TOKENS = 1 << 24
_FACTS = {
    "identity": str,
    "owner": str,
    "kind": str,
    "saved_s": float,
    "trimmable": bool,
    "meta": dict,
    "payload_bytes": int,
}
Kind = Literal["system", "history", "prompt", "answer"]  # what the tokens end with


class Damaged(ValueError):
    """The file is not, or no longer, what was written; the text says in what."""


@dataclass(frozen=True)
class Facts:
    """What a file says of itself."""

    identity: str  # of the model, its tokenizer and the libraries
    owner: str
    kind: Kind
    saved_s: float
    trimmable: bool
    meta: Mapping[str, Any]  # for `Snapshot.from_arrays`
    payload_bytes: int = 0


@dataclass(frozen=True)
class Head:
    """The beginning of a file: enough to know whether its rest is wanted."""

    facts: Facts
    packed: bytes
    payload_crc: int


def render(
    facts: Facts, packed: bytes, arrays: Mapping[str, mx.array]
) -> list[bytes | memoryview]:
    """
    Return a file's pieces, which share memory with *arrays*.

    Any thread may do so once the arrays are evaluated: nothing is computed here.
    """
    pieces = _render_payload(arrays)
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    told = asdict(facts) | {"payload_bytes": sum(_size(piece) for piece in pieces)}
    text = json.dumps(told).encode()
    head_crc = zlib.crc32(packed, zlib.crc32(text))
    start = _START.pack(_MAGIC, FORMAT, len(text), count(packed), head_crc, crc)
    return [start, text, packed, *pieces]


def read_head(file: BufferedReader, size: int) -> Head:
    """Return the head of *file*, which has *size* bytes; raise `Damaged`."""
    start = _read(file, _START.size)
    magic, version, length, tokens, head_crc, payload_crc = _START.unpack(start)
    if magic != _MAGIC:
        raise Damaged("it is no file of kept prefixes")
    if version != FORMAT:
        raise Damaged(f"it is of format {version}, not {FORMAT}")
    if length > _MAX_JSON or not 0 < tokens <= _MAX_TOKENS:
        raise Damaged("its head is damaged")
    text, packed = _read(file, length), bytes(_read(file, width(tokens)))
    if zlib.crc32(packed, zlib.crc32(text)) != head_crc:
        raise Damaged("its head is damaged")
    facts = _parse_facts(text)
    whole = _START.size + length + len(packed) + facts.payload_bytes
    if size != whole:
        raise Damaged(f"it has {size} bytes of {whole}")
    return Head(facts, packed, payload_crc)


def read_snapshot(file: BufferedReader, head: Head) -> Snapshot:
    """
    Return the snapshot behind *head* in *file*; raise `Damaged`.

    To be called on the engine's thread; takes one array's memory beside the snapshot's.
    """
    import mlx.core as mx

    left = head.facts.payload_bytes
    start = _read(file, _LENGTH.size)
    (length,) = _LENGTH.unpack(start)
    if length > min(_MAX_JSON, left):
        raise Damaged("its payload is damaged")
    text = _read(file, length)
    crc = zlib.crc32(text, zlib.crc32(start))
    left -= len(start) + length
    rows = _parse_payload(text, left)
    arrays = {}
    # One buffer for all: taking and clearing one each costs as much as reading.
    buffer = memoryview(bytearray(max(size for *_, size in rows)))
    for name, kind, shape, size in rows:
        part = buffer[:size]
        _fill(part, file)
        crc = zlib.crc32(part, crc)
        raw = mx.array(part)  # type: ignore[arg-type]  # copies what has a buffer
        arrays[name] = raw.view(kind).reshape(shape)
        mx.eval(arrays[name])
    if crc != head.payload_crc:
        raise Damaged("its payload is damaged")
    try:
        snapshot = Snapshot.from_arrays(arrays, head.facts.meta)
    except ValueError as error:
        raise Damaged(str(error)) from None
    fits = snapshot.tokens == count(head.packed)
    if not fits or snapshot.trimmable != head.facts.trimmable:
        raise Damaged("its tokens and its caches don't fit")
    return snapshot


def _kinds() -> dict[str, mx.Dtype]:
    import mlx.core as mx

    return {"F32": mx.float32, "BF16": mx.bfloat16, "F16": mx.float16}


def _render_payload(arrays: Mapping[str, mx.array]) -> list[bytes | memoryview]:
    names = {kind: name for name, kind in _kinds().items()}
    told: dict[str, Any] = {}
    at = 0
    for name, part in arrays.items():
        if part.dtype not in names:
            raise ValueError(f"caches of {part.dtype} are not written")
        told[name] = {
            "dtype": names[part.dtype],
            "shape": list(part.shape),
            "data_offsets": [at, at + part.nbytes],
        }
        at += part.nbytes
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % _LENGTH.size)  # the arrays begin aligned
    views = [_view(part) for part in arrays.values()]
    return [_LENGTH.pack(len(text)), text, *views]


def _view(part: Any) -> memoryview:  # noqa: ANN401 - its stub knows of no buffers
    return memoryview(part)


def _parse_payload(
    text: bytearray, left: int
) -> list[tuple[str, mx.Dtype, tuple[int, ...], int]]:
    """Return name, kind, shape and bytes of arrays that fill just *left* bytes."""
    try:
        rows = [
            _parse_row(name, row["dtype"], tuple(map(int, row["shape"])))
            for name, row in json.loads(text).items()
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Damaged("its payload is damaged") from None
    if not rows or sum(size for *_, size in rows) != left:
        raise Damaged("its payload is damaged")
    return rows


def _parse_row(
    name: str, kind_name: str, shape: tuple[int, ...]
) -> tuple[str, mx.Dtype, tuple[int, ...], int]:
    kind = _kinds()[kind_name]
    if min(shape, default=0) < 1:
        raise ValueError(shape)
    return name, kind, shape, math.prod(shape) * kind.size


def _parse_facts(text: bytearray) -> Facts:
    try:
        told = json.loads(text)
        right = (
            isinstance(told, dict)
            and told.keys() == _FACTS.keys()
            and all(isinstance(told[name], kind) for name, kind in _FACTS.items())
            and told["kind"] in get_args(Kind)
            and told["payload_bytes"] > 0
        )
    except (ValueError, RecursionError):
        right = False
    if not right:
        raise Damaged("its head is damaged")
    return Facts(**told)


def _read(file: BufferedReader, size: int) -> bytearray:
    content = bytearray(size)
    _fill(memoryview(content), file)
    return content


def _fill(part: memoryview, file: BufferedReader) -> None:
    """Read all of *part*; a file cut off since it was measured has less."""
    if file.readinto(part) != len(part):
        raise Damaged("it is cut off")


def _size(piece: bytes | memoryview) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)
