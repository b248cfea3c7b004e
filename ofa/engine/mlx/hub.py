"""
The model hub, for who names no model: is it there, and take the one model from it.

Asks one question with a short time-out, and none where HF_HUB_OFFLINE is set.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...errors import ConfigError

MODEL = "mlx-community/gemma-3-1b-it-4bit"
TITLE = "Gemma 3 1B instruct, 4 bits"
LICENCE = "Gemma Terms of Use, https://ai.google.dev/gemma/terms"

# What mlx-lm reads of a repository; the first three are there when all are.
_NEEDED = ("config.json", "tokenizer.json", "model.safetensors")
_FILES = ["*.json", "model*.safetensors", "*.jinja", "tokenizer.model", "*.txt"]

_T = TypeVar("_T")

log = logging.getLogger("ofa.hub")


class Hub:
    """The hub that huggingface_hub is configured for (HF_ENDPOINT, HF_HOME …)."""

    timeout_s = 3.0

    def find_kept(self) -> Path | None:
        """Return the model's folder where an earlier start has kept it."""
        from huggingface_hub import try_to_load_from_cache

        paths = [try_to_load_from_cache(MODEL, name) for name in _NEEDED]
        found = [Path(path) for path in paths if isinstance(path, str)]
        return found[0].parent if len(found) == len(paths) else None

    def find_revision(self) -> str:
        """
        Return the model's current revision, or "" where no hub can be reached.

        The time-out holds whatever hangs: on a node without a way out, that is often
        the name server, which no HTTP client's own time-out covers.
        """

        def ask() -> str:
            from huggingface_hub import model_info

            return str(model_info(MODEL, timeout=self.timeout_s).sha or "")

        revision = _call(ask, self.timeout_s)
        if isinstance(revision, str):
            return revision
        log.info("the model hub can't be reached: %s", type(revision).__name__)
        return ""

    def take(self, revision: str) -> Path:
        """Download the model, with the client's own progress bar; return its folder."""

        def download() -> Path:
            from huggingface_hub import snapshot_download

            return Path(
                snapshot_download(MODEL, revision=revision, allow_patterns=_FILES)
            )

        folder = _call(download, None)
        if isinstance(folder, Path):
            return folder
        raise ConfigError(f"{MODEL} can't be had from the hub: {folder}")


def _call(job: Callable[[], _T], timeout_s: float | None) -> _T | Exception:
    """
    Return what *job* returns or raises, or a TimeoutError: it then goes on alone.

    A thread, and all exceptions: the hub's client lets through those of every library
    below it.
    """
    answer: list[_T | Exception] = [TimeoutError()]

    def run() -> None:
        try:
            answer.append(job())
        except Exception as exc:  # noqa: BLE001 - the thread's hand-over
            answer.append(exc)

    thread = threading.Thread(target=run, name="ofa-hub", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answer[-1]
