"""Snapshots of caches: small, unchanging, and as good as reading the prompt again."""

from __future__ import annotations

import random

import pytest

from ofa.engine.mlx.snapshot import Snapshot

from .caches import (
    checkpoints,
    cold,
    contents,
    make_generator,
    prompt,
    read,
    run,
    warm,
)

WINDOW = 32  # of the tiny Gemmas
STEPS = (16, 64, 2048)


def points(seed: int) -> list[tuple[int, list[int], int]]:
    """Return ten times (prompt length, five cuts, chunk), from 7 to 300 tokens.

    Of a long prompt, one cut is at the window's edge or one off: where an error would
    be.
    """
    draw = random.Random(seed)
    found = []
    for n in range(10):
        length = draw.randint(7, 300)
        cuts = set(draw.sample(range(1, length), 5))
        if length > WINDOW + 2:
            cuts.pop()
            cuts.add(WINDOW + draw.choice((-1, 0, 1)))
        while len(cuts) < 5:
            cuts.add(draw.randrange(1, length))
        found.append((length, sorted(cuts), STEPS[n % len(STEPS)]))
    return found


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("part", range(4))
def test_R043_going_on_from_a_snapshot_equals_a_cold_run(models, name, part):
    """E12: four times 50 cuts, below, at and far past the window: no token differs."""
    model, wrong = models[name], []

    for n, (length, cuts, step) in enumerate(points(seed=part)):
        ids = prompt(100 * part + n, length)
        rows = [
            (cut, Snapshot.of(layers, tokens=cut).restore())
            for cut, layers in checkpoints(model, ids, cuts, step=step)
        ]
        expected = cold(model, ids, step=step)
        for (cut, _), written in zip(rows, warm(model, ids, *rows), strict=True):
            if written != expected:
                wrong.append((length, cut, step))

    assert wrong == []


def test_the_cuts_are_those_that_matter():
    """200 in all, on both sides of the window, in chunks of every size."""
    chosen = [point for part in range(4) for point in points(seed=part)]
    cuts = [cut for _, some, _ in chosen for cut in some]

    assert len(cuts) == 200
    assert sum(cut < WINDOW for cut in cuts) > 20
    assert sum(abs(cut - WINDOW) <= 1 for cut in cuts) > 20
    assert sum(cut > 4 * WINDOW for cut in cuts) > 20
    assert {step for _, _, step in chosen} == set(STEPS)


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("cut", [WINDOW - 1, WINDOW, WINDOW + 1, 150])
def test_a_snapshot_serves_a_row_that_is_alone(models, name, cut):
    """A batch of one pads nothing, so its caches take another way through mlx-lm."""
    model, ids = models[name], prompt(cut, 200)
    snapshot = Snapshot.of(read(model, ids[:cut], step=64))

    assert warm(model, ids, (cut, snapshot.restore())) == [cold(model, ids)]


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_what_was_written_can_be_gone_on_from(models, name):
    """The end of an answer: the caches that a finished row leaves behind."""
    model, ids = models[name], prompt(5, 90)
    generator = make_generator(model)
    (uid,) = generator.insert([ids])
    done = None
    while done is None:
        done = next((row for row in generator.next()[1] if row.finish_reason), None)

    snapshot = Snapshot.of(done.prompt_cache, tokens=len(done.all_tokens))
    longer = [*done.all_tokens, *prompt(6, 40)]

    assert done.uid == uid
    assert snapshot.tokens == len(done.all_tokens) == 90 + 12
    went_on = warm(model, longer, (snapshot.tokens, snapshot.restore()))
    assert went_on == [cold(model, longer)]


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_shrinking_leaves_the_window_and_no_padding(models, name):
    """A long chunk leaves itself and a window in each layer; a window is kept."""
    layers = read(models[name], prompt(1, 290))
    before = sum(layer.nbytes for layer in layers)

    snapshot = Snapshot.of(layers)

    wide = [min(290, window) if window else 290 for window in snapshot.meta["windows"]]
    token = 2 * 16 * 4  # keys and values, head_dim, float32
    assert snapshot.nbytes == sum(wide) * token < 0.7 * before


