"""Models that come and go: what is warm when they are back, and what may hang."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import closing, contextmanager

import pytest

from ofa import heavy
from ofa.chat import Chat, Message, Sampling, gather
from ofa.engine.mlx import lm
from ofa.engine.mlx.batch import Batch
from ofa.engine.mlx.engine import MlxEngine, Named, Settings
from ofa.engine.mlx.memory import GiB, KvShape, make_room
from ofa.engine.mlx.rows import Row
from ofa.engine.mlx.scheduler import Scheduler
from ofa.engine.mlx.weights import Weights
from ofa.errors import ConfigError
from ofa.heavy import loading

from . import tiny
from .faulty import KINDS, SECRET, Fault, faulty_engine
from .odd import idle

GREEDY = Sampling(temperature=0.0, max_tokens=16)
SYSTEM = Message("system", "the answer " * 40)
LONG = (
    Message("user", "the quick file " * 120),
    Message("assistant", "ok"),
    Message("user", "Hi"),
)


def chat(*messages, **more):
    """Return a chat of one caller's."""
    return Chat("ofa-hpc", messages, GREEDY, caller="a", **more)


def cached(engine, *messages, **more):
    """Return how much of a question's prompt was not read."""
    answer = gather(engine.reply(chat(*messages, **more)))
    return answer.end.usage.cached_tokens


