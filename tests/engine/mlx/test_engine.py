"""The engine on tiny random models: exact, alone and in company."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from ofa.chat import (
    Chat,
    End,
    Image,
    Message,
    Sampling,
    Text,
    Usage,
    Waiting,
    gather,
)
from ofa.engine.base import Status
from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.speed import chunk_size
from ofa.engine.queue import Queued
from ofa.engine.text import Channels
from ofa.errors import (
    BadRequest,
    Cancelled,
    ConfigError,
    ContextLengthExceeded,
    NotReady,
    OutOfMemory,
    ShuttingDown,
)

from .odd import odd_engine

GREEDY = Sampling(temperature=0.0, max_tokens=24)
# Below, across and far past the window of 32 tokens.
QUESTIONS = (
    "Hi",
    "the quick answer",
    "file " * 12,
    "the quick file, " * 8,
    "Hi the quick answer file 1 2 3 " * 12,
    "x",
    "why?",
    "user model thought " * 3,
)


def chat(text, sampling=GREEDY, **more):
    """Return a chat of one user message."""
    return Chat("ofa-hpc", (Message("user", text),), sampling, **more)


def asked(engine, text, sampling=GREEDY):
    """Return the whole answer."""
    return gather(engine.reply(chat(text, sampling)))


def asked_at_once(engine, questions, sampling):
    """Return the answers to *questions*, all asked at the same time.

    *sampling* maps a question's number to its options.
    """
    replies = [
        engine.reply(chat(text, sampling(n))) for n, text in enumerate(questions)
    ]
    start = threading.Barrier(len(replies))

    def read(reply):
        start.wait(10)
        return gather(reply)

    with ThreadPoolExecutor(len(replies)) as pool:
        return list(pool.map(read, replies))


def said(answer):
    """Return what was said, and its end as if nothing had been read before."""
    usage = replace(answer.end.usage, cached_tokens=0)
    return answer.text + answer.thought, replace(answer.end, usage=usage)


@pytest.fixture(scope="module")
def reference(folders, engines):
    """What mlx-lm's own single-stream generation says, greedily."""
    import mlx_lm

    loaded = {name: mlx_lm.load(str(folder)) for name, folder in folders.items()}

    def generate(name, text):
        model, tokenizer = loaded[name]
        ready = engines[name].ready
        ids = ready.prompts.render([Message("user", text)]).ids
        tokenizer.eos_token_ids = set(ready.ends)
        steps = list(
            mlx_lm.stream_generate(
                model, tokenizer, list(ids), max_tokens=GREEDY.max_tokens
            )
        )
        decoder = ready.vocabulary.decoder(ready.silent)
        last = steps[-1]
        shown = steps[:-1] if last.finish_reason == "stop" else steps
        text = "".join(decoder.feed(step.token) for step in shown)
        return text, last.finish_reason, len(ids), len(steps)

    return generate


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_batch_equals_single_equals_mlx_lm(name, engines, reference):
    """Greedy answers are the same alone, among seven others and in mlx-lm itself."""
    engine = engines[name]
    expected = []
    for text in QUESTIONS:
        text, reason, prompt, sampled = reference(name, text)
        expected.append((text, End(reason, Usage(prompt, sampled))))

    alone = [asked(engine, text) for text in QUESTIONS]
    together = asked_at_once(engine, QUESTIONS, lambda _: GREEDY)

    visible = [said(answer) for answer in alone]
    assert [end for _, end in visible] == [end for _, end in expected]
    assert [said(answer) for answer in together] == visible
    if name == "gemma3":  # Gemma 4's markers are taken out of the text
        assert visible == expected


def test_staggered_joins_change_nothing(engine):
    """A long prompt that joins while others are answered leaves them exact."""
    alone = [asked(engine, text) for text in QUESTIONS[:3]]
    first = iter(engine.reply(chat(QUESTIONS[0])))
    head = [next(first), next(first)]

    second = asked(engine, QUESTIONS[1])
    rest = gather(iter([*head, *first]))

    assert [said(rest), said(second)] == [said(one) for one in alone[:2]]


