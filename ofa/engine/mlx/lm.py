"""
Loading a model and looking at it: with `lm_batch` all that imports mlx_lm.

mlx-lm changes its interfaces with every minor release (0.31 and 0.32 each broke
the batch generator's), so one version is pinned and checked. What can be wrong with
a model folder is looked for before MLX is imported, and said in one line.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ConfigError
from ...heavy import loading
from .blas import load_blas
from .memory import KvShape, available_bytes, on_cpu
from .vocabulary import Tokenizer

if TYPE_CHECKING:
    import mlx.core as mx

PINNED = "0.32.2"
_DEFAULT_CONTEXT = 8192  # where a model's config names none
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of a file of weights
_NO_BACKEND = (
    "MLX has no backend on this machine: install ofa[cpu] (Linux), ofa[cuda] "
    "(NVIDIA) or use a Mac with Apple silicon; or serve another engine with "
    "--engine upstream"
)

log = logging.getLogger("ofa.engine.mlx")


class Model(Protocol):
    """What is used of an mlx-lm model."""

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        """Return the logits after each of *tokens*."""


class Generator(Protocol):
    """What is used of mlx-lm's `BatchGenerator`, as a test checks on the real one."""

    prefill_step_size: int

    def insert_segments(
        self,
        segments: list[list[list[int]]],
        max_tokens: list[int],
        caches: list[Any],
        all_tokens: list[list[int]],
        samplers: list[Any],
        logits_processors: list[list[Any]],
    ) -> list[int]:
        """Put prompts in line, each behind what its cache holds; return their uids."""

    def next(self) -> tuple[list[Any], list[Any]]:
        """Return the progress of prompts, and one token a running row."""

    def extract_cache(self, uids: list[int]) -> dict[int, tuple[list[Any], list[int]]]:
        """Return a copy of rows' caches, and the tokens that are in them."""

    def remove(
        self, uids: list[int], return_prompt_caches: bool = False
    ) -> dict[int, tuple[list[Any], list[int]]]:
        """Take rows out, wherever they are; return what `extract_cache` does, if so."""


@dataclass(frozen=True)
class Loaded:
    """A model in memory with its tokenizer; lives on the thread that loaded it."""

    model: Model
    tokenizer: Tokenizer
    config: Mapping[str, Any]
    ends: frozenset[int]  # end tokens, as far as the model's files name them
    numbers: str  # "float32 on cpu"
    fingerprint: str = ""  # of all that its caches depend on; empty: not known


Loader = Callable[[], Loaded]


def is_hub_id(model: str) -> bool:
    """Return whether *model* names a repository on the hub and not a folder."""
    parts = model.split("/")
    is_path = model.startswith((".", "~", "/")) or "\\" in model or Path(model).exists()
    return not is_path and len(parts) == 2 and all(parts)


def check_folder(folder: Path) -> dict[str, Any]:
    """Return the config of the model in *folder*; raise `ConfigError` if it is broken.

    Reads only headers, so it is quick for any size of model.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"no model at {folder}: give a folder with config.json and *.safetensors, "
            "or a hub id such as mlx-community/gemma-3-1b-it-4bit"
        )
    config = _read_object(folder / "config.json")
    if "model_file" in config:
        raise ConfigError(
            f"{folder / 'config.json'}: 'model_file' would run code that comes with "
            "the model; ofa never does that: use a model of a built-in type"
        )
    index = folder / "model.safetensors.index.json"
    named = _read_object(index).get("weight_map", {}) if index.exists() else {}
    found = {path.name for path in folder.glob("model*.safetensors")}
    missing = sorted(set(named.values()) - found)
    if missing or not found:
        what = missing[0] if missing else "model*.safetensors"
        raise ConfigError(f"{folder}: {what} is missing; copy the model again")
    for name in sorted(found):
        _check_safetensors(folder / name)
    return config


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; copy the model again") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {one_line(error)}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object; copy the model again")
    return value


def _check_safetensors(path: Path) -> None:
    """Compare a file's length with what its header promises."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 8 + length <= size else b""
    try:
        ends = [
            entry["data_offsets"][1]
            for name, entry in json.loads(header).items()
            if name != "__metadata__"
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"{path} is damaged or cut off; copy it again") from None
    wanted = 8 + length + max(ends, default=0)
    if size < wanted:
        raise ConfigError(f"{path} is cut off: {size} of {wanted} bytes; copy it again")


def context_of(config: Mapping[str, Any]) -> int:
    """Return how many tokens the model of *config* was made for."""
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, dict) else {}
    for part in (config, inner):
        tokens = part.get("max_position_embeddings")
        if isinstance(tokens, int) and tokens > 0:
            return tokens
    return _DEFAULT_CONTEXT


def load(model: str) -> Loaded:
    """Load *model*, a folder or a hub id, for the device there is.

    On a CPU weights become float32: MLX's kernels for bfloat16 and for quantised
    weights do not use a BLAS there and are 5 to 20 times slower.
    """
    model = _checked(model)
    check_version()
    blas = load_blas()  # nothing gets between MLX and its BLAS later on
    log.info("%s", blas)
    with loading():
        mlx_lm = _imported()
        import mlx.core as mx
        from mlx_lm.utils import dequantize_model, hf_repo_to_path

        lm, tokenizer, config = mlx_lm.load(
            model, lazy=True, return_config=True, trust_remote_code=False
        )
    cpu = on_cpu()
    if cpu and _fits_as_float32(lm):
        lm = dequantize_model(lm)
        lm.set_dtype(mx.float32)
    mx.eval(lm.parameters())
    if cpu and blas.library == "mkl":
        from .few_rows import hasten

        hasten(lm, blas.threads)
    return Loaded(
        model=lm,
        tokenizer=tokenizer,
        config=config,
        ends=frozenset(tokenizer.eos_token_ids),
        numbers=f"{_numbers(lm)} on {'CPU' if cpu else 'GPU'}",
        fingerprint=fingerprint(
            Path(hf_repo_to_path(model) if is_hub_id(model) else model)
        ),
    )