def test_a_small_piece_does_not_hold_a_large_buffer():
    """What is counted is what is taken: a view on a big array would keep it whole."""
    import mlx.core as mx
    from mlx_lm.models.cache import RotatingKVCache

    def window():
        cache = RotatingKVCache(max_size=64)
        part = mx.random.normal((1, 1, 200_000, 16))
        cache.update_and_fetch(part, part)
        mx.eval(cache.state)
        return cache

    before = mx.get_active_memory()
    snapshot = Snapshot.of([window()])

    assert snapshot.nbytes == 2 * 64 * 16 * 4
    assert mx.get_active_memory() - before < snapshot.nbytes + 2 * 16384 + 1024


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llama"])
def test_nothing_writes_into_a_snapshot(models, name):
    """Caches assign into their arrays; those of a snapshot are nobody's else."""
    import mlx.core as mx

    model, ids = models[name], prompt(2, 120)
    snapshot = Snapshot.of(read(model, ids[:100]))
    before = contents(snapshot.restore())

    one, other = snapshot.restore(), snapshot.restore()
    for layers in (one, other):  # a token at a time writes in place, a batch copies
        for token in ids[100:]:
            model(mx.array([[token]]), cache=layers)
        mx.eval([layer.state for layer in layers])
    warm(model, ids, (100, snapshot.restore()))

    assert contents(snapshot.restore()) == before
    assert contents(one) == contents(other) != before


def test_the_source_may_go_on_without_changing_its_snapshot(models):
    """A row goes on after its checkpoint was taken, in the same buffers maybe."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    model, ids = models["gemma3"], prompt(3, 60)
    layers = make_prompt_cache(model)
    model(mx.array([ids]), cache=layers)
    snapshot = Snapshot.of(layers, tokens=60)
    before = contents(snapshot.restore())

    for token in prompt(4, 40):
        model(mx.array([[token]]), cache=layers)
    mx.eval([layer.state for layer in layers])

    assert contents(snapshot.restore()) == before


def test_a_ring_that_has_come_round_is_put_in_order(models):
    """A single sequence's window is written in a circle; its order is restored."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    model, ids = models["gemma3"], prompt(7, 130)
    layers = make_prompt_cache(model)
    model(mx.array([ids[:50]]), cache=layers)
    for token in ids[50:100]:
        model(mx.array([[token]]), cache=layers)

    snapshot = Snapshot.of(layers, tokens=100)

    assert warm(model, ids, (100, snapshot.restore())) == [cold(model, ids)]


def test_two_restored_rows_among_others_are_exact(models):
    """Rows with and without kept beginnings share a batch, joining one by one."""
    model = models["gemma3"]
    prompts = [prompt(seed, length) for seed, length in ((1, 80), (2, 25), (3, 200))]
    kept = Snapshot.of(read(model, prompts[0][:50]))
    expected = [cold(model, ids) for ids in (prompts[0], *prompts)]
    generator = make_generator(model)

    uids = []
    for ids, layers, tokens in (
        (prompts[0], kept.restore(), 50),
        (prompts[0], kept.restore(), 50),
        (prompts[1], None, 0),
        (prompts[2], None, 0),
    ):
        uids += generator.insert(
            [ids[tokens:]], caches=[layers], all_tokens=[ids[:tokens]]
        )
        generator.next()
    # The first steps' tokens went by unseen: compare what came after them.
    written = run(generator, uids)

    assert all(
        answer and whole[-len(answer) :] == answer
        for answer, whole in zip(written, expected, strict=True)
    )


@pytest.mark.parametrize("left", [1, 63, 64, 65, 149, 150])
def test_a_snapshot_without_windows_can_be_cut_back(models, left):
    """All layers see all tokens: any part of them from the beginning serves."""
    model, ids = models["llama"], prompt(8, 150)
    snapshot = Snapshot.of(read(model, ids))
    other = [*ids[:left], *prompt(9, 30)]

    assert snapshot.trimmable
    assert warm(model, other, (left, snapshot.restore(left))) == [cold(model, other)]


@pytest.mark.parametrize(
    ("tokens", "left", "possible"),
    [(31, 1, True), (31, 30, True), (32, 31, False), (90, 89, False), (90, 90, True)],
)
def test_a_full_window_can_not_be_cut_back(models, tokens, left, possible):
    """It has lost what came before: better no snapshot than a wrong one."""
    model, ids = models["gemma4"], prompt(10, tokens)
    snapshot = Snapshot.of(read(model, ids))
    other = [*ids[:left], *prompt(11, 50)]

    assert snapshot.trimmable == (tokens < WINDOW)
    if possible:
        answer = warm(model, other, (left, snapshot.restore(left)))
        assert answer == [cold(model, other)]
    else:
        with pytest.raises(ValueError, match="can't be cut back"):
            snapshot.restore(left)


@pytest.mark.parametrize("tokens", [-1, 0, 21])
def test_only_what_is_there_is_restored(models, tokens):
    """A count out of range is refused, not clipped."""
    snapshot = Snapshot.of(read(models["llama"], prompt(1, 20)))

    with pytest.raises(ValueError, match="of 20 tokens can't be restored"):
        snapshot.restore(tokens)


