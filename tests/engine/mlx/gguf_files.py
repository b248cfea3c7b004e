"""Tiny GGUF files of each architecture, laid out as llama.cpp's converter does."""

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, LAYERS = 64, 4, 2, 16, 96, 6
CONTEXT = 128
SYSTEMS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

CONTROL, NORMAL, BYTE = 3, 1, 6
Q8_0 = gguf.GGMLQuantizationType.Q8_0
F32 = gguf.GGMLQuantizationType.F32


@dataclass
class Tiny:
    """What a test changes about a file."""

    architecture: str = "llama"
    matrices: gguf.GGMLQuantizationType = F32
    template: str | None = TEMPLATE
    output: str = "absent"  # or "again" (the embedding, coarser) or "own"
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # tensors by GGUF's name


def names(architecture: str) -> dict[str, str]:
    """Return GGUF's name of each tensor in a layer, by mlx-lm's."""
    plain = {
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "mlp.gate_proj.weight": "ffn_gate.weight",
        "mlp.up_proj.weight": "ffn_up.weight",
        "mlp.down_proj.weight": "ffn_down.weight",
        "input_layernorm.weight": "attn_norm.weight",
    }
    if architecture == "gemma3":
        return plain | {
            "self_attn.q_norm.weight": "attn_q_norm.weight",
            "self_attn.k_norm.weight": "attn_k_norm.weight",
            "post_attention_layernorm.weight": "post_attention_norm.weight",
            "pre_feedforward_layernorm.weight": "ffn_norm.weight",
            "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
        }
    plain["post_attention_layernorm.weight"] = "ffn_norm.weight"
    if architecture == "qwen2":
        plain |= {f"self_attn.{x}_proj.bias": f"attn_{x}.bias" for x in "qkv"}
    return plain


def shape_of(name: str) -> tuple[int, ...]:
    """Return the shape of one of a layer's tensors, by mlx-lm's name."""
    out = {
        "q_proj": HEADS * HEAD_DIM,
        "k_proj": KV_HEADS * HEAD_DIM,
        "v_proj": KV_HEADS * HEAD_DIM,
        "gate_proj": WIDE,
        "up_proj": WIDE,
        "q_norm": HEAD_DIM,
        "k_norm": HEAD_DIM,
    }.get(name.split(".")[-2], HIDDEN)
    if "norm" in name or name.endswith("bias"):
        return (out,)
    wide_in = {"down_proj": WIDE, "o_proj": HEADS * HEAD_DIM}
    return (out, wide_in.get(name.split(".")[-2], HIDDEN))


def originals(architecture: str, vocabulary: int) -> dict[str, np.ndarray]:
    """Return random weights under mlx-lm's names, the same at each call."""
    random = np.random.default_rng(7)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    made = {"model.embed_tokens.weight": draw((vocabulary, HIDDEN))}
    for layer in range(LAYERS):
        for name in names(architecture):
            made[f"model.layers.{layer}.{name}"] = draw(shape_of(name))
    made["model.norm.weight"] = draw((HIDDEN,))
    return made


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Permute as llama.cpp's convert_hf_to_gguf.py does for llama's q and k."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write(path: Path, tiny: Tiny) -> dict[str, np.ndarray]:
    """Write the file; return the weights it was made from, under mlx-lm's names."""
    writer = gguf.GGUFWriter(path, tiny.architecture)
    tokens = write_settings(writer, tiny)
    weights = originals(tiny.architecture, tokens)
    for name, values in weights.items():
        add(writer, gguf_name(name, tiny), stored(name, values, tiny), tiny.matrices)
    embedding = weights["model.embed_tokens.weight"]
    if tiny.output == "again":
        kind = gguf.GGMLQuantizationType.Q5_0
        add(writer, "output.weight", embedding, kind)
    if tiny.output == "own":
        weights["lm_head.weight"] = embedding[::-1].copy()
        add(writer, "output.weight", weights["lm_head.weight"], tiny.matrices)
    for name, values in tiny.extra.items():
        add(writer, name, values, F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def gguf_name(name: str, tiny: Tiny) -> str:
    """Return GGUF's name for one of mlx-lm's."""
    if not name.startswith("model.layers."):
        return {
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
        }[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{names(tiny.architecture)[rest]}"


def stored(name: str, values: np.ndarray, tiny: Tiny) -> np.ndarray:
    """Return *values* as the architecture's converter stores them."""
    if tiny.architecture == "gemma3" and "norm" in name:
        return values + np.float32(1)
    if tiny.architecture == "llama" and ".q_proj." in name:
        return interleave(values, HEADS)
    if tiny.architecture == "llama" and ".k_proj." in name:
        return interleave(values, KV_HEADS)
    return values


def add(writer, name: str, values: np.ndarray, kind) -> None:
    """Add a tensor, matrices as *kind* and vectors as they are."""
    if values.ndim == 1 or kind == F32:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def write_settings(writer, tiny: Tiny) -> int:
    """Write metadata and vocabulary; return the vocabulary's size."""
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    if tiny.architecture == "gemma3":
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_sliding_window(32)
        return write_pieces(writer)
    if tiny.template is not None:
        writer.add_chat_template(tiny.template)
    return write_byte_level(writer)


def write_byte_level(writer) -> int:
    """Write a byte-level vocabulary with two merges; return its size."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = [*SYSTEMS, *bytes_to_unicode().values(), "he", "hel"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [CONTROL] * len(SYSTEMS) + [NORMAL] * (len(tokens) - len(SYSTEMS))
    )
    writer.add_token_merges(["h e", "he l"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    return len(tokens)


def write_pieces(writer) -> int:
    """Write a vocabulary of sentence pieces as Gemma has; return its size."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    by_byte = [f"<0x{value:02X}>" for value in range(256)]
    pieces = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "he", "hel"]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*control, *by_byte, *pieces])
    writer.add_token_scores(
        [-1000.0] * (len(control) + len(by_byte))
        + [-float(rank) for rank in range(len(pieces))]
    )
    writer.add_token_types(
        [CONTROL] * len(control) + [BYTE] * len(by_byte) + [NORMAL] * len(pieces)
    )
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    return len(control) + len(by_byte) + len(pieces)
