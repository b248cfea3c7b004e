"""The prefix store: the most that is kept, within its bytes, for its owner only."""

from __future__ import annotations

import logging
import threading
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.engine.mlx.prefix import Match, PrefixStore
from ofa.engine.mlx.snapshot import Snapshot

from .caches import TOKEN, caches, cold, numbers, prompt, read, told, warm

MANY = 1 << 30


def put(store, ids, owner="ann", *, kind="prompt", window=0, saved_s=1.0):
    """Have *store* keep *ids*."""
    layers = caches(ids, window=window)
    return store.put(ids, owner, layers, kind=kind, saved_s=saved_s)


# -- what is found -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llama"])
def test_a_hit_continues_as_a_cold_run_does(models, name):
    """From checkpoint to answer: the second turn reads only what is new."""
    model, ids = models[name], prompt(1, 120)
    store = PrefixStore(MANY)
    layers = read(model, ids[:90], step=64)
    assert store.put(ids[:90], "ann", layers, kind="history", saved_s=1.0)

    hit = store.take(ids, "ann")

    assert hit.tokens == 90
    assert warm(model, ids, (hit.tokens, hit.layers)) == [cold(model, ids)]


def test_the_longest_wins():
    """Of several beginnings, the one that leaves least to read."""
    store, ids = PrefixStore(MANY), numbers(1, 500)
    for tokens in (100, 300, 200):
        put(store, ids[:tokens], window=32, kind="history")
    put(store, [*ids[:350], 7], window=32)

    assert store.match(ids, "ann") == Match(300, "300 of 500 tokens")
    assert store.take(ids[:300], "ann").tokens == 200  # one token is left to read
    assert store.take(ids[:301], "ann").tokens == 300
    assert store.take(ids[:99], "ann") is None


def test_what_can_be_cut_back_serves_the_common_part():
    """Without windows, whatever two prompts share is not read twice."""
    store, ids = PrefixStore(MANY), numbers(1, 300)
    put(store, ids)

    hit = store.take([*ids[:150], 7, 8], "ann")
    same = store.take(ids, "ann")

    assert (hit.tokens, told(hit.layers)) == (150, [ids[:150]])
    assert (same.tokens, told(same.layers)) == (299, [ids[:299]])


@pytest.mark.parametrize("ids", [[], [5]])
def test_nothing_is_found_for_nothing(ids):
    """A token is always left to read, so one or none is a miss."""
    store = PrefixStore(MANY)
    put(store, [5, 6, 7])

    assert store.take(ids, "ann") is None
    assert store.match(ids, "ann").tokens == 0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (numbers(1, 80), "60 of 80 tokens"),
        (numbers(2, 80), "nothing that is kept begins like this"),
        (
            [*numbers(1, 50), 7],
            "the conversation differs from token 51 on, and what is kept can't be cut "
            "back to there",
        ),
        (
            numbers(1, 60),
            "what is kept leaves nothing of this prompt to read, and can't be cut back",
        ),
    ],
)
def test_a_reason_is_given_to_people(asked, reason):
    """Whoever wonders why it takes long is told."""
    store = PrefixStore(MANY)
    put(store, numbers(1, 60), window=32)

    assert store.match(asked, "ann").reason == reason
    assert store.match(asked, "bob").reason == "nothing is kept yet"


def test_what_had_to_go_is_told():
    """Evicted is another reason than never seen: the remedy is more memory."""
    store = PrefixStore(200 * TOKEN)
    put(store, numbers(1, 150))
    put(store, numbers(2, 150))

    asked = numbers(1, 160)
    assert store.match(asked, "ann").reason == (
        "nothing that is kept begins like this; 128 that were kept had to make room"
    )
    assert store.match(asked, "bob").reason == "nothing is kept yet"


# -- owners ------------------------------------------------------------------------


def test_nobody_hits_or_learns_of_another_ones_prompts():
    """Same tokens, other key: as if nothing were there."""
    store, ids = PrefixStore(MANY), numbers(1, 200)
    put(store, ids[:150], "ann")

    assert store.take(ids, "bob") is None
    assert store.match(ids, "bob") == PrefixStore(MANY).match(ids, "bob")
    assert put(store, ids[:150], "bob")  # nor that it is there already
    assert store.held().entries == 2


