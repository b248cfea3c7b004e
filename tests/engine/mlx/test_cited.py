"""A list of sources behind answers costs nothing of what the engine has read."""

from __future__ import annotations

from contextlib import closing

import pytest

from ofa.answer import Answerer, AnswerSettings, Caller
from ofa.chat import Chat, Message, Sampling, gather
from ofa.engine.mlx.engine import MlxEngine
from ofa.engine.queue import Queued
from ofa.modes import Modes
from ofa.rag.cite import without_footer
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.passage import Hit, Passage
from ofa.rag.retrieve import Found

from .odd import idle

CALLER = Caller("key1", "OpenAI/Python 3.57.0")
FILES = tuple(
    Hit(Passage("hpc", f"{name}.md", "", "", f"the quick file, {name}, " * 2), 1.0, 0.9)
    for name in ("a", "b")
)


class TwoFiles:
    """Finds the same two files for every question."""

    def find(self, collections, question, previous=""):
        """Return them."""
        return Found(FILES, "hit")

    def find_private(self, question, previous=""):
        """Return none."""
        return Found()


EOS, DIGITS = 1, range(195, 205)  # as `tiny.spm_plan` numbers them


def drawn(seed: int) -> Sampling:
    """
    Return a sampling whose answers, of a random model, are digits and then an end.

    No merge joins digits: such a text gives the very tokens again on any processor.
    """
    bias = tuple((token, 100.0) for token in (EOS, *DIGITS))
    return Sampling(temperature=1.0, seed=seed, max_tokens=60, logit_bias=bias)


def two_turns(folder, prompts, memory, seed, *, cite):
    """
    Return both answers of a conversation on a fresh engine, as a client has them.

    With the same *memory* the same passages stand behind the same tag.
    """
    engine = MlxEngine(folder)
    engine.wait(60)
    with closing(Queued(engine)) as queue:
        lookup = Lookup(
            TwoFiles(),
            memory,
            count_tokens=queue.count_tokens,
            budget=lambda mode: Budget(400, 2),
        )
        settings = AnswerSettings(cite=cite)
        answerer = Answerer(queue, Modes(), prompts, lookup=lookup, settings=settings)
        messages = [Message("user", "the quick answer")]
        answers = []
        for question in ("Hi the file", ""):
            chat = Chat("ofa-hpc", tuple(messages), drawn(seed))
            answers.append(gather(answerer.reply(chat, CALLER).reply))
            messages.append(Message("assistant", answers[-1].text))
            messages.append(Message("user", question))
            assert idle(engine)
    return answers


def a_good_example(folder, prompts, memory):
    """
    Return a seed and its two answers without a list, of which there would be one.

    The first has text and ends by itself, and its text gives the very tokens again, as
    a trained model's does: then the second has found all of it.
    """
    for seed in range(30):
        first, second = two_turns(folder, prompts, memory, seed, cite=False)
        read = first.end.usage.prompt_tokens
        whole = first.end.reason == "stop" and len(first.text.strip()) > 3
        if whole and second.end.usage.cached_tokens > read * 3 // 4:
            return seed, (first, second)
    raise AssertionError("no seed gave a whole answer")


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_the_next_turn_finds_as_much_as_without_a_list(name, smaller, brief):
    """The list in the history is none to the engine: same prompt, same reuse."""
    shared = smaller[name], brief, Memory(1 << 20)
    seed, plain = a_good_example(*shared)

    cited = two_turns(*shared, seed, cite=True)

    assert cited[0].text == (
        f"{plain[0].text}\n\nSources looked up: [1] `hpc/a.md`; [2] `hpc/b.md`"
    )
    assert cited[0].end.usage == plain[0].end.usage, "what the engine counted, no more"
    assert cited[1].end.usage == plain[1].end.usage
    assert without_footer(cited[1].text) == plain[1].text
