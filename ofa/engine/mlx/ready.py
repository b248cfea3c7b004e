"""What is known of a loaded model and usable from every thread."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ..text import Markers
from .grammar import Grammars
from .lm import Loaded, context_of, count_logits, free_bytes, kv_shape, read_prompt
from .memory import GiB, Room, make_room
from .prefix import PrefixStore
from .prefix_disk import PrefixDisk
from .speed import Speed
from .template import Prompts
from .vocabulary import Vocabulary

_WARM_UP_S = 2.0


@dataclass(frozen=True)
class Ready:
    """A model's words, limits and kept beginnings; outlives its weights."""

    prompts: Prompts
    vocabulary: Vocabulary
    thinking: Markers | None  # where the model has tokens for them
    silent: frozenset[int]  # control tokens that no reader of the text has a use for
    marked: frozenset[int]  # the others, which are told from the same characters
    ends: frozenset[int]
    context_tokens: int
    logits: int  # how many token ids the model tells apart
    kind: str  # the model's type and numbers, for people
    room: Room
    store: PrefixStore
    grammars: Grammars


@dataclass(frozen=True)
class Wish:
    """What a site asks of a model's memory; zeros and None leave it to us."""

    context_tokens: int = 0
    memory_gib: float = 0.0
    kept_gib: float | None = None  # for beginnings of prompts
    disk: Path | None = None  # where they outlive the process, if anywhere
    disk_gib: float = 10.0
    tool_format: str = "auto"


def prepare(loaded: Loaded, wish: Wish) -> Ready:
    """
    Return what is known of *loaded*; called on the thread that loaded it.

    Raises `ConfigError`, with the arithmetic, if the context asked for can't fit.
    """
    vocabulary = Vocabulary(loaded.tokenizer)
    prompts = Prompts(loaded.tokenizer, vocabulary, wish.tool_format)
    family, ids = prompts.family, vocabulary.ids
    marks = family.thinking
    shape = kv_shape(loaded.model, loaded.config)
    room = make_room(
        shape, free_bytes(), asked_gib=wish.memory_gib, kept_gib=wish.kept_gib
    )
    # "<think>" in plain letters is no thought of a model that has no such token.
    thinking = marks if marks and {marks.open, marks.close} <= ids.keys() else None
    ends = loaded.ends | {ids[token] for token in family.ends}
    logits = count_logits(loaded.model)
    control = frozenset(vocabulary.control.values())
    marked = frozenset(ids[token] for token in family.shown if token in ids) & control
    return Ready(
        prompts=prompts,
        vocabulary=vocabulary,
        thinking=thinking,
        silent=control - marked,
        marked=marked,
        ends=ends,
        context_tokens=_context(room, context_of(loaded.config), wish.context_tokens),
        logits=logits,
        kind=f"{loaded.config.get('model_type', 'unknown type')}, {loaded.numbers}",
        room=room,
        store=PrefixStore(room.kept, disk=_disk(loaded, wish)),
        grammars=Grammars(vocabulary, logits=logits, ends=ends, thinking=thinking),
    )


def _disk(loaded: Loaded, wish: Wish) -> PrefixDisk | None:
    if wish.disk is None or not loaded.fingerprint:
        return None
    identity = f"{loaded.fingerprint} {loaded.numbers}"
    return PrefixDisk(wish.disk, int(wish.disk_gib * GiB), identity)


def _context(room: Room, native: int, asked: int) -> int:
    """Return the context: what was asked for, else the model's own, if it fits."""
    fits = room.shape.longest(room.total, room.chunk)
    # Beyond what it was trained for a model talks nonsense, slowly.
    wanted = min(asked or native, native)
    if wanted <= fits:
        return wanted
    if asked or not fits:
        needed = room.shape.batch_bytes([wanted], room.chunk)
        raise ConfigError(
            f"engine.context_tokens: an answer with a context of {wanted} tokens needs "
            f"{needed / GiB:.2f} GiB beside the model's weights, and there are "
            f"{room.total / GiB:.2f} GiB for answers ([engine] memory_gib): at most "
            f"{fits} tokens fit"
        )
    return fits


def warm_up(loaded: Loaded, speed: Speed) -> None:
    """
    Read growing prompts for about two seconds, to know how fast that goes.

    The first ones pay for kernels and buffers and are too short to count.
    """
    until = time.monotonic() + _WARM_UP_S
    for tokens in (16, 32, 64, 128, 256, 512):
        speed.add(tokens, read_prompt(loaded.model, tokens))
        if speed.per_s and time.monotonic() > until:
            return
