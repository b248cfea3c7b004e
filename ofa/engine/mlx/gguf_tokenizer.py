"""
Write the tokenizer files of a GGUF: vocabulary, chat template, ends of a turn.

The vocabulary is rebuilt by transformers, and saved in a form that loads fast. Knows
nothing of weights.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...heavy import loading
from .gguf_file import GgufFile

# The class that AutoTokenizer would find, after reading the whole file slowly: 20 s
# for the starter's, where the class itself takes 3.
_CLASSES = {
    "gemma3": "GemmaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "llama": "PreTrainedTokenizerFast",
}

# Names under which the models we convert end an answer. GGUF names one of them as
# its eos, and instruction-tuned models emit others too.
_ENDS = frozenset({"<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<eos>", "</s>"})
_CONTROL = 3  # GGUF's type of the tokens that are never text

# What transformers notes of how it loaded the tokenizer; no property of it.
_LOADING_NOTES = ("is_local", "local_files_only", "gguf_file")


def write_tokenizer(file: GgufFile, folder: Path, *, architecture: str) -> None:
    """Write tokenizer.json, its config and, where the GGUF has one, the chat template.

    Its ids are those of the model the GGUF was made from.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    try:
        with loading():
            import transformers

            tokenizer = getattr(transformers, _CLASSES[architecture]).from_pretrained(
                str(file.path.parent), gguf_file=file.path.name, local_files_only=True
            )
    except (ValueError, KeyError, OSError, ImportError, NotImplementedError) as exc:
        raise ConfigError(
            f"{file.path.name}: its tokenizer can't be rebuilt: {exc}"
        ) from exc
    tokenizer.model_max_length = file.whole(f"{architecture}.context_length")
    tokenizer.save_pretrained(str(folder))
    _drop_loading_notes(folder / "tokenizer_config.json")


def end_ids(file: GgufFile) -> list[int]:
    """Return the ids at which generation stops, the file's own eos first."""
    tokens = file.sequence("tokenizer.ggml.tokens")
    kinds = file.sequence("tokenizer.ggml.token_type")
    others = (
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL and token in _ENDS
    )
    return list(dict.fromkeys([file.whole("tokenizer.ggml.eos_token_id"), *others]))


def _drop_loading_notes(path: Path) -> None:
    settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for note in _LOADING_NOTES:
        settings.pop(note, None)
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")
