"""What was read once is not read again, and gives no other answer than a cold run."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest

from ofa.chat import Chat, Message, Sampling, Text, ToolCall, gather, gather_choices
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.errors import Cancelled

from .odd import idle, odd_engine

NAMES = ("gemma3", "gemma4")
SYSTEM = Message("system", "the answer " * 40)
GREEDY = Sampling(temperature=0.0, max_tokens=16)
WORDS = ("Hi", "the", "quick", "answer", "file", "x,", "1", "user", "é", "\n", "- a")


@pytest.fixture(scope="module", params=NAMES)
def cold(request, folders):
    """An engine that keeps nothing, of either kind."""
    engine = MlxEngine(folders[request.param], Settings(prefix_memory_gib=0))
    engine.wait(60)
    yield engine
    engine.close()


@pytest.fixture
def warm(folders, cold):
    """A fresh engine on the same model that keeps what it can."""
    engine = MlxEngine(folders[cold._first.title])
    engine.wait(60)
    yield engine
    engine.close()


def chat(*messages, caller="a", sampling=GREEDY, **more):
    """Return a chat of *caller*'s."""
    return Chat("ofa-hpc", messages, sampling, caller=caller, **more)


def asked(engine, *messages, **more):
    """Return the whole answer to *messages*."""
    return gather(engine.reply(chat(*messages, **more)))


def cached(answer):
    """Return how much of its prompt was not read."""
    return answer.end.usage.cached_tokens


