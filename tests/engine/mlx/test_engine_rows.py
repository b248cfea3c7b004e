"""Many rows at once: turns, room in memory, log probabilities, and the models' life."""

from __future__ import annotations

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ofa.chat import Chat, Message, Output, Sampling, gather, gather_choices
from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Named, Settings
from ofa.engine.mlx.memory import GiB, KvShape, Room, make_room
from ofa.engine.mlx.rows import Sampled
from ofa.errors import BadRequest, ConfigError, NotReady

from .odd import odd_engine

GREEDY = Sampling(temperature=0.0, max_tokens=8)


def chat(text, sampling=GREEDY, **more):
    """Return a chat of one user message."""
    return Chat("ofa-hpc", (Message("user", text),), sampling, **more)


def until(true, limit_s=10.0):
    """Wait until *true*() is, and return whether it came to be."""
    end = time.monotonic() + limit_s
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(true())


# -- log probabilities -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_logprobs_are_the_models(name, engines, folders):
    """Each token's is what one pass over prompt and answer says, best first."""
    import mlx.core as mx
    import mlx_lm

    engine = engines[name]
    reply = engine.reply(chat("the quick file", logprobs=3))
    rows = [row.ids for row in reply._rows]
    tokens = []
    original = reply._mailbox.put

    def spy(item):
        if isinstance(item, Sampled):
            tokens.append(item.token)
        original(item)

    reply._mailbox.put = spy

    answer = gather(reply)

    model, _ = mlx_lm.load(str(folders[name]))
    whole = mx.array([[*rows[0], *tokens]])
    logits = model(whole)[0, len(rows[0]) - 1 : -1]
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert len(answer.logprobs) == len(tokens) == 8
    for place, one in enumerate(answer.logprobs):
        row = expected[place]
        assert one.logprob == pytest.approx(row[tokens[place]].item(), abs=1e-3)
        best = sorted(row.tolist(), reverse=True)[:3]
        assert [top.logprob for top in one.top] == pytest.approx(best, abs=1e-3)
        assert one.raw == engine.ready.vocabulary.raw(tokens[place])


def test_logprobs_hold_no_infinity(engine):
    """What a bias rules out is -9999.0, as JSON can say it."""
    sampling = replace(GREEDY, logit_bias=((230, -100.0),), max_tokens=2)

    answer = gather(engine.reply(chat("Hi", sampling, logprobs=20)))

    assert all(len(one.top) == 20 for one in answer.logprobs)
    assert all(math.isfinite(t.logprob) for one in answer.logprobs for t in one.top)


def test_logprobs_end_with_the_text(engine):
    """Cut by a stop string or not, what is told of the tokens comes with the text."""
    sampling = Sampling(temperature=0.0, max_tokens=12, logit_bias=((230, 100.0),))
    whole = gather(engine.reply(chat("Hi", sampling, logprobs=0)))
    letter = whole.text[0]

    cut = replace(sampling, stop=(letter * 5,))
    stopped = gather(engine.reply(chat("Hi", cut, logprobs=0)))

    assert [one.token for one in whole.logprobs] == [letter] * 12
    assert stopped.text == ""
    assert len(stopped.logprobs) <= 5


def test_what_the_engine_cannot_do_is_refused(engine):
    """Too many choices or alternatives are named, not cut in silence."""
    with pytest.raises(BadRequest, match="n: at most 8"):
        engine.reply(chat("Hi", choices=9))
    with pytest.raises(BadRequest, match="at most 20"):
        engine.reply(chat("Hi", logprobs=21))


# -- schemas ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_an_answer_holds_to_its_schema_beside_free_ones(name, engines):
    """Valid JSON for the one, and for the others what they say alone."""
    engine = engines[name]
    word = {"type": "string", "maxLength": 6}
    schema = {
        "type": "object",
        "properties": {"a": word, "n": {"type": "boolean"}},
        "required": ["a", "n"],
        "additionalProperties": False,
    }
    hot = Sampling(temperature=1.0, seed=1, max_tokens=80)
    free = [gather(engine.reply(chat(text))) for text in ("Hi", "the quick file")]
    chats = [
        chat("Hi"),
        chat("a?", hot, output=Output("json_schema", schema)),
        chat("the quick file"),
    ]

    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda one: gather(engine.reply(one)), chats))

    assert [said[0].text, said[2].text] == [answer.text for answer in free]
    assert said[1].end.reason == "stop"
    assert set(json.loads(said[1].text)) == {"a", "n"}


def test_json_may_spell_a_models_own_markers(engines):
    """What a schema fixes comes out as it stands, also where it looks like thoughts."""
    wanted = "<|channel>x<channel|>"
    output = Output("json_schema", {"const": wanted})
    roomy = replace(GREEDY, max_tokens=80)

    answer = gather(engines["gemma4"].reply(chat("Hi", roomy, output=output)))

    assert json.loads(answer.text) == wanted
    assert answer.thought == ""


