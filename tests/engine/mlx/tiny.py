"""Tokenizers and models small enough to be made inside a test, of the real kinds."""

from __future__ import annotations

import json
from pathlib import Path

# A strict template in the manner of Gemma 3: it has no system turn of its own and
# refuses roles that do not alternate.
STRICT = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set head = messages[0]['content'] + '\n\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set head = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- set role = 'model' if m['role'] == 'assistant' else m['role'] %}
    {{- '<start_of_turn>' + role + '\n' + (head if loop.first else '') }}
    {{- m['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

WORDS = ("user", "model", "thought", "Hi", "the", "quick", "answer", "file")
GEMMA_3 = {
    "<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "[multimodal]": 5,
    "<start_of_turn>": 105, "<end_of_turn>": 106, "<start_of_image>": 120,
}  # fmt: skip
GEMMA_4 = {
    "<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3,
    "<|tool>": 46, "<tool|>": 47, "<|tool_call>": 48, "<tool_call|>": 49,
    "<|tool_response>": 50, "<tool_response|>": 51, '<|"|>': 52, "<|think|>": 98,
    "<|channel>": 100, "<channel|>": 101, "<|turn>": 105, "<turn|>": 106,
}  # fmt: skip
HARMLESS = {"\n\n": 108, "\u2581\u2581": 110, "<table>": 112, "</table>": 113}


def spm_plan(control: dict[str, int], words: dict[str, int] | None = None) -> dict:
    """Return a tokenizer.json of Gemma's kind: BPE over characters, bytes as fallback.

    *words* fixes the ids of whole words; the vocabulary is filled up to the largest.
    """
    words = words or {word: 600 + n for n, word in enumerate(WORDS)}
    vocab = {token: number for token, number in {**control, **HARMLESS}.items()}
    vocab["\n"] = 107
    chars = [chr(code) for code in range(33, 127)] + ["\u2581", "\u00e9", "\u00fc"]
    vocab.update({char: 180 + n for n, char in enumerate(chars)})
    vocab.update({f"<0x{byte:02X}>": 300 + byte for byte in range(256)})
    merges = []
    free = iter(range(700, 5000))
    for word, number in words.items():
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = number if end == len(word) else next(free)
                merges.append([word[: end - 1], word[end - 1]])
    taken = set(vocab.values())
    gaps = (n for n in range(max(taken)) if n not in taken)
    unused = {f"<unused{n}>": number for n, number in enumerate(gaps)}
    added = {**control, **{token: n for token, n in unused.items() if n < 120}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(token, number, special=True) for token, number in added.items()
        ]
        + [_added(token, number, special=False) for token, number in HARMLESS.items()],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {**vocab, **unused},
            "merges": merges,
        },
    }


def chatml_plan() -> dict:
    """Return a tokenizer.json of Qwen's kind: byte-level BPE, marks not all special."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): n for n, byte in enumerate(printable)}
    vocab |= {chr(256 + n): 188 + n for n in range(len(others))}
    merges = []
    for word in ("user", "\u0120the", "assistant", "think"):
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append([word[: end - 1], word[end - 1]])
    marks = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True}
    marks |= {"<think>": False, "</think>": False, "<tool_call>": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(token, len(vocab) + n, special=special)
            for n, (token, special) in enumerate(marks.items())
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": _byte_level(),
        "post_processor": None,
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _byte_level() -> dict:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }


def _added(token: str, number: int, *, special: bool) -> dict:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def save_tokenizer(folder: Path, plan: dict, *, template: str | None = None) -> Path:
    """Write *plan* as a folder that transformers and mlx-lm load."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(plan), "utf-8")
    names = {token["content"] for token in plan["added_tokens"]}
    marks = {
        "bos_token": "<bos>",
        "eos_token": "<eos>" if "<eos>" in names else "<|im_end|>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {key: token for key, token in marks.items() if token in names}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def load_tokenizer(folder: Path):
    """Return the tokenizer of *folder* as mlx-lm hands it out."""
    from mlx_lm.tokenizer_utils import load

    return load(folder)


def load_tokenizers(root: Path, plans):
    """Return tokenizers by name; *plans* has a plan and a template for each."""
    return {
        name: load_tokenizer(save_tokenizer(root / name, plan, template=template))
        for name, (plan, template) in plans.items()
    }


GEMMA_3_MODEL = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 32,
    "sliding_window_pattern": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": [1, 106],
}
GEMMA_4_MODEL = {
    "model_type": "gemma4_text",
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "sliding_window": 32,
    "sliding_window_pattern": 3,
    "max_position_embeddings": 1024,
    "eos_token_id": [1],
}
# Half of each, for tests that ask thousands of questions.
SMALLER_3 = {**GEMMA_3_MODEL, "num_hidden_layers": 2, "num_attention_heads": 1}
SMALLER_4 = {**GEMMA_4_MODEL, "num_hidden_layers": 4, "sliding_window_pattern": 2}
# Attends to all tokens in every layer, so that its caches can be cut back.
LLAMA_MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "eos_token_id": [1],
}


def save_model(folder: Path, config: dict, plan: dict, *, seed: int = 7) -> Path:
    """Write a random float32 model after *config* with the tokenizer of *plan*."""
    import importlib

    import mlx.core as mx
    from mlx.utils import tree_flatten

    is_strict = config["model_type"] == "gemma3_text"  # Gemma 4 has ours if it has none
    save_tokenizer(folder, plan, template=STRICT if is_strict else None)
    size = 1 + max(plan["model"]["vocab"].values())
    config = {**config, "vocab_size": size, "vocab_size_per_layer_input": size}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    kind = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model = kind.Model(kind.ModelArgs.from_dict(config))
    # Layers loud, embeddings quiet: the next token depends on the whole prompt, not
    # on the token before it.
    weights = {
        name: 0.1 * mx.random.normal(array.shape)
        if "embed" in name
        else array + 0.4 * mx.random.normal(array.shape)
        for name, array in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder
