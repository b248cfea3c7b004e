"""
Write the weights of a GGUF file under the names and in the layout mlx-lm expects.

Knows the tensors and settings of three architectures (gemma3, qwen2, llama) and the
safetensors container. Knows nothing of tokenizers, packages or where models are kept.
What it does not know it refuses: a weight in the wrong place gives fluent nonsense.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError
from .gguf_file import Array, GgufFile

Progress = Callable[[int, int], None]  # (done, all) in weights

_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # in safetensors

_OUTPUT, _EMBEDDING = "output.weight", "token_embd.weight"
_OUTSIDE = {
    _EMBEDDING: "model.embed_tokens.weight",
    _OUTPUT: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_INSIDE = _INSIDE | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")

# Two quantisations of one matrix differ by a few per cent; two matrices by over 100.
_SAME_MATRIX = 0.2
_SAMPLED_ROWS = 512
# Weights dequantised at a time: within the cache two to six times faster than at once.
_WEIGHTS_AT_A_TIME = 1 << 18


@dataclass(frozen=True)
class Architecture:
    """How one family's tensors and settings differ from the common ones."""

    model_type: str  # mlx-lm's name for it
    inside: Mapping[str, str] = field(default_factory=lambda: _INSIDE)
    interleaved: bool = False  # llama.cpp stores the halves of q and k alternating
    norm_offset: float = 0.0  # gemma's converter stores 1 + w; mlx-lm adds the 1


ARCHITECTURES = {
    "gemma3": Architecture("gemma3_text", _GEMMA3_INSIDE, norm_offset=1.0),
    "qwen2": Architecture("qwen2"),
    "llama": Architecture("llama", interleaved=True),
}