def until(true, limit_s=20.0):
    """Wait until *true* says so, and return whether it did."""
    deadline = time.monotonic() + limit_s
    while not (done := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return done


# -- warm again ------------------------------------------------------------------------


def test_beginnings_are_read_again_when_their_model_is_back(folders):
    """What was kept goes with the weights; the first question is short all the same."""
    engine = MlxEngine(folders["gemma3"], Settings(unload_s=0.3))
    try:
        engine.wait(60)
        engine.warm([chat(SYSTEM)])
        store = engine.ready.store
        assert until(lambda: store.held().entries)
        assert until(lambda: engine._first.weights.state == "unloaded")
        assert not store.held().entries

        gather(engine.reply(chat(Message("user", "Hi"))))

        assert until(lambda: any_system(engine))
        assert cached(engine, SYSTEM, Message("user", "Hi")) > 40
    finally:
        engine.close()


def any_system(engine):
    """Return whether the system text is kept by now."""
    ids = engine.ready.prompts.render([SYSTEM, Message("user", "?")]).ids
    return engine.ready.store.match(ids, "b").tokens > 40


def test_beginnings_of_a_further_models_modes_are_read_once_it_is_there(folders):
    """[models.NAME]: none is loaded for that, and then none is left out."""
    four = [Named("four", str(folders["gemma4"]))]
    own = Message("system", "which file? " * 30)
    engine = MlxEngine(folders["gemma3"], others=four)
    try:
        engine.wait(60)
        engine.warm([chat(SYSTEM), chat(own, weights="four")])
        assert until(lambda: any_system(engine))
        assert engine._models["four"].weights.state == "unloaded"

        gather(engine.reply(chat(Message("user", "Hi"), weights="four")))

        ready = engine._models["four"].weights.ready
        assert until(lambda: ready.store.held().entries >= 2)
        asked = (own, Message("user", "Hi"))
        system = ready.prompts.render(asked).system
        assert cached(engine, *asked, weights="four") == system
    finally:
        engine.close()


def test_beginnings_are_read_once_for_each_time_a_model_comes(folders, monkeypatch):
    """One that was there before is no second reason; a new wish is one."""
    engine, read = MlxEngine(folders["gemma3"]), []
    monkeypatch.setattr(engine._first, "read_ahead", read.append)
    try:
        engine.wait(60)
        first, second = chat(SYSTEM), chat(Message("system", "other"))
        engine.warm([first])
        assert until(lambda: read)
        engine.warm([second])
        assert until(lambda: len(read) > 1)
        time.sleep(0.1)

        assert read == [[first], [second]]
    finally:
        engine.close()


def test_beginnings_that_fail_once_are_read_the_next_time(folders, caplog):
    """What goes wrong in them ends neither their thread nor anything else."""
    fault = Fault()
    engine = faulty_engine(folders["gemma3"], fault, unload_s=0.3)
    try:
        assert engine.wait(60).ready
        fault.arm(KINDS["memory"], "tokenizer")
        engine.warm([chat(SYSTEM)])
        assert fault.happened.wait(20)
        assert until(lambda: engine._first.weights.state == "unloaded")
        assert SECRET not in caplog.text

        gather(engine.reply(chat(Message("user", "Hi"))))

        assert until(lambda: any_system(engine))
    finally:
        engine.close()


# -- a load that hangs -----------------------------------------------------------------


@contextmanager
def hanging_again(folder, *, load_wait_s, took_s):
    """Yield an engine whose model hangs as it is loaded again; *took_s* is what loading
    it had taken, whatever this machine needed."""
    go_on = threading.Event()
    go_on.set()

    def load():
        go_on.wait(60)
        return lm.load(str(folder))

    settings = Settings(unload_s=0.2, load_wait_s=load_wait_s)
    engine = MlxEngine(folder, settings, load=load)
    try:
        assert engine.wait(60).ready
        weights = engine._first.weights
        assert until(lambda: weights.state == "unloaded")
        go_on.clear()
        weights._load_s = took_s
        with closing(engine.reply(chat(Message("user", "Hi")))) as reply:
            next(iter(reply))
            assert until(lambda: weights.state == "loading")
            yield engine
    finally:
        go_on.set()
        engine.close()


def test_a_model_that_hangs_when_it_is_loaded_again_is_told(folders):
    """A file server that is gone: the supervisor starts another process then."""
    with hanging_again(folders["gemma3"], load_wait_s=0.2, took_s=0.1) as engine:
        assert until(lambda: engine.status().broken)
        assert "has been loading again for" in engine.status().reason


def test_loading_again_may_take_three_times_as_long_as_before(folders):
    """And the first time any time at all."""
    with hanging_again(folders["gemma3"], load_wait_s=0.01, took_s=30.0) as engine:
        weights = engine._first.weights
        time.sleep(0.2)

        assert engine.status().ready
        assert weights.overdue_s(0.0) == 0.0
        weights._load_s = 0.01
        assert weights.overdue_s(0.0) > 0.1


@pytest.mark.parametrize("where", ["drop", "turn", "batch"])
def test_whatever_hangs_on_the_way_back_is_told(folders, where):
    """Memory given back, the turn to load, a new batch: not only the files."""
    go_on, hangs = threading.Event(), threading.Event()

    class Stuck(Batch):
        """A batch that may hang: as it is made, or as another takes its place."""

        def __init__(self, *given, **more):
            if hangs.is_set() and where == "batch":
                go_on.wait(60)
            super().__init__(*given, **more)

        def fail_all(self, error):
            """End all rows, some day."""
            if hangs.is_set() and where == "drop":
                go_on.wait(60)
            super().fail_all(error)

    def hold_turn():
        with loading():
            go_on.wait(60)

    def there(weights):
        scheduler.call(weights)
        return weights.settled.wait(60) and until(lambda: weights.state == "resident")

    one, other = (
        Weights(name, lambda: lm.load(str(folders["gemma3"]))) for name in ("1", "2")
    )
    scheduler = Scheduler([one, other], rows=1, prefill_step=64, make_batch=Stuck)
    try:
        assert there(one) and there(other)
        one._load_s = 0.1  # whatever this machine took
        hangs.set()
        if where == "turn":
            threading.Thread(target=hold_turn, daemon=True).start()
            assert until(lambda: not is_free())

        scheduler.submit(one, question_row())

        assert until(lambda: one.overdue_s(0.2))
        assert not other.overdue_s(0.0)
        go_on.set()
        assert until(lambda: one.state == "resident")
        assert not one.overdue_s(0.0)
    finally:
        go_on.set()
        scheduler.close()


def is_free():
    """Return whether anybody could load something now."""
    if free := heavy._TURN.acquire(blocking=False):
        heavy._TURN.release()
    return free


def question_row():
    """Return a row of a question's, for which a model is loaded."""
    return Row((2, 105, 106), max_tokens=1, sampling=GREEDY)


def test_more_memory_than_there_is_is_refused_at_the_start(folders):
    """Whoever used it would be killed by the kernel, with everybody's answers."""
    shape = KvShape(per_token=10, windows=(), scratch_per_pair=0)
    with pytest.raises(ConfigError, match=r"memory_gib: 3 GiB .* 2\.00 GiB are free"):
        make_room(shape, 2 * GiB, asked_gib=3.0)

    engine = MlxEngine(folders["gemma3"], Settings(memory_gib=1e6))
    try:
        with pytest.raises(ConfigError, match="engine.memory_gib"):
            engine.wait(60)
    finally:
        engine.close()


# -- the disk tier, as it is configured ------------------------------------------------


def answered(model, folder, *messages):
    """Return what a new engine on *model* says, and how much of it it had kept."""
    engine = MlxEngine(model, Settings(prefix_disk=folder))
    try:
        engine.wait(60)
        reply = engine.reply(chat(*messages))
        answer = gather(reply)
        assert idle(engine)  # an answer of random tokens is read again as history
        return answer.text, answer.end.usage.cached_tokens, reply.told["x-ofa-cache"]
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_a_restarted_engine_starts_its_first_turn_warm(name, folders, tmp_path):
    """With the same words as a cold one, far past the window."""
    said, kept, told = answered(folders[name], tmp_path, *LONG)
    assert (kept, told[:4]) == (0, "miss")
    then = (*LONG, Message("assistant", said), Message("user", "more"))
    cold = answered(folders[name], None, *then)

    warm = answered(folders[name], tmp_path, *then)

    assert warm[1] > 300 and warm[2].startswith("hit; ")
    assert (warm[0], cold[1]) == (cold[0], 0)


def test_another_models_files_are_misses(folders, tmp_path):
    """Of the same shapes, names and sizes: only the weights differ."""
    other = tmp_path / "other"
    other.mkdir()
    plan = tiny.spm_plan(tiny.GEMMA_3)
    tiny.save_model(other, tiny.GEMMA_3_MODEL, plan, seed=8)
    said, *_ = answered(folders["gemma3"], tmp_path, *LONG)
    then = (*LONG, Message("assistant", said), Message("user", "more"))
    cold = answered(other, None, *then)

    beside = answered(other, tmp_path, *then)

    assert beside[:2] == (cold[0], 0)


@pytest.mark.parametrize("change", ["weights", "tokenizer.json", "chat_template.jinja"])
def test_what_is_kept_belongs_to_these_very_files(change, folders, tmp_path):
    """Tuned weights of the same size and time, or another tokenizer: not the same."""
    model = tmp_path / "model"
    shutil.copytree(folders["gemma3"], model)
    before = lm.fingerprint(model)
    shutil.copytree(model, tmp_path / "same")  # keeps times
    assert lm.fingerprint(tmp_path / "same") == before

    if change == "weights":
        path = model / "model.safetensors"
        facts, raw = path.stat(), bytearray(path.read_bytes())
        raw[len(raw) // 2 : -1] = bytes(len(raw) - 1 - len(raw) // 2)
        path.write_bytes(raw)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    else:
        path = model / change
        path.write_text((path.read_text() if path.exists() else "{}") + " ")

    assert lm.fingerprint(model) != before
