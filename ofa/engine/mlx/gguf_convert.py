"""Turn a GGUF file into a folder that mlx-lm loads, and recognise one that is whole."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .gguf_file import GgufFile
from .gguf_tokenizer import end_ids, write_tokenizer
from .gguf_weights import Progress, Weights, write_safetensors

CONVERTER = 1  # raise it when the output changes: old folders are then made anew
PROVENANCE = "provenance.json"


def convert(
    gguf_path: Path,
    folder: Path,
    *,
    scratch: Path,
    provenance: Mapping[str, Any],
    dtype: str = "float32",
    progress: Progress | None = None,
) -> None:
    """
    Write *folder* for mlx-lm from *gguf_path*; *progress* counts weights written.

    It is written in *scratch*, on the same file system as *folder*, and renamed: it
    appears whole or not at all. *provenance*, with an "identity", is kept in it with
    the sizes of what was written, so that `is_complete` can tell whole from damaged.
    float32 is exactly what the GGUF says, and loads three times faster on a CPU.
    """
    written = scratch / "converted"
    shutil.rmtree(written, ignore_errors=True)  # of a start that was killed
    written.mkdir(mode=0o700)
    _write(gguf_path, written, dtype=dtype, progress=progress)
    _seal(written, {**provenance, "converter": CONVERTER, "dtype": dtype})
    with contextlib.suppress(FileNotFoundError):  # damaged, or another converter's
        folder.rename(scratch / "replaced")
    written.rename(folder)


def is_complete(folder: Path, identity: str) -> bool:
    """Whether *folder* holds all that this converter made of the GGUF of *identity*.

    Sizes are compared, not contents: this runs at every start.
    """
    try:
        sealed = json.loads((folder / PROVENANCE).read_text("utf-8"))
        return (
            sealed["identity"] == identity
            and sealed["converter"] == CONVERTER
            and all(
                (folder / name).stat().st_size == size
                for name, size in sealed["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write(
    gguf_path: Path, folder: Path, *, dtype: str, progress: Progress | None
) -> None:
    file = GgufFile(gguf_path)
    weights = Weights(file)
    ends = end_ids(file)
    config = weights.config() | {"eos_token_id": ends, "torch_dtype": dtype}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": ends})
    write_tokenizer(file, folder, architecture=weights.name)
    write_safetensors(
        weights, folder / "model.safetensors", dtype=dtype, progress=progress
    )


def _seal(folder: Path, provenance: dict[str, Any]) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    _write_json(folder / PROVENANCE, provenance | {"files": sizes})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