def _checked(model: str) -> str:
    """Return *model*, in full if it is a folder; tell the libraries what not to do."""
    if is_hub_id(model):
        return model
    folder = Path(model).expanduser()
    check_folder(folder)
    # Nothing may be looked up anywhere when all that is needed is at hand.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    return str(folder)


def fingerprint(folder: Path) -> str:
    """
    Return what tells the model in *folder*, as these libraries run it, from others.

    Weights are known by their files' names, sizes, times and some of their bytes: to
    read all of them would take as long as loading does.
    """
    digest = blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja"):
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            facts = path.stat()
            digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}".encode())
            digest.update(_samples(path, facts.st_size))
    names = ("mlx", "mlx-lm", "tokenizers")
    versions = " ".join(f"{name} {version(name)}" for name in names)
    return f"{digest.hexdigest()} {versions}"


def _samples(path: Path, size: int) -> bytes:
    """Return some of a file, evenly: tunings of one model differ in nothing else."""
    parts = []
    with path.open("rb") as file:
        for at in range(0, size, max(1, size // _SAMPLES)):
            file.seek(at)
            parts.append(file.read(_SAMPLE_BYTES))
    return b"".join(parts)


def check_version() -> None:
    """Raise `ConfigError` unless mlx-lm is the version this code was tested with."""
    try:
        found = version("mlx-lm")
    except PackageNotFoundError:
        raise ConfigError("mlx-lm is not installed; install ofa[cpu] or ofa") from None
    if found != PINNED and os.environ.get("OFA_UNPINNED_MLX") != "1":
        raise ConfigError(
            f"mlx-lm {found} is installed, ofa is tested with {PINNED}: install "
            f"mlx-lm=={PINNED}, or set OFA_UNPINNED_MLX=1 to try at your own risk"
        )


def _imported() -> Any:  # noqa: ANN401 - a module
    """Import mlx_lm, which lowers the limit of open files as it goes: undo that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        import mlx_lm
        import mlx_lm.generate
    except ImportError as error:
        # PyPI's mlx for Linux comes without libmlx.so unless an extra is named.
        raise ConfigError(f"{_NO_BACKEND} ({one_line(error)})") from error
    except ValueError as error:
        raise ConfigError(
            "mlx-lm wants to open up to 4096 files: raise the limit (ulimit -n 4096) "
            f"({one_line(error)})"
        ) from error
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except ValueError:  # only root may raise the upper limit again
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, allowed), allowed))
    return mlx_lm


def _fits_as_float32(model: Model) -> bool:
    from mlx_lm.utils import get_total_parameters

    wanted = 4 * int(get_total_parameters(model))
    free = available_bytes()
    if wanted > 0.9 * free:
        log.warning(
            "the model needs %.1f GB as float32 and %.1f GB are free: it stays as it "
            "is, which is slow on a CPU",
            wanted / 1e9,
            free / 1e9,
        )
    return wanted <= 0.9 * free


def _numbers(model: Any) -> str:  # noqa: ANN401 - an mlx module
    from mlx.utils import tree_flatten

    kinds = [str(array.dtype) for _, array in tree_flatten(model.parameters())]
    if any("uint" in kind for kind in kinds):
        return "quantised"
    return max(set(kinds), key=kinds.count).removeprefix("mlx.core.")


def cache_classes() -> tuple[Any, Any]:
    """Return mlx-lm's cache of all tokens and its cache of a sliding window."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    return KVCache, RotatingKVCache


def read_prompt(model: Model, tokens: int) -> float:
    """Have *model* read so many tokens as a batch does; return how many seconds."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    start = time.perf_counter()
    model(mx.arange(tokens)[None] % 100, cache=cache)
    # Only the caches: no logits are wanted before a prompt's end.
    mx.eval([layer.state for layer in cache])
    return time.perf_counter() - start


def kv_shape(model: Model, config: Mapping[str, Any]) -> KvShape:
    """Return what *model*'s caches take, as one token in them shows."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    model(mx.array([[0]]), cache=cache)
    per_token = 0
    windows: dict[int, int] = {}
    for layer in cache:
        keys = getattr(layer, "keys", None)
        rows = int(keys.shape[2]) if keys is not None else 1
        size = int(layer.nbytes) // rows
        window = getattr(layer, "max_size", None)
        if window:
            windows[int(window)] = windows.get(int(window), 0) + size
        else:
            per_token += size
    # On a CPU attention is not fused: one layer's scores exist in full, in float32.
    heads = _text_config(config).get("num_attention_heads", 0) if on_cpu() else 0
    return KvShape(per_token, tuple(sorted(windows.items())), 4 * int(heads))


def free_bytes() -> int:
    """Return how many bytes of memory are free for caches on the device in use."""
    import mlx.core as mx

    if on_cpu():
        return available_bytes()
    info = mx.device_info()
    most = info.get("max_recommended_working_set_size") or info.get("memory_size", 0)
    return max(0, int(most) - mx.get_active_memory())


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def count_logits(model: Model) -> int:
    """Return how many token ids *model* tells apart; padded ones included."""
    import mlx.core as mx

    return int(model(mx.array([[0]])).shape[-1])


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut to a readable length."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