def test_the_servers_own_prefixes_serve_everybody():
    """A mode's system text is read once for all keys."""
    store, ids = PrefixStore(MANY), numbers(1, 200)
    put(store, ids[:100], "", kind="system", window=32)
    put(store, ids[:150], "ann", kind="history", window=32)

    assert store.take(ids, "bob").tokens == 100
    assert store.take(ids, "ann").tokens == 150
    assert not put(store, ids[:100], "bob", kind="system")
    assert store.take(ids, "").tokens == 100


# -- what is kept ------------------------------------------------------------------


def test_the_same_is_kept_once():
    """A prompt sent again refreshes what is there."""
    store, ids = PrefixStore(MANY), numbers(1, 100)

    assert put(store, ids, window=32)
    assert not put(store, ids, window=32, kind="answer")
    assert store.held().entries == 1


def test_what_a_longer_one_serves_is_not_kept():
    """Where caches can be cut back, one copy serves for all of its beginnings."""
    store, ids = PrefixStore(MANY), numbers(1, 100)

    assert put(store, ids[:50])
    assert put(store, ids)
    assert store.held().entries == 1
    assert not put(store, ids[:70])
    assert put(store, ids[:70], "", kind="system")  # others can't use ann's


def test_a_system_prefix_is_never_superseded():
    """It begins every new conversation, whatever follows it in one."""
    store, ids = PrefixStore(MANY), numbers(1, 100)
    put(store, ids[:20], kind="system")
    put(store, ids[:50])

    put(store, ids)

    assert store.held().entries == 2
    assert store.held().superseded == 1


@pytest.mark.parametrize(
    ("older", "newer", "goes_first"),
    [
        ("prompt", "answer", True),
        ("answer", "prompt", True),
        ("answer", "history", True),
        ("history", "history", True),
        ("history", "answer", False),
        ("system", "history", False),
    ],
)
def test_superseded_entries_go_first(older, newer, goes_first):
    """What a longer one of the conversation serves too makes room before others."""
    ids, other = numbers(1, 200), numbers(2, 100)
    size = 100 * TOKEN + 32 * TOKEN
    store = PrefixStore(4 * size)
    put(store, other, window=32, saved_s=0.001)  # the least worth
    put(store, ids[:100], window=32, kind=older)
    put(store, ids[:150], window=32, kind=newer)

    put(store, numbers(3, 100), window=32)

    gone = ids[:101] if goes_first else [*other, 7]
    assert store.take(gone, "ann") is None
    assert store.held().superseded == goes_first
    assert store.held().evicted == (not goes_first)


def test_somebody_elses_longer_prompt_supersedes_nothing():
    """Another owner's can't serve in its place."""
    ids = numbers(1, 200)
    store = PrefixStore(MANY)
    put(store, ids[:100], "ann")
    put(store, ids, "bob")
    put(store, ids, "")

    assert store.held().entries == 3
    assert store.take([*ids[:100], 7], "ann").tokens == 100


def test_a_superseded_entry_that_is_used_is_none():
    """Somebody who edits a turn goes on from there: it is current again."""
    size = 132 * TOKEN
    ids = numbers(1, 200)
    store = PrefixStore(4 * size)
    put(store, ids[:100], window=32)
    put(store, ids[:150], window=32, kind="answer")
    put(store, numbers(2, 100), window=32, saved_s=0.001)

    store.take(ids[:101], "ann")
    put(store, numbers(3, 100), window=32)

    assert store.take(ids[:101], "ann").tokens == 100
    assert store.take([*numbers(2, 100), 7], "ann") is None


# -- who goes ----------------------------------------------------------------------