class Weights:
    """A GGUF's tensors and settings as mlx-lm has them."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.name = str(file.get("general.architecture", "unnamed"))
        if self.name not in ARCHITECTURES:
            raise ConfigError(
                f"{file.path.name}: architecture {self.name!r} is not one of "
                f"{', '.join(ARCHITECTURES)}; use the model's MLX version instead"
            )
        self._architecture = ARCHITECTURES[self.name]
        self.tied = self._is_tied()
        self._names = dict(self._renamed())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return mlx-lm's name and shape of every tensor, in the file's order."""
        return {new: self._file.tensor(old).shape for old, new in self._names.items()}

    def blocks(self) -> Iterator[Array]:
        """Yield the float32 values of every tensor, some at a time, in that order."""
        for old in self._names:
            rows = self._rows(old)
            width = int(np.prod(self._file.tensor(old).shape[1:], dtype=np.int64))
            step = max(1, _WEIGHTS_AT_A_TIME // width)
            for start in range(0, len(rows), step):
                yield self._values(old, rows[start : start + step])

    def config(self) -> dict[str, Any]:
        """Return what mlx-lm and transformers read from config.json."""
        whole, number = self._file.whole, self._file.number
        own = f"{self.name}."
        heads = whole(own + "attention.head_count")
        return {
            "model_type": self._architecture.model_type,
            "hidden_size": whole(own + "embedding_length"),
            "intermediate_size": whole(own + "feed_forward_length"),
            "num_hidden_layers": whole(own + "block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": whole(own + "attention.head_count_kv", heads),
            "rms_norm_eps": number(own + "attention.layer_norm_rms_epsilon"),
            "rope_theta": number(own + "rope.freq_base", 10000.0),
            "max_position_embeddings": whole(own + "context_length"),
            "vocab_size": self._file.tensor(_EMBEDDING).shape[0],
            "tie_word_embeddings": self.tied,
            **self._rope_scaling(),
            **(self._gemma3_config(heads) if self.name == "gemma3" else {}),
        }

    def _gemma3_config(self, heads: int) -> dict[str, Any]:
        whole = self._file.whole
        head_dim = whole("gemma3.attention.key_length")
        # GGUF has no key for it: llama.cpp, too, tells the 27B by its 62 layers.
        is_27b = whole("gemma3.block_count") == 62
        return {
            "head_dim": head_dim,
            "query_pre_attn_scalar": (
                whole("gemma3.embedding_length") // heads if is_27b else head_dim
            ),
            "sliding_window": whole("gemma3.attention.sliding_window"),
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000.0,
        }

    def _rope_scaling(self) -> dict[str, Any]:
        kind = self._file.get(f"{self.name}.rope.scaling.type", "none")
        if kind == "none":
            return {}
        if kind != "linear":
            raise ConfigError(
                f"{self._file.path.name}: rope scaling {kind!r} is not handled"
            )
        factor = self._file.number(f"{self.name}.rope.scaling.factor")
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}

    def _is_tied(self) -> bool:
        """Whether the output matrix is the embedding: absent or quantised once more."""
        if _OUTPUT not in self._file.tensors:
            return True
        pair = (_OUTPUT, _EMBEDDING)
        if len({self._file.tensor(name).shape for name in pair}) > 1:
            return False
        step = max(1, self._file.tensor(_OUTPUT).shape[0] // _SAMPLED_ROWS)
        one, other = (self._values(name, self._rows(name)[::step]) for name in pair)
        distance = float(np.linalg.norm(one - other))
        return distance < _SAME_MATRIX * float(np.linalg.norm(one))

    def _renamed(self) -> Iterator[tuple[str, str]]:
        """Yield (GGUF's name, mlx-lm's name); of a tied matrix, the finer one only."""
        tied = {_OUTPUT, _EMBEDDING} & set(self._file.tensors) if self.tied else set()
        finest = max(
            tied, key=lambda name: self._file.tensor(name).rows.size, default=""
        )
        for old in self._file.tensors:
            if old not in tied:
                yield old, self._new_name(old)
            elif old == finest:
                yield old, _OUTSIDE[_EMBEDDING]

    def _new_name(self, old: str) -> str:
        if old in _OUTSIDE:
            return _OUTSIDE[old]
        block = _BLOCK.fullmatch(old)
        new = self._architecture.inside.get(block[2]) if block else None
        if block is None or new is None:
            raise ConfigError(
                f"{self._file.path.name}: tensor {old!r} has no place in a "
                f"{self.name} model"
            )
        return f"model.layers.{block[1]}.{new}.{block[3]}"

    def _rows(self, old: str) -> Array:
        """Return a tensor's rows, still quantised, in mlx-lm's order."""
        rows = self._file.tensor(old).rows
        rotated = _ROTATED.fullmatch(old)
        if not (self._architecture.interleaved and rotated):
            return rows
        heads = self._file.whole(f"{self.name}.attention.head_count")
        if rotated[1] == "k":
            heads = self._file.whole(f"{self.name}.attention.head_count_kv", heads)
        # Rows i and i + half of each head stand side by side; mlx-lm has them apart.
        return (
            rows.reshape(heads, -1, 2, rows.shape[-1])
            .swapaxes(1, 2)
            .reshape(rows.shape)
        )

    def _values(self, old: str, rows: Array) -> Array:
        values = self._file.values(old, rows)
        if self._architecture.norm_offset and old.endswith("_norm.weight"):
            values = values - np.float32(self._architecture.norm_offset)
        return values


def write_safetensors(
    weights: Weights, path: Path, *, dtype: str, progress: Progress | None = None
) -> None:
    """
    Write all of *weights* to *path* as *dtype*, some at a time.

    The container is written here because its own writer wants all tensors in memory:
    2 GB for the starter, on machines that may have little.
    """
    shapes = weights.shapes()
    header = _header(shapes, _STORED[dtype])
    total = sum(_size(shape) for shape in shapes.values())
    done = 0
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for values in weights.blocks():
            out.write(_cast(values, dtype).data)
            done += values.size
            if progress:
                progress(done, total)


def _header(shapes: Mapping[str, tuple[int, ...]], stored: str) -> bytes:
    width = 4 if stored == "F32" else 2
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    start = 0
    for name, shape in shapes.items():
        end = start + _size(shape) * width
        entries[name] = {"dtype": stored, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    return text + b" " * (-len(text) % 8)  # the data begin at a multiple of 8


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _cast(values: Array, dtype: str) -> Array:
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "bfloat16":  # numpy has none: keep the upper half, rounded to even
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(dtype, copy=False)
