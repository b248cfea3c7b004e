"""A restarted server with passages: old turns begin with the bytes that are kept."""

from __future__ import annotations

from contextlib import closing

import pytest

from ofa.answer import Answerer
from ofa.chat import Chat, Message, Sampling, gather
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.queue import Queued
from ofa.modes import Modes
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory

from .odd import idle
from .test_cited import CALLER, TwoFiles


def next_turn(model, brief, folder, messages, *, remembers):
    """Return what a fresh server says to *messages*, and how much it had kept."""
    engine = MlxEngine(model, Settings(prefix_disk=folder / "prefixes"))
    engine.wait(60)
    memory = Memory(1 << 24, folder / "turns" if remembers else None)
    with closing(Queued(engine)) as queue, closing(memory):
        lookup = Lookup(
            TwoFiles(),
            memory,
            count_tokens=queue.count_tokens,
            budget=lambda mode: Budget(400, 2),
        )
        answerer = Answerer(queue, Modes(), brief, lookup=lookup)
        sampling = Sampling(temperature=0.0, max_tokens=12)
        chat = Chat("ofa-hpc", tuple(messages), sampling)
        answered = answerer.reply(chat, CALLER)
        answer = gather(answered.reply)
        assert answered.headers["x-ofa-rag"].startswith("hit; n=2")
        assert idle(engine)
        return answer.text, answer.end.usage


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_the_first_turn_after_a_restart_is_warm_with_passages(
    name, remembers, folders, brief, tmp_path
):
    """All that was said before is kept, or without the file the mode's text at most."""
    messages = [Message("user", "the quick file " * 4)]
    said, first = next_turn(
        folders[name], brief, tmp_path, messages, remembers=remembers
    )
    messages += [Message("assistant", said), Message("user", "more")]

    _, second = next_turn(folders[name], brief, tmp_path, messages, remembers=remembers)

    if remembers:
        assert second.cached_tokens >= first.prompt_tokens - 8
    else:
        assert second.cached_tokens < 100
    assert (tmp_path / "turns").exists() is remembers