def test_a_schema_cut_by_a_limit_says_so(engine):
    """The reason is the length; nothing is passed off as a whole object."""
    schema = {"type": "array", "items": {"const": "abc"}, "minItems": 50}
    output = Output("json_schema", schema)

    answer = gather(engine.reply(chat("Hi", output=output)))

    assert answer.end.reason == "length"
    assert answer.text.startswith('["')


# -- turns -----------------------------------------------------------------------------


def test_callers_take_turns_and_editors_wait(folders):
    """Of one key's many requests and another's one, that one is the second."""
    order, held, go_on = [], threading.Event(), threading.Event()

    def act(tokens):
        if watching.is_set():
            held.set()
            go_on.wait(20)

    watching = threading.Event()
    engine = odd_engine(folders["gemma3"], act, rows=1, prefix_memory_gib=0)
    try:
        engine.wait(60)
        watching.set()
        asked = [("first", "a", 0), ("title", "c", 1), ("a1", "a", 0), ("a2", "a", 0)]
        asked += [("a3", "a", 0), ("b1", "b", 0)]

        def read(name, caller, priority):
            text = chat(name, caller=caller, priority=priority)
            gather(engine.reply(text))
            order.append(name)

        with ThreadPoolExecutor(len(asked)) as pool:
            for n, one in enumerate(asked):
                pool.submit(read, *one)
                if n == 0:
                    assert held.wait(10)
                else:
                    assert until(lambda n=n: engine._scheduler._inbox.qsize() == n)
            go_on.set()
        assert order == ["first", "b1", "a1", "a2", "a3", "title"]
    finally:
        go_on.set()
        engine.close()


# -- memory ----------------------------------------------------------------------------


def test_a_batch_takes_what_its_longest_row_does():
    """Layers that see everything pad all rows; windows end where they end."""
    shape = KvShape(per_token=10, windows=((32, 3),), scratch_per_pair=1)

    assert shape.batch_bytes([]) == 0
    assert shape.batch_bytes([100]) == 356 * 10 + 32 * 3
    assert shape.batch_bytes([20, 300]) == 2 * 556 * 10 + 2 * 32 * 3
    assert shape.batch_bytes([256], 64) == 5120 + (32 + 64) * 3 + 64 * 512
    longest = shape.longest(10**6, 64)
    assert shape.batch_bytes([longest], 64) <= 10**6
    assert shape.batch_bytes([longest + 256], 64) > 10**6
    room = make_room(shape, 10**6, kept_gib=None)
    assert (room.total, room.kept) == (800_000, 200_000)
    assert room.left_for_kept([256]) == 200_000
    assert room.left_for_kept([60_000]) < 256 * 10
    asked = make_room(shape, 2 * GiB, asked_gib=1.0, kept_gib=0.0)
    assert asked == Room(shape, 1 << 30, 0, 512)


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_the_counted_bytes_are_the_real_ones(name, engines, folders):
    """What is counted for a row is what mlx-lm's caches take for it."""
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    model, _ = load(str(folders[name]))
    shape = engines[name].ready.room.shape
    for tokens in (10, 300, 700):
        cache = make_prompt_cache(model)
        model(mx.array([[5] * tokens]), cache=cache)
        for _ in range(2):
            model(mx.array([[5]]), cache=cache)
        real = sum(layer.nbytes for layer in cache)
        assert real <= shape.batch_bytes([tokens + 2]) <= real * 1.35


def test_a_context_that_does_not_fit_is_refused_with_the_arithmetic(folders):
    """At start, where somebody can do something about it."""
    settings = Settings(context_tokens=1024, memory_gib=0.00025)
    engine = MlxEngine(folders["gemma3"], settings)
    try:
        with pytest.raises(ConfigError, match="context of 1024 tokens needs 0.01 GiB"):
            engine.wait(60)
        assert engine.status().final
    finally:
        engine.close()


def test_a_context_nobody_asked_for_shrinks_to_what_fits(folders):
    """The model's own is a wish; what is told to clients is what there is room for."""
    engine = MlxEngine(folders["gemma3"], Settings(memory_gib=0.0024))
    try:
        engine.wait(60)
        assert engine.limits().context_tokens == 256
        assert engine.status().details["context"] == "256 tokens"
    finally:
        engine.close()


def test_rows_wait_for_room(folders, engine):
    """Where three do not fit side by side the third is answered after another."""
    widths = []
    shape, chunk = engine.ready.room.shape, engine.ready.room.chunk
    texts = [f"{n} " + "file " * 30 for n in range(3)]
    prompt = len(engine.ready.prompts.render([Message("user", texts[0])]).ids)
    two, three = (shape.batch_bytes([prompt + 400] * rows, chunk) for rows in (2, 3))
    engine = odd_engine(
        folders["gemma3"],
        lambda tokens: widths.append(tokens.shape[0]),
        rows=4,
        context_tokens=512,
        memory_gib=(two + three) / 2 / GiB,
    )
    try:
        engine.wait(60)
        del widths[:]
        big = replace(GREEDY, max_tokens=400)
        with ThreadPoolExecutor(3) as pool:
            answers = list(
                pool.map(lambda text: gather(engine.reply(chat(text, big))), texts)
            )
        assert all(answer.end.usage.completion_tokens for answer in answers)
        assert max(widths) == 2
        assert engine.ready.store.held().nbytes <= engine.ready.room.total
    finally:
        engine.close()


