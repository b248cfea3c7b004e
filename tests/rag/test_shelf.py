"""The shelf of a running server: new states are taken up, bad ones are not."""

import logging
import shutil
import threading

import pytest

from ofa.rag.generation import CURRENT, current_folder, retire
from ofa.rag.shelf import LOOK_EVERY_S, RETRY_EVERY_S, Shelf


class Clock:
    """A clock that moves when told."""

    def __init__(self):
        self.now_s = 100.0

    def read(self):
        """Return the time."""
        return self.now_s

    def pass_s(self, seconds):
        """Let *seconds* go by."""
        self.now_s += seconds


@pytest.fixture
def clock():
    """Give a clock that moves when told."""
    return Clock()


@pytest.fixture
def shelf(tmp_path, clock):
    """Give a shelf over an empty folder."""
    return Shelf(tmp_path, clock=clock.read)


def texts(generation):
    """Return the texts of a generation's passages."""
    return [passage.text for passage in generation.passages]


def test_an_empty_shelf_has_nothing(shelf):
    """No folder, no collections, no problems."""
    assert shelf.generation("hpc") is None
    assert shelf.collections() == ()
    assert shelf.problems == {}


def test_a_missing_folder_is_an_empty_shelf(tmp_path):
    """The state folder may not be there yet."""
    shelf = Shelf(tmp_path / "not" / "there")

    assert shelf.generation("hpc") is None
    assert shelf.collections() == ()


def test_a_new_generation_is_seen_within_two_seconds(tmp_path, clock, shelf, export):
    """After a build, the next question past the interval is answered from it."""
    assert LOOK_EVERY_S <= 2
    export(tmp_path / "hpc", ["old"])
    assert texts(shelf.generation("hpc")) == ["old"]

    export(tmp_path / "hpc", ["new"])
    assert texts(shelf.generation("hpc")) == ["old"]  # not looked at again yet
    clock.pass_s(LOOK_EVERY_S)

    assert texts(shelf.generation("hpc")) == ["new"]
    assert shelf.collections() == ("hpc",)


def test_an_unchanged_generation_is_not_read_again(tmp_path, clock, shelf, export):
    """The same object serves until the pointer changes."""
    export(tmp_path / "hpc", ["text"])
    first = shelf.generation("hpc")

    clock.pass_s(100)

    assert shelf.generation("hpc") is first


def test_a_damaged_new_one_keeps_the_old(tmp_path, clock, shelf, export, caplog):
    """The old state goes on answering, the problem is told once."""
    export(tmp_path / "hpc", ["old"])
    shelf.generation("hpc")
    export(tmp_path / "hpc", ["new"])
    (current_folder(tmp_path / "hpc") / "passages.jsonl").write_bytes(b"broken")

    with caplog.at_level(logging.WARNING, "ofa.rag"):
        for _ in range(5):
            clock.pass_s(RETRY_EVERY_S)
            assert texts(shelf.generation("hpc")) == ["old"]

    assert "not what was written" in shelf.problems["hpc"]
    assert len([r for r in caplog.records if r.name == "ofa.rag"]) == 1
    assert "the state before it is served" in caplog.text


def test_a_damaged_only_one_is_off_until_it_is_built(tmp_path, clock, shelf, export):
    """Without an older state the collection is off, with a reason, and comes back."""
    export(tmp_path / "hpc", ["first"])
    (current_folder(tmp_path / "hpc") / "manifest.json").unlink()
    assert shelf.generation("hpc") is None
    assert "manifest.json is missing" in shelf.problems["hpc"]

    export(tmp_path / "hpc", ["second"])
    clock.pass_s(LOOK_EVERY_S)

    assert texts(shelf.generation("hpc")) == ["second"]
    assert shelf.problems == {}


def test_a_passing_fault_is_tried_again(tmp_path, clock, shelf, export):
    """A file that could not be read for a while is read later, unchanged pointer."""
    export(tmp_path / "hpc", ["text"])
    at = current_folder(tmp_path / "hpc") / "passages.jsonl"
    content = at.read_bytes()
    at.unlink()
    assert shelf.generation("hpc") is None
    at.write_bytes(content)

    clock.pass_s(LOOK_EVERY_S)
    assert shelf.generation("hpc") is None  # a damaged one is not read each second
    clock.pass_s(RETRY_EVERY_S)

    assert texts(shelf.generation("hpc")) == ["text"]


