"""An answer that says the same over and over ends; one that does not goes on."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Chat, End, Message, Sampling, Text, gather
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.repetition import Repetition, _period

from .scripts import scripted
from .test_engine_tools import chat


@pytest.fixture(scope="module")
def short(folders):
    """An engine that ends answers after 64 tokens of one piece."""
    made = MlxEngine(folders["gemma3"], Settings(repeated_tokens=64))
    made.wait(100)
    yield made
    made.close()


def looped(tokens, repeated):
    """Return at which of *tokens* a repetition is found; None if at none."""
    repetition = Repetition(repeated)
    for place, token in enumerate(tokens, 1):
        if repetition.feed(token):
            return place
    return None


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
@settings(max_examples=500, deadline=None)
def test_a_period_is_the_least(tokens):
    """The same as by trying each."""
    least = next(
        p
        for p in range(1, len(tokens) + 1)
        if all(a == b for a, b in zip(tokens, tokens[p:], strict=False))
    )

    assert _period(tokens) == least


@pytest.mark.parametrize("piece", [[7], [1, 2], [1, 1, 2], list(range(256))])
def test_one_piece_over_and_over_is_found(piece):
    """However long it is up to a quarter, behind whatever was said before."""
    before = list(range(1000, 1700))
    tokens = before + piece * (2000 // len(piece))

    place = looped(tokens, 1024)

    assert place is not None
    assert 1024 <= place - len(before) < 1024 + 64


@pytest.mark.parametrize(
    "tokens",
    [
        [7] * 1023,
        list(range(257)) * 6,  # less than four times in 1,024
        [token for n in range(600) for token in (1, 2, n)],  # a numbered list
        [1, 2, 3, 4] * 200 + [5] + [1, 2, 3, 4] * 200,
    ],
    ids=["short", "long piece", "counting", "broken off"],
)
def test_what_differs_in_a_token_is_none(tokens):
    """What people ask for may be alike without being the same."""
    assert looped(tokens, 1024) is None


def test_none_is_looked_for_with_zero():
    """A site may have answers run to their limit."""
    assert looped([7] * 5000, 0) is None


def test_a_long_answer_costs_little():
    """4,096 tokens are looked through in a moment."""
    begun = time.process_time()

    looped([token for n in range(2048) for token in (1, n)], 1024)

    assert time.process_time() - begun < 1


@pytest.mark.parametrize("choices", [1, 2])
def test_an_answer_that_repeats_itself_ends_as_at_its_limit(short, choices, caplog):
    """Its text is whole up to there, the log tells why, and the engine is free."""
    caplog.set_level("INFO", "ofa")
    asked = Chat(
        "ofa-hpc",
        (Message("user", "Hi"),),
        Sampling(temperature=0.0, max_tokens=1000, logit_bias=((300, 100.0),)),
        choices=choices,
    )

    events = list(short.reply(asked))

    ends = [event for event in events if isinstance(event, End)]
    assert [end.reason for end in ends] == ["length"] * choices
    assert ends[-1].usage.completion_tokens == 64 * choices
    word = short.ready.vocabulary.raw(300).decode()
    texts = [e.text for e in events if isinstance(e, Text) and e.index == 0]
    assert "".join(texts).strip() == (word * 64).strip()
    told = caplog.messages.count("an answer repeats itself and ends as at its limit")
    assert told == choices
    assert gather(short.reply(chat(sampling=Sampling(max_tokens=3)))).end


def test_a_call_that_repeats_itself_is_cut(short):
    """What is held back of it is no call, as at any limit, and the answer ends."""
    opened = '```tool_call\n{"name": "read_note", "arguments": {"path": "'
    script = scripted(short)
    script.says(opened + "the " * 400)

    answer = gather(
        short.reply(chat(sampling=Sampling(temperature=0.0, max_tokens=380)))
    )

    assert answer.end.reason == "length"
    assert not answer.calls
    assert answer.end.usage.completion_tokens < 200