# -- life ------------------------------------------------------------------------------


def counted(folder, loads):
    """Return a loader of *folder* that counts in *loads*."""

    def load():
        loads.append(time.monotonic())
        return lm.load(str(folder))

    return load


def test_a_model_is_loaded_with_the_first_request(folders):
    """Ready before it is loaded, and it says which; the first request waits."""
    loads = []
    engine = MlxEngine(
        folders["gemma3"],
        Settings(lazy=True),
        load=counted(folders["gemma3"], loads),
    )
    try:
        assert engine.status().ready
        assert engine.status().details["model"] == "gemma3, unloaded"
        assert not loads
        assert gather(engine.reply(chat("Hi"))).end.usage.completion_tokens == 8
        assert len(loads) == 1
        assert engine.status().details["model"].endswith("resident")
    finally:
        engine.close()


def test_an_idle_model_is_unloaded_and_comes_back(folders):
    """Its memory is free after a while; the next answer is the same as ever."""
    loads = []
    engine = MlxEngine(
        folders["gemma3"],
        Settings(unload_s=0.3),
        load=counted(folders["gemma3"], loads),
    )
    try:
        engine.wait(60)
        before = gather(engine.reply(chat("Hi")))
        assert until(lambda: "unloaded" in engine.status().details["model"])
        assert engine.status().ready
        assert engine.ready.store.held().nbytes == 0
        after = gather(engine.reply(chat("Hi")))
        assert after.text == before.text
        assert len(loads) == 2
    finally:
        engine.close()


def test_modes_share_one_thread_with_several_models(folders):
    """One is resident at a time; each answers as it does alone, in any order."""
    alone = {}
    for name, folder in folders.items():
        engine = MlxEngine(folder)
        engine.wait(60)
        alone[name] = gather(engine.reply(chat("the quick file"))).text
        engine.close()
    engine = MlxEngine(
        folders["gemma3"], others=[Named("four", str(folders["gemma4"]))]
    )
    try:
        engine.wait(60)
        wanted = ["", "four", "", "four", "four", ""]

        def ask(weights):
            return gather(engine.reply(chat("the quick file", weights=weights))).text

        with ThreadPoolExecutor(len(wanted)) as pool:
            said = list(pool.map(ask, wanted))
        names = {"": "gemma3", "four": "gemma4"}
        assert said == [alone[names[weights]] for weights in wanted]
        states = [
            engine.status().details[key].rpartition(", ")[2]
            for key in ("model", "four.model")
        ]
        assert sorted(states) == ["resident", "unloaded"]
        assert "gemma4" in engine.limits("four").description
    finally:
        engine.close()


@pytest.mark.parametrize("how", ["ends", "leaves"])
def test_a_further_model_comes_when_the_first_one_is_done(folders, how):
    """Who waits for it does not depend on anybody asking something later."""
    engine = MlxEngine(
        folders["gemma3"], others=[Named("four", str(folders["gemma4"]))]
    )
    try:
        engine.wait(60)
        gather(engine.reply(chat("Hi", weights="four")))
        long = Sampling(temperature=0.0, max_tokens=200, logit_bias=((230, 100.0),))
        running = iter(engine.reply(chat("Hi", long)))
        next(running)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(gather, engine.reply(chat("Hi", weights="four")))
            assert until(lambda: engine._models["four"].weights.waiting)
            if how == "ends":
                list(running)
            else:
                running.close()

            try:
                assert other.result(20).end.usage.completion_tokens
            finally:
                engine.close()
    finally:
        engine.close()


def test_a_further_model_that_does_not_load_is_its_own_trouble(folders, tmp_path):
    """Its requests are told; the first model goes on."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in folders["gemma4"].iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    config = (broken / "config.json").read_text("utf-8")
    (broken / "config.json").write_text(config.replace("gemma4_text", "no_such_type"))
    engine = MlxEngine(folders["gemma3"], others=[Named("bad", str(broken))])
    try:
        engine.wait(60)
        with pytest.raises(NotReady, match="can't be loaded"):
            gather(engine.reply(chat("Hi", weights="bad")))
        with pytest.raises(NotReady, match="can't be loaded"):
            engine.reply(chat("Hi", weights="bad"))  # known by now
        assert gather(engine.reply(chat("Hi"))).end.usage.completion_tokens == 8
        assert engine.status().ready
    finally:
        engine.close()


def test_choices_beyond_the_rows_are_refused_and_as_many_are_not(engine):
    """All eight rows may go to one request."""
    answers = gather_choices(
        engine.reply(chat("Hi", Sampling(temperature=1.0, max_tokens=4), choices=8))
    )

    assert [answer.end.index for answer in answers] == list(range(8))