def test_the_least_time_saved_per_byte_goes_first():
    """Not the oldest, not the largest: what costs least to read again."""
    store = PrefixStore(300 * TOKEN)
    put(store, numbers(1, 100), saved_s=5.0)
    put(store, numbers(2, 100), saved_s=1.0)
    put(store, numbers(3, 100), saved_s=3.0)

    put(store, numbers(4, 100), saved_s=2.0)

    left = [n for n in range(1, 5) if store.match([*numbers(n, 100), 7], "ann").tokens]
    assert left == [1, 3, 4]


def test_of_equal_worth_the_least_recently_used_goes():
    """A hit counts as use (mlx-lm's own cache is first in, first out)."""
    store = PrefixStore(300 * TOKEN)
    for n in (1, 2, 3):
        put(store, numbers(n, 100))
    store.take([*numbers(1, 100), 7], "ann")

    put(store, numbers(4, 100))

    left = [n for n in range(1, 5) if store.match([*numbers(n, 100), 7], "ann").tokens]
    assert left == [1, 3, 4]


def test_the_dear_one_that_nobody_uses_goes_in_the_end():
    """Worth ages: what is evicted raises the bar for what came before."""
    store = PrefixStore(300 * TOKEN)
    put(store, numbers(1, 100), saved_s=5.0)
    for n in range(2, 30):
        put(store, numbers(n, 100), saved_s=1.0)

    assert store.take([*numbers(1, 100), 7], "ann") is None


def test_a_dear_one_that_is_used_stays():
    """The same, with a hit now and then."""
    store = PrefixStore(300 * TOKEN)
    put(store, numbers(1, 100), saved_s=5.0)
    for n in range(2, 30):
        put(store, numbers(n, 100), saved_s=1.0)
        store.take([*numbers(1, 100), 7], "ann")

    assert store.take([*numbers(1, 100), 7], "ann").tokens == 100


def test_a_few_tokens_in_common_keep_nothing_alive():
    """The dear one again, met at its first token only, as all prompts begin alike."""
    store = PrefixStore(300 * TOKEN)
    put(store, [5, *numbers(1, 99)], saved_s=5.0)
    for n in range(2, 30):
        put(store, numbers(n, 100), saved_s=1.0)
        store.take([5, 6, 7], "ann")

    assert store.take([5, *numbers(1, 99), 7], "ann") is None


def test_a_few_tokens_in_common_do_no_harm():
    """A hit that saves little takes nothing from what a whole one would save."""
    store = PrefixStore(300 * TOKEN)
    put(store, [5, *numbers(1, 99)], saved_s=5.0)
    put(store, numbers(2, 100), saved_s=1.0)
    put(store, numbers(3, 100), saved_s=1.0)
    assert store.take([5, 6, 7], "ann").tokens == 1

    put(store, numbers(4, 100), saved_s=1.0)

    assert store.take([5, *numbers(1, 99), 7], "ann").tokens == 100


def test_lowering_the_limit_evicts_at_once():
    """Answers in flight need the memory now."""
    store = PrefixStore(MANY)
    for n in (1, 2, 3):
        put(store, numbers(n, 100))

    store.limit_bytes = 250 * TOKEN

    assert store.held().entries == 2
    assert store.held().nbytes == 200 * TOKEN <= store.limit_bytes
    store.limit_bytes = 0
    assert store.held().entries == store.held().nbytes == 0
    assert not put(store, numbers(4, 100))


def test_one_that_is_too_large_costs_no_other():
    """Larger than all that may be kept: refused before anything makes room."""
    store = PrefixStore(100 * TOKEN)
    put(store, numbers(1, 100))

    assert not put(store, numbers(2, 101))
    assert store.held().entries == 1
    assert store.held().refused == 1


def test_the_number_of_entries_is_bounded():
    """Buffers are scarce on Metal, however small."""
    store = PrefixStore(MANY, most=5)
    for n in range(20):
        assert put(store, numbers(n, 3))

    assert store.held().entries == 5


def test_clearing_leaves_nothing():
    """A model that is unloaded takes what was kept with it."""
    store = PrefixStore(MANY)
    put(store, numbers(1, 100))
    put(store, numbers(2, 100), "")

    store.clear()

    assert store.held().entries == store.held().nbytes == 0
    assert store.take(numbers(1, 100), "ann") is None
    assert store.match(numbers(1, 100), "ann").reason == "nothing is kept yet"


