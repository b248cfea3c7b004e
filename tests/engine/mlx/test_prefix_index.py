"""Finding beginnings: by hashes, decided by tokens, in linear time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.engine.mlx import prefix_index
from ofa.engine.mlx.prefix_index import Chain, Ends, Index, common, count, pack, width


@dataclass(eq=False)
class Thing:
    """An entry with nothing in it."""

    ids: list[int]
    owner: str = "ann"
    trimmable: bool = False

    @property
    def packed(self):
        """Its tokens."""
        return pack(self.ids)


ids = st.lists(st.integers(0, 2**32 - 1), max_size=300)


@given(ids)
def test_packing_loses_nothing(some):
    """What is packed is what was there, in as many bytes as is said."""
    packed = pack(some)

    assert list(memoryview(packed).cast("I")) == some
    assert width(len(some)) == len(packed)
    assert count(packed) == len(some)


@given(ids, ids, ids)
def test_common_counts_the_tokens_both_begin_with(shared, one, other):
    """At any place and of any length, a byte of a token counts for nothing."""
    one, other = shared + one, shared + other
    expected = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        expected += 1

    assert common(pack(one), pack(other)) == expected


@pytest.mark.parametrize("tokens", [0, 1, 63, 64, 65, 127, 128, 1000])
def test_a_chain_has_a_link_a_whole_block_and_one(tokens):
    """Each link tells all blocks before it: a change changes all that follow."""
    some = list(range(tokens))
    links = list(Chain(pack(some)))
    changed = list(Chain(pack([9, *some[1:]]))) if tokens else links

    assert len(links) == len(set(links)) == tokens // 64 + 1
    assert links[0] == changed[0] == b""
    assert not set(links[1:]) & set(changed[1:])


class Blind(Chain):
    """A chain to which all blocks look alike."""

    @staticmethod
    def link(before, block):
        """Return as many letters as there were blocks."""
        return before + b"x"


@pytest.mark.parametrize("trimmable", [False, True])
def test_the_tokens_decide_and_not_the_hash(trimmable):
    """Even if every block had the same hash, nobody would get another's caches."""
    index = Index(Blind)
    index.add(Thing([1] * 100, trimmable=trimmable))
    index.add(Thing([2] * 90, trimmable=trimmable))

    found = index.find(Blind(pack([1] * 70 + [2] * 70)), "ann")
    other = index.find(Blind(pack([2] * 100)), "ann")

    assert found.tokens == (70 if trimmable else 0)
    assert other.tokens == 90
    assert [len(e.ids) for e in index.holders(Blind(pack([2] * 80)), "ann")] == [90]
    assert index.beginnings(Blind(pack([3] * 200)), "ann") == []


def test_what_is_discarded_leaves_nothing():
    """Nodes and shelves go with their last entry: a server runs for weeks."""
    index = Index()
    things = [Thing([1] * n, owner) for n in (10, 64, 200) for owner in ("ann", "")]
    for thing in things:
        index.add(thing)
    for thing in things:
        index.discard(thing)
        index.discard(thing)  # once too often does no harm

    assert index.find(Chain(pack([1] * 300)), "ann") == prefix_index.Found()
    assert not vars(index)["_shelves"]
    assert not vars(index)["_links"]


def test_ends_remember_the_last_ones():
    """Why something is not there is told for a while, to its owner."""
    ends = Ends(most=2)
    for tokens in (64, 130, 200):
        ends.add(Thing([1] * tokens))
    ends.add(Thing([2] * 63))  # not a block: nothing to know it by
    chain = Chain(pack([1] * 500))

    assert ends.longest(chain, "ann") == 192
    assert ends.longest(chain, "bob") == 0
    assert ends.longest(Chain(pack([1] * 150)), "ann") == 128
    assert ends.longest(Chain(pack([1] * 100)), "ann") == 0  # the first is forgotten


def seconds(tokens: int, entries: int) -> float:
    """Return what a search costs that walks through all of a prompt, at best."""
    some = [n % 50_000 for n in range(tokens)]
    index = Index()
    for n in range(entries):  # each shares almost all of it; the worst case
        index.add(Thing([*some[: tokens - 64 * n - 1], 7], trimmable=n % 2 == 0))
    best = 9.0
    for _ in range(5):
        start = time.process_time()
        index.find(Chain(pack(some)), "ann")
        best = min(best, time.process_time() - start)
    return best


def test_a_search_is_linear_in_the_prompt():
    """Eight times the tokens, about eight times the work (mlx-lm's trie: 64 times)."""
    short, long = seconds(16_384, 16), seconds(131_072, 16)

    assert long < 0.1  # 5 ms on two slow cores; a busy machine may take its time
    assert long < 20 * max(short, 0.0005)


def test_a_search_stops_where_nothing_is_kept():
    """A long prompt that is new is not hashed to its end."""
    index = Index()
    index.add(Thing([1] * 1000))
    chain = Chain(pack([2] * 100_000))

    index.find(chain, "ann")

    assert len(vars(chain)["_links"]) == 2