def test_seeds_in_a_mixed_batch_equal_the_same_alone(engine):
    """A seeded request draws the same whatever runs beside it, cuts and all."""

    def sampling(n):
        if n % 3 == 2:
            return Sampling(temperature=1.0, max_tokens=20)
        return Sampling(
            temperature=1.1,
            seed=n,
            top_k=40 if n % 2 else None,
            top_p=0.9,
            min_p=0.01,
            presence_penalty=0.5 if n % 4 == 0 else None,
            max_tokens=20,
        )

    together = asked_at_once(engine, QUESTIONS, sampling)

    seeded = [n for n in range(len(QUESTIONS)) if n % 3 != 2]
    for n in seeded:
        assert said(asked(engine, QUESTIONS[n], sampling(n))) == said(together[n])
    assert len({together[n].text for n in seeded}) > 1


def test_other_seeds_draw_otherwise(engine):
    """The seed is what makes the difference."""
    answers = {
        asked(engine, "Hi", Sampling(temperature=1.5, seed=seed, max_tokens=12)).text
        for seed in (0, 1, 2**64 - 1)
    }

    assert len(answers) == 3


@pytest.mark.parametrize("round_", range(3))
def test_R004_options_of_one_request_never_touch_the_other(engine, round_):
    """A row with penalties and a bias beside one without: both as when alone."""
    pushed = Sampling(
        temperature=0.0,
        max_tokens=20,
        presence_penalty=0.7,
        frequency_penalty=0.3,
        repetition_penalty=1.3,
        logit_bias=((230, 6.0),),
    )
    alone = asked(engine, "Hi"), asked(engine, "why?", pushed)

    together = asked_at_once(engine, ("Hi", "why?"), lambda n: pushed if n else GREEDY)

    assert [said(one) for one in together] == [said(one) for one in alone]
    assert said(alone[1]) != said(asked(engine, "why?"))


def test_R005_no_answer_holds_anothers_words(engine):
    """Sixteen at once, each biased to a character of its own: nothing is mixed."""
    letters = "ABCDEFGHIJKLMNOP"
    ids = [engine.ready.vocabulary.ids[letter] for letter in letters]

    answers = asked_at_once(
        engine,
        [f"say {letter}" for letter in letters],
        lambda n: Sampling(
            temperature=0.0, max_tokens=10, logit_bias=((ids[n], 100.0),)
        ),
    )

    assert [answer.text for answer in answers] == [letter * 10 for letter in letters]


def test_events_come_as_they_are_made(engine):
    """Text comes in pieces, the end last and once."""
    events = list(engine.reply(chat(QUESTIONS[1])))

    assert sum(isinstance(event, Text) for event in events) > 3
    assert [isinstance(event, End) for event in events].index(True) == len(events) - 1


@pytest.mark.parametrize("start", range(0, 12, 3))
@pytest.mark.parametrize("length", [1, 2, 5])
def test_R017_stop_strings_end_the_answer(engine, start, length):
    """Any piece of an answer, given as a stop, cuts the answer before it."""
    whole = asked(engine, QUESTIONS[1]).text
    stop = whole[start : start + length]

    answer = asked(
        engine, QUESTIONS[1], Sampling(temperature=0.0, max_tokens=24, stop=(stop,))
    )

    assert answer.text == whole[: whole.index(stop)]
    assert answer.end.reason == "stop"
    assert answer.end.usage.completion_tokens <= 24


def test_a_stop_string_frees_the_row(engine):
    """The batch does not go on with an answer whose reader has enough."""
    long = Sampling(temperature=0.0, max_tokens=800, logit_bias=((230, 100.0),))
    letter = asked(engine, "Hi", Sampling(temperature=0.0, max_tokens=1,
                                          logit_bias=((230, 100.0),))).text  # fmt: skip

    answer = asked(engine, "Hi", long.over(Sampling(stop=(letter * 5,))))

    assert answer.end.usage.completion_tokens == 5
    assert emptied(engine)


def emptied(engine, within_s=2.0):
    """Return whether the batch has no row left, looking for up to *within_s*."""
    until = time.monotonic() + within_s
    while engine._scheduler.running and time.monotonic() < until:
        time.sleep(0.005)
    return not engine._scheduler.running


def test_limits_of_the_answer(engine):
    """An answer is cut at the request's limit, or where the context is full."""
    context = engine.limits().context_tokens
    endless = Sampling(temperature=0.0, logit_bias=((230, 100.0),))

    short = asked(engine, "Hi", endless.over(Sampling(max_tokens=3))).end
    full = asked(engine, "x" * 1000, endless.over(Sampling(max_tokens=10**9))).end

    assert (short.reason, short.usage.completion_tokens) == ("length", 3)
    assert (full.reason, full.usage.prompt_tokens > 1000) == ("length", True)
    assert full.usage.prompt_tokens + full.usage.completion_tokens == context