# -- what can go wrong -------------------------------------------------------------


def test_unknown_caches_are_not_kept_and_said_once(caplog):
    """A model of another kind works as before, without reuse."""
    from mlx_lm.models.cache import ArraysCache

    store = PrefixStore(MANY)
    with caplog.at_level(logging.INFO, "ofa.engine.mlx"):
        for seed in (1, 2, 3):
            layers = [ArraysCache(2)]
            kept = store.put(numbers(seed, 9), "ann", layers, kind="prompt", saved_s=1)
            assert not kept

    assert store.held().refused == 3
    assert caplog.text.count("a prefix is not kept") == 1
    assert "ArraysCache" in caplog.text


def test_reasons_do_not_fill_the_log(caplog):
    """With numbers in them no two are alike."""
    store = PrefixStore(MANY)
    with caplog.at_level(logging.INFO, "ofa.engine.mlx"):
        for tokens in range(1, 60):
            layers = caches(numbers(1, tokens + 1))
            store.put(numbers(1, tokens), "ann", layers, kind="answer", saved_s=1.0)
    store.close()  # with nothing to close

    assert store.held().refused == 59
    assert len(caplog.records) == 20


def test_caches_of_other_tokens_are_not_kept():
    """After a step that failed half way caches may be a token ahead."""
    store = PrefixStore(MANY)
    layers = caches(numbers(1, 11))

    assert not store.put(numbers(1, 10), "ann", layers, kind="answer", saved_s=1.0)
    assert store.held().nbytes == 0


def test_what_turns_out_useless_is_dropped_for_the_next_best(caplog):
    """A defect of ours must cost a request no more than some reading."""
    store, ids = PrefixStore(MANY), numbers(1, 200)
    put(store, ids[:50], window=32, kind="history")
    put(store, ids[:100], window=32)
    longest = next(e for e in vars(store)["_entries"] if len(e.packed) == 400)
    longest.snapshot = Snapshot.of(caches(ids[:90]))

    assert store.take(ids, "ann").tokens == 50
    assert store.held().entries == 1
    assert caplog.text.count("a kept prefix can't be used") == 1


def test_what_is_evicted_meanwhile_is_dropped_once():
    """Another thread lowers the limit just when an entry turns out useless."""
    store, ids = PrefixStore(MANY), numbers(1, 100)
    put(store, ids)

    class Leaving:
        """A snapshot that another thread evicts while it is restored."""

        trimmable, nbytes = True, 100 * TOKEN

        def restore(self, tokens):
            """Do what the other thread does, and fail."""
            store.limit_bytes = 0
            raise ValueError("no more")

    next(iter(vars(store)["_entries"])).snapshot = Leaving()

    assert store.take(ids, "ann") is None
    assert store.held().entries == store.held().nbytes == 0


def test_a_failure_to_take_memory_leaves_no_entry():
    """What could not be evaluated must not be found later."""
    store, made = PrefixStore(MANY), []
    # What another thread did not evaluate can't be evaluated here: streams are its own.
    thread = threading.Thread(target=lambda: made.append(caches(numbers(1, 10))))
    thread.start()
    thread.join()

    with pytest.raises(RuntimeError, match="Stream"):
        store.put(numbers(1, 10), "ann", made[0], kind="answer", saved_s=1.0)

    assert store.held().entries == store.held().nbytes == 0
    assert store.take(numbers(1, 11), "ann") is None


# -- all of it ---------------------------------------------------------------------

WINDOW = 8
# Pieces around the size of a block, so that prompts share and part at every place.
PIECES = tuple(
    [letter * 100 + n for n in range(size)]
    for letter, size in ((1, 3), (2, 61), (3, 64), (4, 66), (5, 1))
)
prompts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(
    lambda pieces: [token for piece in pieces for token in piece]
)
owners = st.sampled_from(["ann", "bob", ""])
kinds = st.sampled_from(["system", "history", "prompt", "answer"])
windows = st.sampled_from([0, WINDOW])  # a store is one model's
puts = st.tuples(st.just("put"), prompts, owners, kinds, st.floats(0, 9))
takes = st.tuples(st.just("take"), prompts, owners)
limits = st.tuples(st.just("limit"), st.integers(0, 6000))
steps = st.lists(st.one_of(puts, takes, limits), max_size=30)


