"""
How much memory the caches of running answers may take, and what fits into it.

Out of memory is no exception on Metal and on a CPU: the process is gone. So what an
answer will need is counted before it starts. A batch pads: in layers that see the
whole context each row takes as much as the longest (measured: 7.9 times the sum of one
long row and seven short ones), and up to 256 tokens more that are not written yet.
Layers with a sliding window hold at most the window, and while a prompt is read a chunk
more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError

GiB = 1 << 30
_STEP = 256  # mlx-lm's caches grow by so many tokens, from wherever a prompt ended
WHOLE_CHUNK = 2048  # tokens prefilled in one go where nobody waits for the next
_SMALL_CHUNK = 512
_SHARE = 0.8  # of what is free: other programs, and buffers of our own, need some too


@dataclass(frozen=True)
class KvShape:
    """What a model's caches take, and what reading a prompt takes beside them."""

    per_token: int  # bytes a token, in all layers that see the whole context
    windows: tuple[tuple[int, int], ...] = ()  # (tokens, bytes a token) of the others
    scratch_per_pair: int = 0  # bytes for each token read, times each token before it

    def batch_bytes(self, lengths: Sequence[int], chunk: int = 0) -> int:
        """
        Return what rows of *lengths* tokens take together, prompts and answers.

        *chunk* is how many tokens of one more prompt are read in one piece.
        """
        if not lengths:
            return 0
        longest = max(lengths) + _STEP
        whole = len(lengths) * longest * self.per_token
        windows = sum(
            (len(lengths) * min(longest, tokens) + min(longest, chunk)) * size
            for tokens, size in self.windows
        )
        return whole + windows + chunk * longest * self.scratch_per_pair

    def longest(self, total: int, chunk: int) -> int:
        """Return how many tokens one row may have within *total* bytes."""
        low, high = 0, 1 << 24
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.batch_bytes([middle], chunk) <= total
            low, high = (middle, high) if fits else (low, middle - 1)
        return low // _STEP * _STEP


@dataclass(frozen=True)
class Room:
    """The bytes there are for caches, of running answers and of kept beginnings."""

    shape: KvShape
    total: int
    kept: int  # of them, the most that kept beginnings may take
    chunk: int  # the most tokens of a prompt that are read in one piece

    def left_for_kept(self, lengths: Sequence[int]) -> int:
        """Return what is left for kept beginnings beside rows of *lengths*; negative
        if not even the rows fit."""
        free = self.total - self.shape.batch_bytes(lengths, self.chunk)
        return min(self.kept, free)


def make_room(
    shape: KvShape, free: int, *, asked_gib: float = 0.0, kept_gib: float | None = None
) -> Room:
    """
    Return the room for a model whose weights are in memory, with *free* bytes left.

    *asked_gib* is what the site allows, 0 for most of what is free; *kept_gib* is the
    share of kept beginnings, None for a quarter. Raises `ConfigError` where more is
    allowed than there is: whoever used it would be killed.
    """
    if asked_gib * GiB > free:
        raise ConfigError(
            f"engine.memory_gib: {asked_gib:g} GiB are wanted for answers and kept "
            f"prompts, and beside the model's weights {free / GiB:.2f} GiB are free: "
            "name less, or 0 for most of that"
        )
    total = int(asked_gib * GiB) if asked_gib else int(free * _SHARE)
    kept = total // 4 if kept_gib is None else int(kept_gib * GiB)
    # Where attention is not fused, a long chunk over a long context takes gigabytes.
    chunk = _SMALL_CHUNK if shape.scratch_per_pair else WHOLE_CHUNK
    return Room(shape, total, min(kept, total), chunk)


def on_cpu() -> bool:
    """Return whether MLX works on the processor, in its memory, and not on a GPU."""
    import mlx.core as mx

    return bool(mx.default_device() == mx.Device(mx.cpu))


def available_bytes() -> int:
    """Return how much memory this process may still take, as the system tells it:
    the machine's free memory, or what is left in its control group if that is less."""
    return min(_free_bytes(), *_left_in_groups(Path("/sys/fs/cgroup")))


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))


def _left_in_groups(root: Path) -> list[int]:
    """Return what is left under the limits of our control groups; Slurm sets such."""
    left = [1 << 62]
    try:
        line = Path("/proc/self/cgroup").read_text("ascii").strip().splitlines()[-1]
    except (OSError, IndexError):
        return left
    group = root / line.rpartition(":")[2].lstrip("/")
    for folder in (group, *group.parents):
        try:
            limit = (folder / "memory.max").read_text("ascii").strip()
            used = int((folder / "memory.current").read_text("ascii"))
            cached = _field(folder / "memory.stat", "inactive_file")
            if limit != "max":
                left.append(max(0, int(limit) - used + cached))
        except (OSError, ValueError):
            continue
    return left


def _field(path: Path, name: str) -> int:
    for line in path.read_text("ascii").splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0