def test_first_token_is_the_end(engine):
    """An empty answer is an answer: no text, reason stop, one token counted."""
    answer = asked(engine, "Hi", Sampling(temperature=0.0, logit_bias=((106, 100.0),)))

    assert answer.parts == ()
    assert (answer.end.reason, answer.end.usage.completion_tokens) == ("stop", 1)


@pytest.mark.parametrize("end", [1, 106, 50])
def test_57_every_end_token_of_gemma_4(engines, end):
    """End of text, of turn, and a tool's turn end the answer and leave no text."""
    answer = asked(
        engines["gemma4"], "Hi", Sampling(temperature=0.0, logit_bias=((end, 100.0),))
    )

    assert (answer.text, answer.end.reason) == ("", "stop")


def test_60_an_endless_thought_is_no_answer(engines):
    """A thought cut by the limit is reasoning, and its tokens are counted as such."""
    answer = asked(
        engines["gemma4"],
        "Hi",
        Sampling(temperature=0.0, max_tokens=6, logit_bias=((100, 100.0),)),
    )

    assert answer.text == ""
    assert answer.end.usage.reasoning_tokens == 5


def test_a_prompt_over_the_context_is_refused_with_both_numbers(engine):
    """The client can tell how much is too much."""
    with pytest.raises(ContextLengthExceeded, match=r"has \d{4} tokens .* is 1024"):
        engine.reply(chat("Hi " * 2000))


def test_images_are_refused_with_their_place(engine):
    """A model without eyes says so instead of ignoring the picture."""
    image = Image("data:image/png;base64,AA==", param="messages[0].content[1]")
    message = Message("user", "what is this?", images=(image,))

    with pytest.raises(BadRequest, match="no images") as caught:
        engine.reply(Chat("ofa-hpc", (message,)))

    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.code == "image_not_supported"


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_bias_outside_the_vocabulary_is_refused(engine, token):
    """An id out of range would be a write beyond an array's end."""
    with pytest.raises(BadRequest, match="vocabulary") as caught:
        engine.reply(chat("Hi", Sampling(logit_bias=((token, 1.0),))))

    assert caught.value.param == "logit_bias"


def test_top_k_beyond_the_vocabulary_is_no_cut(engine):
    """What kills mlx_lm.server is the same as no top_k here."""
    hot = Sampling(temperature=1.0, seed=3, max_tokens=8)

    beyond = asked(engine, "Hi", hot.over(Sampling(top_k=10**9)))

    assert said(beyond) == said(asked(engine, "Hi", hot))


def test_tokens_are_counted_exactly(engine):
    """What is counted for a budget is what the prompt will have."""
    ids = engine.ready.prompts.render([Message("user", "file 12")]).ids
    empty = engine.ready.prompts.render([Message("user", "")]).ids

    assert engine.count_tokens("file 12") == len(ids) - len(empty)
    vocabulary = engine.ready.vocabulary
    for text in ("", "file\n\n12  <bos>", "\U0001f600 \ue000", "word " * 500):
        assert vocabulary.count(text) == len(vocabulary.encode(text))


ENDLESS = Sampling(temperature=0.0, max_tokens=900, logit_bias=((230, 100.0),))


def test_cancel_in_decode(engine):
    """A reply closed between tokens raises `Cancelled` and its row is gone."""
    reply = engine.reply(chat("Hi", ENDLESS))
    events = iter(reply)
    next(events)

    reply.close()

    with pytest.raises(Cancelled):
        list(events)
    assert emptied(engine)


def test_cancel_from_another_thread_wakes_the_reader(engine):
    """A reader blocked in the iterator comes back within a second."""
    reply = engine.reply(chat("Hi", ENDLESS))
    threading.Timer(0.05, reply.close).start()
    start = time.monotonic()

    with pytest.raises(Cancelled):
        list(reply)

    assert time.monotonic() - start < 1.0
    assert emptied(engine)


def test_abandoning_the_iterator_cancels(engine):
    """A reader that goes away without close() stops the work as well."""
    events = iter(engine.reply(chat("Hi", ENDLESS)))
    next(events)

    events.close()

    assert emptied(engine)