def unknown():
    """Caches of mlx-lm that keep something else, or the same otherwise."""
    import mlx.core as mx
    from mlx_lm.models import cache

    part = mx.ones((1, 1, 4, 64))

    def filled(made):
        made.update_and_fetch(part, part)
        return made

    class Own(cache.KVCache):
        """Nobody knows what a class of its own keeps beside."""

    return {
        "arrays": cache.ArraysCache(2),
        "list": cache.CacheList(filled(cache.KVCache())),
        "quantised": filled(cache.QuantizedKVCache()),
        "chunked": filled(cache.ChunkedKVCache(8)),
        "derived": filled(Own()),
        "sinks": filled(cache.RotatingKVCache(max_size=8, keep=4)),
        "empty": cache.KVCache(),
        "empty window": cache.RotatingKVCache(max_size=8),
        "batch": cache.BatchKVCache.merge([filled(cache.KVCache())]),
        "foreign": object(),
    }


@pytest.mark.parametrize("kind", list(unknown()))
def test_caches_of_other_kinds_are_refused(kind):
    """A guess at their contents would be wrong text one day."""
    with pytest.raises(ValueError, match=r"cache|window|shape"):
        Snapshot.of([unknown()[kind]])


def test_layers_that_disagree_are_refused(models):
    """Caches after an exception inside a step: one is a token ahead."""
    model = models["gemma3"]
    one, other = read(model, prompt(1, 50)), read(model, prompt(1, 51))

    with pytest.raises(ValueError, match="hold 50 and 51 tokens"):
        Snapshot.of([*one[:2], *other[2:]])
    with pytest.raises(ValueError, match="hold 50 and 51 tokens"):
        Snapshot.of(one, tokens=51)
    with pytest.raises(ValueError, match="hold no tokens"):
        Snapshot.of([])


def test_lost_tokens_are_noticed(models):
    """A cache that says more tokens than it holds, in any layer, is refused."""
    layers = read(models["gemma3"], prompt(1, 50))
    for layer in layers:
        layer.offset += 5

    with pytest.raises(ValueError, match="shape"):
        Snapshot.of(layers)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_arrays_and_facts_make_the_same_snapshot(models, kind):
    """The way to the disk and back: the same caches, to the bit."""
    import mlx.core as mx

    layers = read(models["gemma3"], prompt(1, 70))
    for layer in layers:
        layer.keys = layer.keys.astype(getattr(mx, kind))
        layer.values = layer.values.astype(getattr(mx, kind))
    snapshot = Snapshot.of(layers)

    again = Snapshot.from_arrays(snapshot.arrays(), snapshot.meta)

    assert contents(again.restore()) == contents(snapshot.restore())
    assert (again.tokens, again.nbytes) == (70, snapshot.nbytes)
    assert again.trimmable is snapshot.trimmable is False


SPOILT = {
    "one less": lambda arrays, meta: arrays.popitem(),
    "one more": lambda arrays, meta: arrays.update(other=arrays["0.keys"]),
    "shorter": lambda a, meta: a.update({"0.keys": a["0.keys"][:, :, 1:]}),
    "flat": lambda a, meta: a.update({"0.keys": a["0.keys"].reshape(-1)}),
    "two rows": lambda a, meta: a.update(
        {f"1.{part}": a[f"1.{part}"].reshape(2, 1, 35, 16) for part in PARTS}
    ),
    "other count": lambda arrays, meta: meta.update(tokens=71),
    "no count": lambda arrays, meta: meta.pop("tokens"),
    "text": lambda arrays, meta: meta.update(tokens="70"),
    "nothing": lambda arrays, meta: meta.update(tokens=0),
    "no windows": lambda arrays, meta: meta.update(windows=[]),
    "window of text": lambda arrays, meta: meta["windows"].__setitem__(0, "32"),
    "window below 0": lambda arrays, meta: meta["windows"].__setitem__(0, -1),
    "other window": lambda arrays, meta: meta["windows"].__setitem__(0, 33),
}
PARTS = ("keys", "values")


@pytest.mark.parametrize("spoil", list(SPOILT))
def test_arrays_and_facts_that_do_not_fit_are_refused(models, spoil):
    """A file may hold anything; caches that are a bit off would answer nonsense."""
    snapshot = Snapshot.of(read(models["gemma3"], prompt(1, 70)))
    arrays, meta = snapshot.arrays(), snapshot.meta
    Snapshot.from_arrays(arrays, meta)
    SPOILT[spoil](arrays, meta)

    with pytest.raises(ValueError, match=r"snapshot|shape"):
        Snapshot.from_arrays(arrays, meta)