def some_words(rng, most):
    """Return a text of up to *most* words."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def test_the_next_turn_of_a_plain_chat_is_read_from_its_question_on(warm):
    """R043: system, history and the answer before it are all at hand."""
    messages = [SYSTEM, Message("user", "the quick file, " * 6)]
    first = asked(warm, *messages)
    assert cached(first) == 0
    assert idle(warm)

    messages += [Message("assistant", first.text), Message("user", "Hi the quick")]
    second = asked(warm, *messages)

    whole = warm.ready.prompts.render(messages)
    assert cached(second) >= whole.history - 2  # all but the last turn


def test_a_regenerated_answer_reads_next_to_nothing(warm):
    """The same prompt again leaves the generation stub, at most, to read."""
    messages = [SYSTEM, Message("user", "the quick file, " * 6)]
    first = asked(warm, *messages)

    again = asked(warm, *messages, sampling=replace(GREEDY, max_tokens=20))

    prompt = again.end.usage.prompt_tokens
    assert prompt - cached(again) <= 4
    assert again.text.startswith(first.text.removesuffix("\ufffd"))


def test_an_edited_question_goes_on_from_the_history(warm, cold):
    """What was asked before the edit is not read again, also past the window."""
    messages = [SYSTEM, Message("user", "file " * 60), Message("assistant", "Hi")]
    asked(warm, *messages, Message("user", "the quick answer " * 12))

    edited = [*messages, Message("user", "quick the file " * 12)]
    answer = asked(warm, *edited)

    assert cached(answer) == warm.ready.prompts.render(edited).history
    assert answer.text == asked(cold, *edited).text


def test_a_short_question_can_be_another(warm, cold):
    """A long history is kept before a short question too: the next one may differ."""
    messages = [SYSTEM, Message("user", "file " * 60), Message("assistant", "Hi")]
    asked(warm, *messages, Message("user", "why?"))

    other = [*messages, Message("user", "so?")]
    answer = asked(warm, *other)

    assert cached(answer) == warm.ready.prompts.render(other).history
    assert answer.text == asked(cold, *other).text


def test_each_step_of_a_tool_loop_goes_on_from_the_one_before(warm, cold):
    """Results are appended; nothing before them is read again."""
    messages = [SYSTEM, Message("user", "which file is quick?")]
    for step in range(4):
        before = len(warm.ready.prompts.render(messages).ids)
        assert asked(warm, *messages).text == asked(cold, *messages).text
        assert idle(warm)
        call = ToolCall(f"c{step}", "read", {"n": step})
        messages += [
            Message("assistant", "", calls=(call,)),
            Message("tool", "the answer " * 20, answers=call.id),
        ]
        answer = asked(warm, *messages)
        assert cached(answer) >= before - 8


def test_E12_R043_conversations_equal_cold_ones(warm, cold):
    """Any mixture of new turns, edits, retries and other callers gives the same."""
    rng = random.Random(4)
    told: dict[str, list[Message]] = {}
    hits = 0
    for _ in range(24):
        caller = rng.choice("ab")
        messages = told.setdefault(caller, [SYSTEM])
        if len(messages) > 9 or (
            rng.random() < 0.3 and len(messages) > 3
        ):  # back to an earlier turn
            del messages[1 + 2 * rng.randrange(len(messages) // 2) :]
        if messages[-1].role != "user":
            messages.append(Message("user", some_words(rng, 60)))
        sampling = replace(GREEDY, max_tokens=rng.randint(1, 24))
        answer = asked(warm, *messages, caller=caller, sampling=sampling)
        assert answer.text == asked(cold, *messages, sampling=sampling).text
        hits += cached(answer) > 0
        if rng.random() < 0.8:
            messages.append(Message("assistant", answer.text))
    assert hits > 10


@pytest.mark.parametrize("how", ["stop", "cancel", "fault"])
def test_turns_that_end_early_poison_nothing(warm, cold, how):
    """After a stop string, a cancel and a failing row, later turns are still right."""
    messages = [SYSTEM, Message("user", "the quick file, " * 6)]
    whole = asked(cold, *messages).text
    if how == "stop":
        sampling = replace(GREEDY, stop=(whole[4:8],))
        said = asked(warm, *messages, sampling=sampling).text
    elif how == "cancel":
        reply = warm.reply(chat(*messages, sampling=replace(GREEDY, max_tokens=400)))
        said = next(event.text for event in reply if isinstance(event, Text))
        reply.close()
    else:
        reply = warm.reply(chat(*messages))
        reply._rows[0].mask = lambda *_: 1 / 0
        with pytest.raises(Exception, match="could not sample"):
            gather(reply)
        said = "Hi"
    assert idle(warm)
    messages += [Message("assistant", said), Message("user", "and the file?")]

    after = asked(warm, *messages)

    assert after.text == asked(cold, *messages).text
    assert cached(after) > 0


def test_callers_see_nothing_of_each_other(warm):
    """Neither what is kept nor how much of it shows to another key."""
    messages = [SYSTEM, Message("user", "the quick file, " * 6)]
    asked(warm, *messages, caller="a")

    reply = warm.reply(chat(*messages, caller="b"))

    assert reply.told["x-ofa-cache"] == "miss; nothing is kept yet"
    assert cached(gather(reply)) == 0
    assert cached(asked(warm, *messages, caller="a")) > 0


def test_system_texts_are_read_ahead_for_everyone(warm):
    """While nothing else is to do; then the first question of anyone is short."""
    warm.warm([chat(SYSTEM)])
    deadline = time.monotonic() + 10
    while not warm.ready.store.held().entries and time.monotonic() < deadline:
        time.sleep(0.01)

    reply = warm.reply(chat(SYSTEM, Message("user", "Hi"), caller="b"))
    answer = gather(reply)

    system = warm.ready.prompts.render([SYSTEM, Message("user", "Hi")]).system
    assert cached(answer) == system
    assert reply.told["x-ofa-cache"].startswith(f"hit; {system} of ")


def test_a_request_does_not_wait_for_what_is_read_ahead(folders):
    """Only for the chunk under way; what was read ahead so far is not lost."""
    sizes, hold, held = [], threading.Event(), threading.Event()

    def act(tokens):
        if watching.is_set():
            sizes.append(tokens.shape[1])
            held.set()
            hold.wait(10)

    watching = threading.Event()
    engine = odd_engine(folders["gemma3"], act)
    try:
        engine.wait(60)
        watching.set()
        engine.warm([chat(Message("system", "the answer " * 300))])
        assert held.wait(10)
        answer = []
        reader = threading.Thread(
            target=lambda: answer.append(asked(engine, Message("user", "Hi")))
        )
        reader.start()
        until = time.monotonic() + 10
        while engine._scheduler._inbox.empty() and time.monotonic() < until:
            time.sleep(0.005)
        hold.set()
        reader.join(10)
        assert answer[0].end.usage.completion_tokens == 16
        ahead = sizes.index(next(size for size in sizes if size not in (sizes[0],)))
        assert ahead <= 2
        assert idle(engine)
        assert engine.ready.store.held().entries >= 2
    finally:
        hold.set()
        engine.close()


def test_side_requests_leave_nothing(warm):
    """Titles are asked for once: they use what is there and take no room."""
    asked(warm, SYSTEM, Message("user", "title?"), priority=1)

    assert warm.ready.store.held().entries == 0


def test_choices_share_one_prefill(folders):
    """Three answers cost the prompt once, and each is what its seed gives alone."""
    read = []
    engine = odd_engine(folders["gemma3"], lambda tokens: read.append(tokens.shape[1]))
    try:
        engine.wait(60)
        del read[:]
        sampling = Sampling(temperature=1.0, seed=5, max_tokens=12)
        question = Message("user", "the quick file, " * 30)
        answers = gather_choices(
            engine.reply(chat(question, sampling=sampling, choices=3))
        )
        prompt = answers[-1].end.usage.prompt_tokens
        assert sum(size for size in read if size > 1) < prompt
        assert [answer.end.index for answer in answers] == [0, 1, 2]
        assert [answer.end.last for answer in answers].count(True) == 1
        usage = next(a.end.usage for a in answers if a.end.last)
        assert usage.completion_tokens == 36
        alone = [
            asked(engine, question, sampling=replace(sampling, seed=5 + index)).text
            for index in range(3)
        ]
        assert [answer.text for answer in answers] == alone
        assert len(set(alone)) == 3
    finally:
        engine.close()


def test_one_budget_over_everything(folders):
    """What is kept stays under its limit, whatever is asked, and gives way to rows."""
    settings = Settings(prefix_memory_gib=1e-4)  # about 107 KB
    engine = MlxEngine(folders["gemma3"], settings)
    try:
        engine.wait(60)
        for n in range(12):
            asked(engine, Message("user", f"{n} " + "the file " * 60), caller=str(n))
            held = engine.ready.store.held()
            assert held.nbytes <= held.limit_bytes <= 1e-4 * 2**30
        assert held.evicted > 0
        assert "of 107374" in engine.status().details["kept_bytes"]
    finally:
        engine.close()


def test_a_cancelled_prefill_is_not_lost(folders):
    """What was read of a prompt before its reader left serves the retry."""
    chunks, second, go_on = [], threading.Event(), threading.Event()

    def act(tokens):
        if watching.is_set() and tokens.shape[1] > 1:
            chunks.append(tokens.shape[1])
            if len(chunks) == 2:
                second.set()
                go_on.wait(10)
            else:
                go_on.wait(0.5)  # as slow as to be read in small pieces

    watching = threading.Event()
    engine = odd_engine(folders["gemma3"], act)
    try:
        engine.wait(60)
        engine._first.weights.speed._readings.clear()
        watching.set()
        question = Message("user", "file " * 400)
        reply = engine.reply(chat(question))
        reader = threading.Thread(target=lambda: pytest.raises(Cancelled, list, reply))
        reader.start()
        assert second.wait(10)
        reply.close()
        reader.join(10)
        watching.clear()
        go_on.set()
        assert cached(asked(engine, question)) == sum(chunks)
    finally:
        go_on.set()
        engine.close()