def test_closed_before_it_is_read(engine):
    """A reply abandoned in a queue never starts, and closing twice is nothing."""
    reply = engine.reply(chat("Hi", ENDLESS))

    reply.close()
    reply.close()

    with pytest.raises(Cancelled):
        list(reply)
    assert emptied(engine)


def test_cancel_in_prefill_and_in_line(folders):
    """Closed while a prompt is read or before it is, the work ends with its chunk."""
    reading, go_on = threading.Event(), threading.Event()
    chunks = []

    def act(tokens):
        if loaded.is_set() and tokens.shape[1] > 1:
            chunks.append(tokens.shape[1])
            reading.set()
            go_on.wait(10)

    loaded = threading.Event()
    engine = odd_engine(folders["gemma3"], act, rows=1, prefill_step=64)
    try:
        engine.wait(60)
        loaded.set()
        first, second = (engine.reply(chat("file " * 500)) for _ in range(2))
        readers = [
            threading.Thread(target=lambda r=reply: pytest.raises(Cancelled, list, r))
            for reply in (first, second)
        ]
        for reader in readers:
            reader.start()
        assert reading.wait(10)
        first.close()
        second.close()
        for reader in readers:
            reader.join(1.0)
        assert not any(reader.is_alive() for reader in readers)
        go_on.set()
        assert emptied(engine)
        assert len(chunks) == 1
        assert asked(engine, "Hi").end.usage.completion_tokens == 24
    finally:
        go_on.set()
        engine.close()


def test_R001_an_exception_in_a_step_ends_what_runs_and_nothing_else(folders):
    """All in flight get an error at once, status tells, the next request works."""

    def act(tokens):
        if failing.is_set() and tokens.shape[1] == 1:
            left.append(1)
            if len(left) % 6 == 0:
                raise RuntimeError("[metal::malloc] Resource limit (499000) exceeded.")

    failing, left = threading.Event(), []
    engine = odd_engine(folders["gemma3"], act, rows=4)
    try:
        before = asked(engine, "why?")
        failing.set()
        start = time.monotonic()
        for _ in range(3):
            replies = [engine.reply(chat(text)) for text in QUESTIONS[:3]]
            with ThreadPoolExecutor(3) as pool:
                failures = [pool.submit(gather, reply) for reply in replies]
                errors = [failure.exception(10) for failure in failures]
            assert [type(error) for error in errors] == [OutOfMemory] * 3
            assert all("499000" not in str(error) for error in errors)
        assert time.monotonic() - start < 6
        assert engine.status().reason == "3 steps failed within 60 s"
        failing.clear()
        assert asked(engine, "why?") == before
    finally:
        engine.close()


def test_everything_of_mlx_runs_on_one_thread(folders):
    """Loading, reading and generating: one thread, and not the callers'."""
    seen = set()

    engine = odd_engine(folders["gemma3"], lambda _: seen.add(threading.get_ident()))
    try:
        asked_at_once(engine, QUESTIONS[:3], lambda _: GREEDY)
    finally:
        engine.close()

    assert seen == {engine._scheduler._thread.ident}
    assert threading.get_ident() not in seen


def test_closing_ends_what_runs(folders):
    """A shutdown reaches readers as such, is quick, and may come twice."""
    engine = MlxEngine(folders["gemma3"])
    events = iter(engine.reply(chat("Hi", ENDLESS)))
    next(events)
    start = time.monotonic()

    engine.close()
    engine.close()

    with pytest.raises(ShuttingDown):
        list(events)
    assert time.monotonic() - start < 5
    assert engine.status().reason == "the engine is stopped"
    with pytest.raises(ShuttingDown):
        engine.reply(chat("Hi"))


def test_loading_is_waited_for_only_so_long(folders):
    """Until the model is there, status and replies say so; limits are told anyway."""
    go_on = threading.Event()

    def load():
        go_on.wait(20)
        return lm.load(str(folders["gemma3"]))

    engine = MlxEngine(
        folders["gemma3"], Settings(load_wait_s=0.05, context_tokens=256), load=load
    )
    try:
        assert engine.status().reason == "loading the model"
        assert engine.limits().context_tokens == 256
        assert engine.count_tokens("four words of text") >= 4
        with pytest.raises(NotReady, match="loading the model"):
            gather(engine.reply(chat("Hi")))
        go_on.set()
        assert engine.wait(60).ready
        assert engine.limits().prefill_per_s > 0
        assert "float32" in engine.limits().description
    finally:
        go_on.set()
        engine.close()