def shared(one, other) -> int:
    """Return how many tokens two prompts begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def best(kept, window, ids, owner) -> int:
    """Return how many tokens of *ids* any of *kept* serves, by the rules."""
    served = [0]
    for tokens, whose in kept:
        alike = shared(tokens, ids)
        if whose in (owner, "") and (
            alike == len(tokens) < len(ids) or not window or len(tokens) < window
        ):
            served.append(min(alike, len(ids) - 1))
    return max(served)


def act(store, window, step):
    """Do one step that is not a search."""
    if step[0] == "put":
        _, ids, owner, kind, saved_s = step
        put(store, ids, owner, kind=kind, window=window, saved_s=saved_s)
    elif step[0] == "limit":
        store.limit_bytes = step[1]


@settings(deadline=None, max_examples=150)
@given(windows, steps)
def test_with_room_for_all_the_best_is_always_found(window, todo):
    """As a list of all that was ever kept would find it, token by token."""
    store, kept = PrefixStore(MANY), []
    for step in todo:
        if step[0] == "put":
            act(store, window, step)
            kept.append((step[1], step[2]))
        elif step[0] == "take":
            _, ids, owner = step
            match, hit = store.match(ids, owner), store.take(ids, owner)
            expected = best(kept, window, ids, owner)
            assert match.tokens == (hit.tokens if hit else 0) == expected
            if hit:
                whole, *windows = told(hit.layers)
                assert whole == ids[:expected]
                assert all(part == ids[:expected][-len(part) :] for part in windows)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 6000), windows, steps)
def test_the_budget_is_never_exceeded(limit, window, todo):
    """Whatever comes: within the limit, no more than ever kept, all of it right."""
    store, kept = PrefixStore(limit), []
    for step in todo:
        act(store, window, step)
        if step[0] == "put":
            kept.append((step[1], step[2]))
        elif step[0] == "take":
            _, ids, owner = step
            match, hit = store.match(ids, owner), store.take(ids, owner)
            assert (
                match.tokens
                == (hit.tokens if hit else 0)
                <= best(kept, window, ids, owner)
            )
            assert hit is None or told(hit.layers)[0] == ids[: hit.tokens]
        held = store.held()
        assert 0 <= held.nbytes <= max(0, store.limit_bytes)
        assert held.entries == len(vars(store)["_index"].__dict__["_links"])
        assert held.nbytes == sum(entry.nbytes for entry in vars(store)["_entries"])


@settings(deadline=None, max_examples=100)
@given(windows, steps, prompts)
def test_a_stranger_sees_what_is_everybodys_and_no_more(window, todo, ids):
    """Bob's match, reason and all, is as if Ann had never been there."""
    store, without = PrefixStore(MANY), PrefixStore(MANY)
    for step in todo:
        if step[0] == "put":
            act(store, window, step)
            if step[2] != "ann":
                act(without, window, step)

    assert store.match(ids, "bob") == without.match(ids, "bob")


def test_other_threads_may_ask_at_any_time():
    """Handlers ask how much is kept while the engine keeps, takes and evicts."""
    store, done, wrong = PrefixStore(900 * TOKEN), threading.Event(), []

    def ask():
        while not done.is_set():
            for n in range(8):
                tokens = store.match(numbers(n, 200), "ann").tokens
                held = store.held()
                if tokens not in (0, 199) or held.nbytes > 900 * TOKEN:
                    wrong.append((tokens, held))
            store.limit_bytes = 700 * TOKEN
            store.limit_bytes = 900 * TOKEN

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(200):
        put(store, numbers(n % 8, 200), saved_s=n % 5)
        store.take(numbers(n % 7, 200), "ann")
    done.set()
    for thread in threads:
        thread.join()

    assert wrong == []
