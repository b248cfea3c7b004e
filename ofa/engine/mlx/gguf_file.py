"""
Read a GGUF file: its metadata, and its tensors as float32.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. It is read
here, and by the gguf package only dequantised, because that package's reader takes
15 s for a vocabulary of 150,000 words, and this one a second. Knows nothing of models.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError

Array = NDArray[Any]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # 3 adds big-endian files, which no model is published as
_NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS


@dataclass(frozen=True)
class Tensor:
    """A tensor as it is stored: *rows* of bytes, one for each but the last axis."""

    shape: tuple[int, ...]  # slowest axis first, as in numpy
    kind: int  # gguf.GGMLQuantizationType
    rows: Array  # uint8


class GgufFile:
    """An open GGUF file; ConfigError if it is none, damaged or cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = _Reader(path)
            self._metadata, self.tensors = reader.metadata, reader.tensors()
        except (ValueError, KeyError, struct.error, OverflowError) as exc:
            raise ConfigError(
                f"{path.name}: no complete GGUF file ({exc}); fetch it again"
            ) from exc

    def get(self, key: str, default: object = None) -> object:
        """Return a value of the metadata; it must be there if there is no default."""
        value = self._metadata.get(key, default)
        if value is None:
            raise ConfigError(f"{self.path.name}: the metadata lack {key!r}")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a value that is a whole number."""
        value = self.get(key, default)
        if not isinstance(value, int):
            raise ConfigError(f"{self.path.name}: {key!r} is not a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a value that is a number, as the decimal that was meant by it."""
        value = self.get(key, default)
        if not isinstance(value, int | float):
            raise ConfigError(f"{self.path.name}: {key!r} is not a number")
        return float(str(np.float32(value)))  # 1e-6, not 9.99999997e-07

    def sequence(self, key: str) -> list[Any]:
        """Return a value that is a list."""
        value = self.get(key)
        if not isinstance(value, list):
            raise ConfigError(f"{self.path.name}: {key!r} is not a list")
        return value

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called *name*; it must be there."""
        if name not in self.tensors:
            raise ConfigError(f"{self.path.name}: the tensor {name!r} is missing")
        return self.tensors[name]

    def values(self, name: str, rows: Array) -> Array:
        """Return *rows* of the tensor called *name* as float32."""
        from gguf import GGMLQuantizationType, dequantize

        try:
            kind = GGMLQuantizationType(self.tensor(name).kind)
            return np.asarray(dequantize(rows, kind), np.float32)
        except NotImplementedError as exc:
            raise ConfigError(f"{self.path.name}: {name!r}: {exc}") from exc


class _Reader:
    """Reads a file front to back: header, metadata, list of tensors, their bytes."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # An empty file can't be mapped: ValueError, as for all that is damaged.
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        if self._take(4) != _MAGIC:
            raise ValueError("it begins otherwise")
        version = self._unpack("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} of the format is not known")
        self._tensors = self._unpack("<Q")
        pairs = self._unpack("<Q")
        self.metadata = {self._string(): self._value() for _ in range(pairs)}

    def tensors(self) -> dict[str, Tensor]:
        entries = [self._entry() for _ in range(self._tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"tensors can't be aligned to {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return {
            name: Tensor(shape, kind, self._rows(shape, kind, start + offset))
            for name, shape, kind, offset in entries
        }

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = self._unpack("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"{name!r} has {dimensions} dimensions")
        fastest_first = [self._unpack("<Q") for _ in range(dimensions)]
        return name, (*reversed(fastest_first),), self._unpack("<I"), self._unpack("<Q")

    def _rows(self, shape: tuple[int, ...], kind: int, start: int) -> Array:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        row = shape[-1] if len(shape) > 1 else 1  # a vector: one number a row
        if row % block:
            raise ValueError(f"rows of {row} are no whole blocks of {block}")
        count = int(np.prod(shape, dtype=object)) // max(1, row)
        size = count * (row // block) * block_bytes
        if start + size > len(self._bytes):
            raise ValueError(f"cut off at {len(self._bytes)} bytes")
        flat = np.frombuffer(self._bytes, np.uint8, count=size, offset=start)
        return flat.reshape(count, -1)

    def _value(self) -> object:
        return self._value_of(self._unpack("<I"))

    def _value_of(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind, count = self._unpack("<I"), self._unpack("<Q")
        if kind not in (_STRING, _ARRAY):
            return self._numbers(kind, count)
        read: Callable[[], Any] = self._string if kind == _STRING else self._array
        return [read() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        return list(np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist())

    def _string(self) -> str:
        return self._take(self._unpack("<Q")).decode("utf-8", "replace")

    def _unpack(self, form: str) -> int:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(value)

    def _take(self, count: int) -> bytes:
        taken = self._bytes[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError(f"cut off at {len(self._bytes)} bytes")
        self._at += count
        return taken
