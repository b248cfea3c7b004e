"""
Arrays as bytes, in numpy's own file format, read without belief in what they say.

`np.load` makes room for what a header claims before it looks whether so much is there,
and runs Python's parser over it. Here an array is a view of the bytes that came.
"""

from __future__ import annotations

import math
import re
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

# The one form in which numpy writes version 1.0 for an array in the order of rows.
_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|=]\w{2,3})', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,12}, ?)*(?:\d{1,12})?)\), \} *\n",
    re.DOTALL,
)


def pack(array: NDArray[Any]) -> bytes:
    """Return *array* as the content of an ``.npy`` file."""
    packed = BytesIO()
    npy.write_array(packed, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
    return packed.getvalue()


def unpack(content: bytes, kind: str, dimensions: int) -> NDArray[Any]:
    """
    Return the array in *content*, a read-only view of it.

    Raises `ValueError` unless it holds a whole one of this *kind* of numbers (numpy's
    name, "float16" say) and this many *dimensions*.
    """
    head = _HEAD.match(content)
    if head is None or head[1].decode() != np.dtype(kind).str:
        raise ValueError(f"not an array of {kind}")
    shape = tuple(int(size) for size in head[2].split(b",") if size.strip())
    numbers = np.frombuffer(content, kind, offset=head.end())
    if len(shape) != dimensions or math.prod(shape) != len(numbers):
        raise ValueError("an array of another shape than its header says")
    return numbers.reshape(shape)
