"""Stop strings and thoughts, cut at every place."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.chat import Text, Thought
from ofa.engine.text import CHANNEL, THINK, Channels, StopStrings


def stopped(pieces, stops):
    """Return what comes out of *pieces*, and whether a stop ended it."""
    machine = StopStrings(stops)
    out = "".join(map(machine.feed, pieces))
    return out + machine.flush(), machine.done


def reference(text, stops):
    """Say it slowly: the first prefix of *text* that ends with a stop is cut there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def split(pieces, markers, **how):
    """Return (answer, reasoning) of a text that came in *pieces*."""
    machine = Channels(markers, **how)
    out = [part for piece in pieces for part in machine.feed(piece)]
    out += machine.flush()
    assert all(part.text for part in out)
    return (
        "".join(part.text for part in out if isinstance(part, Text)),
        "".join(part.text for part in out if isinstance(part, Thought)),
    )


def cut(text, places):
    """Return *text* cut at *places*."""
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[start:end] for start, end in pairwise(edges)]


texts = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", max_size=6), max_size=4)
places = st.lists(st.integers(0, 80), max_size=12)


@given(texts, stop_lists, places)
def test_stop_strings_do_not_depend_on_the_cut(text, stops, places):
    """Any cut gives what the slow definition gives on the whole text."""
    assert stopped(cut(text, places), stops) == reference(text, stops)


@given(texts, stop_lists)
def test_stop_strings_hold_back_no_more_than_needed(text, stops):
    """What is held could still become a stop; anything else has gone out."""
    machine = StopStrings(stops)
    out = "".join(map(machine.feed, text))

    held = machine.flush()

    assert machine.done or out + held == text
    assert not held or any(stop.startswith(held) for stop in stops)


def test_R017_stop_across_chunks():
    """A stop cut at any two places is seen and no half of it gets out."""
    text, stop = "the quick brown fox jumps", "own fox"
    for first in range(len(text)):
        for second in range(first, len(text)):
            pieces = (text[:first], text[first:second], text[second:])
            assert stopped(pieces, [stop]) == ("the quick br", True)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("STOPnow", ["STOP"], ""),
        ("abcd", ["abcd", "bc"], "a"),  # the first to complete ends the answer
        ("xabc", ["c", "abc"], "x"),  # of two completed at once the longest counts
        ("aaab", ["aab"], "a"),
        ("caf\u00e9\U0001f600x", ["\U0001f600"], "caf\u00e9"),
        ("plain", ["", ""], "plain"),
        ("almost STO", ["STOP"], "almost STO"),
    ],
)
def test_stop_strings_by_hand(text, stops, expected):
    """Overlapping, nested, empty and unfinished stops."""
    assert stopped([text], stops)[0] == expected
    assert stopped(text, stops)[0] == expected


def test_stop_strings_are_linear():
    """Long, self-similar stops over a long text need no more than a moment."""
    stops = ["a" * 1000 + end for end in "wxyz"]

    assert stopped(["a" * 50_000], stops) == ("a" * 50_000, False)


R035 = "<|channel>thought\nsimple sum\n<channel|>4"


@pytest.mark.parametrize("size", range(1, len(R035) + 1))
def test_R035_channel_markers_never_reach_the_answer(size):
    """The answer is "4" for every size of chunk."""
    pieces = [R035[at : at + size] for at in range(0, len(R035), size)]

    assert split(pieces, CHANNEL) == ("4", "simple sum\n")


@pytest.mark.parametrize(
    ("markers", "text", "expected"),
    [
        (CHANNEL, "<|channel>thought\n<channel|>4", ("4", "")),
        (CHANNEL, "<|channel>final\nfour<channel|>", ("four", "")),
        (CHANNEL, "<|channel>answer\nfour", ("four", "")),
        (CHANNEL, "<|channel>analysis\nhm", ("", "hm")),
        (CHANNEL, "<|channel>thought\nhm<|channel>final\nfour", ("four", "hm")),
        (CHANNEL, "four<channel|>", ("four", "")),
        (CHANNEL, "<|channel>tho", ("", "")),
        (CHANNEL, "a <|chan", ("a <|chan", "")),
        (CHANNEL, "a <|channel b", ("a <|channel b", "")),
        (CHANNEL, "x <|channel>thought\ny<channel|> z", ("x  z", "y")),
        (THINK, "<think>\nhm\n</think>\n\nfour", ("four", "hm\n")),
        (THINK, "<think>\n\n</think>\n\nfour", ("four", "")),
        (THINK, "<think>cut by the limit", ("", "cut by the limit")),
        (THINK, "1 < 2 </th> <b>", ("1 < 2 </th> <b>", "")),
        (None, "<think>as it is</think>", ("<think>as it is</think>", "")),
    ],
)
def test_channels_by_hand(markers, text, expected):
    """Labels, empty and unfinished thoughts, text that only looks like a marker."""
    assert split([text], markers) == expected
    assert split(text, markers) == expected


def test_thought_opened_by_the_prompt():
    """Where the template opened the thought, only its end shows in the text."""
    assert split(["hm</th", "ink>four"], THINK, thinking=True) == ("four", "hm")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 200])
@pytest.mark.parametrize(
    ("markers", "thinking", "text", "thought"),
    [
        (CHANNEL, False, '{"a":"<|channel>x<channel|>"}', ""),
        (CHANNEL, False, '<|channel>thought\nhm<channel|>{"a":"<|channel>"}', "hm"),
        (THINK, True, 'hm</think>\n{"a":"</think>"}', "hm"),
        (None, False, '{"a":"<|channel>"}', ""),
    ],
)
def test_a_final_answer_keeps_markers_in_it(size, markers, thinking, text, thought):
    """What a schema holds may have a marker's letters in a string, at any cut."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]

    found = split(pieces, markers, thinking=thinking, final=True)

    assert found == (text[text.index("{") :], thought)


fragments = st.lists(
    st.sampled_from(
        ["<|channel>", "<channel|>", "<think>", "</think>", "thought\n", "final\n",
         "<", "|", "a", " ", "\n", "<|chan", "nel>", "\U0001f600", "x" * 40]
    ),
    max_size=12,
)  # fmt: skip


@given(
    fragments,
    places,
    st.sampled_from([CHANNEL, THINK, None]),
    st.booleans(),
    st.booleans(),
)
def test_channels_do_not_depend_on_the_cut(fragments, places, markers, thinking, final):
    """Any cut gives what the whole text gives in one piece."""
    text = "".join(fragments)
    how = {"thinking": thinking, "final": final}

    whole = split([text], markers, **how)

    assert split(cut(text, places), markers, **how) == whole