def test_a_folder_gone_for_a_moment_hurts_nobody(tmp_path, clock, shelf, export):
    """What is in memory answers while the folder is away, and after it is back."""
    export(tmp_path / "hpc", ["text"])
    shelf.generation("hpc")
    away = tmp_path / "elsewhere" / "hpc"
    away.parent.mkdir()
    (tmp_path / "hpc").rename(away)

    clock.pass_s(LOOK_EVERY_S)
    assert texts(shelf.generation("hpc")) == ["text"]
    assert shelf.problems["hpc"] == "its folder is gone"
    assert shelf.collections() == ("hpc",)
    away.rename(tmp_path / "hpc")
    clock.pass_s(LOOK_EVERY_S)

    assert texts(shelf.generation("hpc")) == ["text"]
    assert shelf.problems == {}


def test_a_retired_collection_is_dropped(tmp_path, clock, shelf, export):
    """Forgetting reaches a running server: nothing is kept in memory."""
    export(tmp_path / "priv-mine", ["secret"])
    shelf.generation("priv-mine")

    retire(tmp_path / "priv-mine")
    clock.pass_s(LOOK_EVERY_S)

    assert shelf.generation("priv-mine") is None
    assert shelf.problems == {}
    assert shelf.collections() == ()


def test_another_models_index_is_a_problem(tmp_path, clock, export):
    """Vectors of another model are never compared with this one's."""
    export(tmp_path / "hpc", ["text"], fingerprint="a" * 64)
    shelf = Shelf(tmp_path, fingerprint="b" * 64, clock=clock.read)

    assert shelf.generation("hpc") is None
    assert "another embedding model" in shelf.problems["hpc"]


def test_a_folder_under_another_name_is_a_problem(tmp_path, shelf, export):
    """A collection copied over another one does not pass for it."""
    export(tmp_path / "vasp", ["text"])
    (tmp_path / "vasp").rename(tmp_path / "hpc")

    assert shelf.generation("hpc") is None
    assert "'vasp'" in shelf.problems["hpc"]


def test_a_damaged_pointer_is_a_problem(tmp_path, shelf, export):
    """A pointer of noise switches the collection off and says why."""
    export(tmp_path / "hpc", ["text"])
    (tmp_path / "hpc" / CURRENT).write_bytes(b"\x00\xff")

    assert shelf.generation("hpc") is None
    assert "hpc" in shelf.problems
    assert shelf.collections() == ("hpc",)


def test_R049_rebuilt_and_deleted_while_queried(tmp_path, export):
    """Each look during rebuilds and deletions gives a whole state, never an error."""
    folder = tmp_path / "hpc"
    export(folder, ["state 0"] * 20)
    shelf = Shelf(tmp_path)
    shelf.generation("hpc")
    # A clock that jumps at each look: every question reads the pointer.
    ticks = iter(range(10**9))
    shelf = Shelf(tmp_path, clock=lambda: float(next(ticks) * 100))
    stop = threading.Event()
    seen, errors = [], []

    def ask():
        while not stop.is_set():
            try:
                generation = shelf.generation("hpc")
                assert generation is not None
                found = set(texts(generation))
                assert len(found) == 1
                assert len(generation.lexical.scores("state")) == 20
                seen.append(found.pop())
            except BaseException as exc:  # noqa: BLE001 - handed to the main thread
                errors.append(exc)
                return

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 15):
            if number % 5 == 0:
                shutil.rmtree(folder)
            export(folder, [f"state {number}"] * 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert errors == []
    assert len(set(seen)) > 1
    assert texts(shelf.generation("hpc"))[0] == "state 14"


def test_first_questions_wait_for_the_reading(tmp_path, export):
    """While one thread reads the first state, others wait for it: none gets nothing."""
    export(tmp_path / "hpc", [f"text {n}" for n in range(2000)])
    shelf = Shelf(tmp_path)
    start = threading.Barrier(6)
    found = []

    def ask():
        start.wait()
        found.append(shelf.generation("hpc"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert None not in found
    assert len({id(generation) for generation in found}) == 1
