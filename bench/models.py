"""
The models that are measured: packaged ones as `ofa` keeps them, or a tiny one.

The tiny model is a random Gemma 3 of two layers with the packaged Gemma's tokenizer:
it says nothing, quickly, for rows that do not ask how fast a real model is. The tiny
Gemma 4 is that of the engine's tests, with Gemma 4's own control tokens.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .conversation import tokenizer
from .servers import ROOT, SILENT, CannotMeasure

NAMES = ("gemma", "starter", "small", "tiny", "tiny4")
# What ends a string, an array or an object, in JSON and in Gemma 4's own syntax.
_CLOSING = ('"', '"}', '"]', '"},', '."', "}", "]", "]}", '<|"|>')

# As Gemma 3 itself does it: system text stands in the first user turn. For peers, as
# the packaged Gemma's files bring no template.
GEMMA_3 = """{{ bos_token }}
{%- set system = messages[0]['content'] | trim + '\\n\\n'
    if messages[0]['role'] == 'system' else '' %}
{%- set turns = messages[1:] if system else messages %}
{%- for turn in turns %}
    {{- '<start_of_turn>'
        + ('model' if turn['role'] == 'assistant' else 'user') + '\\n' }}
    {{- (system if loop.first else '') + turn['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

_TINY = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 512,
    "sliding_window_pattern": 2,
    "max_position_embeddings": 32768,
    "vocab_size": 262144,
    "eos_token_id": [1, 106],
    "torch_dtype": "float32",
}
_MAKE_TINY = """
import json, sys
from pathlib import Path
from ofa.engine.mlx.blas import load_blas
load_blas()
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3_text as kind
folder = Path(sys.argv[1])
mx.random.seed(3)
arguments = kind.ModelArgs.from_dict(json.loads((folder / "config.json").read_text()))
weights = dict(tree_flatten(kind.Model(arguments).parameters()))
mx.save_safetensors(str(folder / "model.safetensors"), weights)
"""
_MAKE_TINY_4 = """
import sys
from pathlib import Path
from ofa.engine.mlx.blas import load_blas
load_blas()
from tests.engine.mlx import tiny
more = {"max_position_embeddings": 32768, "torch_dtype": "float32"}
model = {**tiny.GEMMA_4_MODEL, **more}
tiny.save_model(Path(sys.argv[1]), model, tiny.spm_plan(tiny.GEMMA_4))
"""


@dataclass(frozen=True)
class Model:
    """A model's folder, and what its files leave to others."""

    name: str
    folder: Path

    @property
    def template(self) -> str:
        """The chat template to hand to peers; empty where the model brings its own."""
        config = json.loads((self.folder / "tokenizer_config.json").read_text())
        own = (
            "chat_template" in config or (self.folder / "chat_template.jinja").exists()
        )
        return "" if own else GEMMA_3

    def closing(self, bias: float) -> dict[str, float]:
        """Return a `logit_bias` towards what ends a string, an array or an object."""
        ids = map(tokenizer(self.folder), _CLOSING)
        return {str(found[0]): bias for found in ids if len(found) == 1}

    @property
    def numbers(self) -> str:
        """The type of its weights on disk, as its config tells it."""
        config = json.loads((self.folder / "config.json").read_text())
        return str(config.get("torch_dtype") or config.get("dtype") or "unknown")


def find(name: str, folder: Path) -> Model:
    """Return the model of *name*, one of `NAMES` or a folder; *folder* is for tiny."""
    if name == "tiny":
        return make_tiny(folder)
    if name == "tiny4":
        return make_tiny_4(folder)
    if name not in NAMES:
        if not (Path(name) / "config.json").is_file():
            raise CannotMeasure(f"no model at {name}: give a folder or one of {NAMES}")
        return Model(Path(name).name, Path(name))
    return packaged(name)


def packaged(name: str) -> Model:
    """Return a packaged model out of the user's cache."""
    from ofa.engine.mlx.starter import PACKAGED, cache_folder, find

    taken = find(PACKAGED[name], cache_folder(os.environ))
    if taken is None:
        flag = "" if name == "starter" else f" --{name}"
        raise CannotMeasure(f"{name} is missing: ofa model starter --no-hub{flag}")
    return Model(PACKAGED[name].name, Path(taken.model))


def make_tiny(folder: Path) -> Model:
    """Write the tiny model into *folder*."""
    source = packaged("gemma").folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    (folder / "config.json").write_text(json.dumps(_TINY))
    _run(_MAKE_TINY, folder)
    return Model("tiny random Gemma 3", folder)


def make_tiny_4(folder: Path) -> Model:
    """Write the tiny Gemma 4 into *folder*."""
    _run(_MAKE_TINY_4, folder)
    return Model("tiny random Gemma 4", folder)


def _run(code: str, folder: Path) -> None:
    """Run *code* for *folder* in a process of its own: MLX starts threads."""
    subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        env={**os.environ, **SILENT},
        check=True,
    )