def test_a_reader_who_leaves_while_it_loads_waits_no_more(folders):
    """20 clients who gave up held all places until a large model was there."""
    go_on = threading.Event()

    def load():
        go_on.wait(60)
        return lm.load(str(folders["gemma3"]))

    engine = MlxEngine(folders["gemma3"], Settings(load_wait_s=60), load=load)
    with closing(Queued(engine, running=1, waiting=0)) as queue:
        try:
            reply = queue.reply(chat("Hi"))
            events = iter(reply)
            assert next(events) == Waiting()
            began = time.monotonic()
            threading.Timer(0.1, reply.close).start()
            with pytest.raises(Cancelled):
                list(events)
            assert time.monotonic() - began < 1
            assert queue.depth() == (0, 0)
            with pytest.raises(BadRequest, match="text only"):
                queue.reply(
                    Chat("ofa-hpc", (Message("user", "", images=(Image("data:,"),)),))
                )

            later = queue.reply(chat("Hi"))
            assert later.told["x-ofa-cache"] == "miss; the model is loading"
            threading.Timer(0.3, go_on.set).start()
            assert gather(later).end.usage.completion_tokens > 0
            assert later.told["x-ofa-cache"].startswith("miss; ")
        finally:
            go_on.set()


def test_a_model_that_does_not_load_is_a_line(folders):
    """Whatever goes wrong there, callers get one line and no hang."""

    def load():
        raise RuntimeError("no such op\nand a long story")

    engine = MlxEngine(folders["gemma3"], load=load)
    try:
        with pytest.raises(ConfigError, match="can't be loaded: no such op$"):
            engine.wait(10)
        with pytest.raises(NotReady, match="no such op"):
            engine.reply(chat("Hi"))
    finally:
        engine.close()


def test_R034_thinking_is_off_unless_asked_for(engines):
    """The prompt closes an empty thought; asked to think, it opens none."""
    engine = engines["gemma4"]

    def ending(thinking):
        row = engine.reply(chat("2+2?", thinking=thinking))._rows[0]
        return engine.ready.prompts._tokenizer.decode(row.ids)

    assert ending(None).endswith("<|turn>model\n<|channel>thought\n<channel|>")
    assert ending(True).endswith("<|turn>model\n")


def test_R022_a_call_nobody_asked_for_is_text(engines):
    """Without tools in force a model's call comes out as it was written."""
    ready = engines["gemma4"].ready
    call = '<|tool_call>call:plot-mesh{code:<|"|>for(i){ a[i]={}; }<|"|>}<tool_call|>'
    decoder = ready.vocabulary.decoder(ready.silent)
    channels = Channels(ready.thinking)

    ids = [1, *ready.vocabulary.encode(ready.vocabulary.mark(call)), 106]
    pieces = [part for token in ids for part in channels.feed(decoder.feed(token))]

    assert "".join(part.text for part in [*pieces, *channels.flush()]) == call


def test_speed_is_learnt_from_prompts(engine):
    """What clients are told follows the prompts that were really read."""
    before = list(engine._first.weights.speed._readings)

    asked(engine, "file " * 200)

    assert list(engine._first.weights.speed._readings) != before
    assert engine.limits().prefill_per_s > 0


def test_chunks_follow_the_speed():
    """A chunk lasts about a second, within what is useful."""
    assert [chunk_size(per_s) for per_s in (0, 90, 150, 300, 5000, 1e6)] == [
        128, 128, 128, 256, 2048, 2048
    ]  # fmt: skip


def test_E6_a_step_that_does_not_come_back_is_told(folders):
    """The status says that only a new process helps; loading is no stall."""
    go_on, stuck = threading.Event(), threading.Event()

    def act(tokens):
        if watching.is_set():
            stuck.set()
            go_on.wait(20)

    watching = threading.Event()
    engine = odd_engine(folders["gemma3"], act, stall_s=0.1)
    reader = threading.Thread(target=lambda: asked(engine, "Hi"), daemon=True)
    try:
        engine.wait(60)
        assert not engine.status().broken
        watching.set()
        reader.start()
        assert stuck.wait(10)
        until = time.monotonic() + 5
        while not engine.status().broken and time.monotonic() < until:
            time.sleep(0.01)
        assert engine.status() == Status(
            False, "a step of the engine has not come back for 0.1 s", broken=True
        )
    finally:
        watching.clear()
        go_on.set()
        reader.join(10)
        assert engine.status().ready
        engine.close()
