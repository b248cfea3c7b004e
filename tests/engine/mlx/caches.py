"""Caches of tiny models as the batch generator makes them, and what follows on them."""

from __future__ import annotations

import random
from itertools import pairwise

TOKEN = 8  # bytes of a token in `caches`: one key, one value, float32
ANSWER = 12  # tokens: past what one right guess would give


def prompt(seed: int, tokens: int) -> list[int]:
    """Return so many ids, none of which ends an answer."""
    draw = random.Random(seed)
    return [draw.randrange(180, 640) for _ in range(tokens)]


def make_generator(model, *, step: int = 2048):
    """Return a batch generator that reads prompts in chunks of *step*."""
    from mlx_lm.generate import BatchGenerator

    return BatchGenerator(model, max_tokens=ANSWER, prefill_step_size=step)


def run(generator, uids) -> list[list[int]]:
    """Return what follows in each row, once all of them are done."""
    written = {uid: [] for uid in uids}
    left = set(uids)
    while left:
        for row in generator.next()[1]:
            written[row.uid].append(row.token)
            if row.finish_reason:
                left.discard(row.uid)
    return [written[uid] for uid in uids]


def read(model, ids, *, step: int = 2048) -> list[object]:
    """Return the caches that hold all of *ids*, as extracted at a segment's end."""
    return dict(checkpoints(model, [*ids, 1], [len(ids)], step=step))[len(ids)]


def checkpoints(model, ids, cuts, *, step: int = 2048):
    """Yield (tokens, caches) at each of *cuts* while *ids* are read."""
    generator = make_generator(model, step=step)
    edges = [0, *sorted(cuts), len(ids)]
    segments = [list(ids[start:end]) for start, end in pairwise(edges)]
    (uid,) = generator.insert_segments([segments])
    left = sorted(cuts)
    while left:
        progress, _ = generator.next()
        if progress[0].end_of_segment:
            layers, tokens = generator.extract_cache([uid])[uid]
            assert list(tokens) == list(ids[: left[0]])
            yield left.pop(0), layers


def cold(model, ids, *, step: int = 2048) -> list[int]:
    """Return what *model* answers to *ids* with nothing kept."""
    generator = make_generator(model, step=step)
    return run(generator, generator.insert([list(ids)]))[0]


def warm(model, ids, *rows) -> list[list[int]]:
    """Return the answers to *ids* of a batch of (tokens, caches that hold so many)."""
    generator = make_generator(model)
    uids = generator.insert(
        [list(ids[tokens:]) for tokens, _ in rows],
        caches=[layers for _, layers in rows],
        all_tokens=[list(ids[:tokens]) for tokens, _ in rows],
    )
    return run(generator, uids)


def contents(layers) -> list[object]:
    """Return all that *layers* hold, as numbers to compare."""
    return [
        [part.tolist() if hasattr(part, "tolist") else part for part in layer.state]
        for layer in layers
    ]


def caches(ids, *, window: int = 0, width: int = 1):
    """Return the caches of a model that remembers tokens as they are.

    One layer sees all of them, another one the last *window* if that is not 0; each
    says it *width* times.
    """
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    made = [KVCache()] + ([RotatingKVCache(max_size=window)] if window else [])
    part = mx.array(ids, dtype=mx.float32).reshape(1, 1, -1, 1)
    part = mx.repeat(part, width, axis=3)
    for cache in made:
        cache.update_and_fetch(part, -part)
    return made


def told(layers):
    """Return the tokens that each of *layers* remembers."""
    found = []
    for layer in layers:
        size = layer.state[5] if len(layer.state) == 6 else layer.offset
        keys, values = layer.keys[0, 0, :size, 0], layer.values[0, 0, :size, 0]
        assert keys.tolist() == (-values).tolist()
        found.append([int(key) for key in keys.tolist()])
    return found


def numbers(seed: int, tokens: int) -> list[int]:
    """Return ids that no other seed has at any place."""
    return [seed * 1000 + n for n in range(tokens)]
