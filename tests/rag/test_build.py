"""Builds end to end: real chromadb, real MiniLM, generations that servers read."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from ofa.rag.build import BuildFailed, Workshop, build
from ofa.rag.build_lock import BuildRunning, only_builder
from ofa.rag.chance import Chance, measure
from ofa.rag.glossary import NONE, Glossary
from ofa.rag.plan import plan
from ofa.rag.retrieve import Retriever, Settings
from ofa.rag.shelf import Shelf
from ofa.rag.sources import Collection, Place


def hpc(root, **changes):
    """Return the collection ``hpc`` of one folder."""
    return Collection("hpc", "HPC", (Place("documents", (str(root),), **changes),))


@pytest.fixture
def workshop(tmp_path, embedder):
    """Give a workshop in an empty folder."""
    rag = tmp_path / "rag"
    return Workshop(rag / "chroma", rag, embedder, env={})


def test_a_question_finds_its_document(small_index, embedder):
    """What was built is what a server searches, by meaning and by word."""
    found = Shelf(small_index, fingerprint=embedder.fingerprint).generation("hpc")

    question = embedder.query("how many graphics cards does each machine get")
    by_meaning = found.passages[int((found.vectors @ question).argmax())]
    by_word = found.passages[int(found.lexical.scores("--gpus-per-node").argmax())]

    assert by_meaning.path == by_word.path == "slurm/gpus.md"
    assert found.manifest.embedder == "all-minilm-l6-v2"
    assert found.manifest.passages == len(found.passages)
    assert [note.count for note in found.manifest.sources] == [4]


def test_vectors_are_those_of_the_passages(small_index, embedder):
    """Row i is the vector of passage i, through chromadb and half precision."""
    found = Shelf(small_index).generation("hpc")
    row = next(i for i, p in enumerate(found.passages) if "spider" in p.text)

    path = "modules/lmod.rst (modules lmod rst): Modules"
    expected = embedder.passages([f"hpc: {path}\n{found.passages[row].text}"])[0]

    assert float(found.vectors[row] @ expected) > 0.999


def test_nothing_changed_builds_nothing(documents, workshop):
    """A second build embeds nothing and leaves the generation as it is."""
    first = build([hpc(documents)], workshop)[0]
    second = build([hpc(documents)], workshop)[0]

    assert first.changed
    assert first.embedded == first.passages > 3
    assert not second.changed
    assert (second.embedded, second.dropped) == (0, 0)
    assert second.generation == first.generation


def test_only_what_changed_is_embedded(documents, workshop):
    """A new, a changed and a deleted document cost what they are, and no more."""
    before = build([hpc(documents)], workshop)[0]
    (documents / "slurm" / "arrays.md").write_text("# Job arrays\n\nChanged text.\n")
    (documents / "slurm" / "new.md").write_text("# New\n\nAdded text.\n")
    (documents / "jobs" / "run.sh").unlink()

    after = build([hpc(documents)], workshop)[0]
    found = Shelf(workshop.shelf).generation("hpc")

    assert after.changed
    assert after.embedded == 2
    assert after.dropped == 2
    assert after.passages == before.passages
    texts = " ".join(passage.text for passage in found.passages)
    assert "Changed text." in texts
    assert "Added text." in texts
    assert "srun ./solver" not in texts


def test_pinning_alone_makes_a_new_generation(documents, workshop):
    """What is declared about a page is part of what is served; nothing is embedded."""
    build([hpc(documents)], workshop)

    built = build([hpc(documents, pinned=("slurm/gpus.md",))], workshop)[0]
    found = Shelf(workshop.shelf).generation("hpc")

    assert built.changed
    assert built.embedded == 0
    assert {p.path for p in found.passages if p.pinned} == {"slurm/gpus.md"}


def test_a_glossary_alone_makes_a_new_generation(documents, workshop):
    """A changed one is served at once and embeds nothing; the same builds nothing."""
    rules = Glossary.parse("out of memory => --mem\n")
    widened = replace(hpc(documents), glossary=rules)

    first, same = (build([widened], workshop)[0] for _ in range(2))
    found = Shelf(workshop.shelf).generation("hpc")
    plain = build([hpc(documents)], workshop)[0]

    assert (first.changed, same.changed) == (True, False)
    assert same.generation == first.generation == found.name
    assert found.glossary == rules
    assert (plain.changed, plain.embedded, plain.dropped) == (True, 0, 0)
    assert Shelf(workshop.shelf).generation("hpc").glossary == NONE


def test_a_build_measures_what_chance_finds(small_index, embedder):
    """The manifest has the mean and the spread that the served vectors have."""
    found = Shelf(small_index).generation("hpc")

    expected = measure(found.vectors, embedder)

    assert found.manifest.chance.mean == pytest.approx(expected.mean, abs=1e-3)
    assert found.manifest.chance.spread == pytest.approx(expected.spread, abs=1e-3)
    assert found.manifest.chance != Chance()


def test_a_damaged_generation_is_made_again(documents, workshop):
    """Unchanged documents over a damaged export give a new export, from the store."""
    first = build([hpc(documents)], workshop)[0]
    (workshop.shelf / "hpc" / first.generation / "vectors.f16.npy").write_bytes(b"x")

    second = build([hpc(documents)], workshop)[0]

    assert second.changed
    assert second.embedded == 0
    assert Shelf(workshop.shelf).generation("hpc") is not None


def test_an_empty_collection_is_said_and_keeps_what_there_was(documents, workshop):
    """A root that went away does not take the served state with it."""
    build([hpc(documents)], workshop)
    documents.rename(documents.with_name("away"))

    built = build([hpc(documents)], workshop)[0]

    assert built.generation == ""
    assert built.missing == ("documents",)
    assert Shelf(workshop.shelf).generation("hpc") is not None


@pytest.mark.parametrize("damage", ["cut", "noise", "segment"])
def test_a_damaged_store_is_made_again(documents, workshop, caplog, damage):
    """chromadb's folder is a cache: damaged, it is moved aside and filled anew."""
    build([hpc(documents)], workshop)
    database = workshop.store / "chroma.sqlite3"
    if damage == "segment":
        for path in workshop.store.glob("*/data_level0.bin"):
            path.write_bytes(b"\xff" * 100)
        for path in workshop.store.glob("*/*.pickle"):
            path.write_bytes(b"noise")
        database.write_bytes(database.read_bytes()[:8192])
    elif damage == "cut":
        database.write_bytes(database.read_bytes()[:5000])
    else:
        database.write_bytes(os.urandom(20_000))
    (documents / "slurm" / "new.md").write_text("# New\n\nAdded text.\n")

    built = build([hpc(documents)], workshop)[0]

    assert built.embedded == built.passages
    assert "moved to chroma.damaged-" in caplog.text
    assert len(list(workshop.shelf.glob("chroma.damaged-*"))) == 1
    assert Shelf(workshop.shelf).generation("hpc") is not None


def test_a_disk_that_fails_is_told_by_name(documents, tmp_path, embedder):
    """A folder that can't be made is an error with its path, not a traceback."""
    (tmp_path / "file").write_text("in the way")
    shelf = tmp_path / "file" / "rag"

    with pytest.raises(BuildFailed, match="can't be written") as caught:
        build([hpc(documents)], Workshop(shelf / "chroma", shelf, embedder, env={}))

    assert str(tmp_path / "file") in str(caught.value)


def test_progress_is_told_for_each_step(documents, workshop):
    """Reading and embedding count up to their totals."""
    told = []
    watched = Workshop(
        workshop.store,
        workshop.shelf,
        workshop.embedder,
        env={},
        progress=lambda what, done, total: told.append((what, done, total)),
    )

    built = build([hpc(documents)], watched)[0]

    assert ("hpc: reading", 4, 4) in told
    assert ("hpc: embedding", built.passages, built.passages) in told
    assert all(done <= total for _, done, total in told)


def test_a_plan_writes_nothing(documents, tmp_path, workshop):
    """A dry run counts documents, and about passages; the disk is left alone."""
    before = sorted(tmp_path.rglob("*"))

    planned, seconds = plan([hpc(documents), hpc(tmp_path / "none")], workshop)

    assert [one.documents for one in planned] == [4, 0]
    assert [one.chunks for one in planned] == [5, 0]
    assert planned[0].fresh == planned[0].chunks
    assert seconds > 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_knows_what_is_built(documents, workshop):
    """Places that hold what they held cost nothing; a changed one, all of it."""
    made = build([hpc(documents)], workshop)[0]
    same = plan([hpc(documents)], workshop)
    (documents / "slurm" / "new.md").write_text("# New\n\nAdded text.\n")
    more = plan([hpc(documents)], workshop)

    assert (same[0][0].chunks, same[0][0].fresh, same[1]) == (made.passages, 0, 0.0)
    assert more[0][0].fresh == more[0][0].chunks > made.passages


def test_copies_within_a_document_are_one_passage(tmp_path, workshop):
    """The same paragraph twice under one heading is indexed once."""
    root = tmp_path / "copies"
    root.mkdir()
    part = "word " * 150
    (root / "a.txt").write_text(f"{part}\n\n{part}\n\n{part}\n")

    assert build([hpc(root)], workshop)[0].passages == 1


def test_vectors_of_another_model_are_dropped(documents, workshop, embedder):
    """A model of another dimension fills the store anew, without a clash."""

    class Narrow:
        """Half of MiniLM: 192 numbers."""

        name, fingerprint = "narrow", "n" * 64
        window, dimension = embedder.window, 192
        count_tokens = staticmethod(embedder.count_tokens)

        @classmethod
        def query(cls, text):
            """Return a random unit vector."""
            return cls.passages([text])[0]

        @staticmethod
        def passages(texts, on_progress=None):
            """Return random unit vectors."""
            rows = np.random.default_rng(0).normal(size=(len(texts), 192))
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            return (rows / lengths).astype(np.float32)

    build([hpc(documents)], workshop)
    narrow = Workshop(workshop.store, workshop.shelf, Narrow(), env={})

    built = build([hpc(documents)], narrow)[0]
    back = build([hpc(documents)], workshop)[0]

    assert built.embedded == built.passages
    assert back.embedded == back.passages  # the first model's were not kept
    assert Shelf(workshop.shelf).generation("hpc").manifest.dimension == 384


def test_a_second_builder_is_refused_and_told_who(tmp_path):
    """While one builds, another gets the holder's process and host."""
    with only_builder(tmp_path):
        told = pytest.raises(BuildRunning, match=f"process {os.getpid()} on ")
        with told as caught, only_builder(tmp_path):
            pass
        assert str(tmp_path / "build.lock") in str(caught.value)

    with only_builder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_given_back_after_a_failure(tmp_path):
    """An error inside a build does not leave the folder locked."""
    with pytest.raises(RuntimeError), only_builder(tmp_path):
        raise RuntimeError("disk full")

    assert list(tmp_path.iterdir()) == []


def held(pid, host, since):
    """Return the content of a lock."""
    return json.dumps({"pid": pid, "host": host, "since": since, "mark": "m"})


def test_a_dead_builders_lock_is_taken(tmp_path):
    """A process of this host that is gone holds nothing."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    lock = tmp_path / "build.lock"
    lock.write_text(held(child.pid, socket.gethostname(), time.time()))

    with only_builder(tmp_path):
        assert json.loads(lock.read_bytes())["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("content", "age_s", "free"),
    [
        (held(1, "other-node", time.time()), 0, False),
        (held(1, "other-node", time.time() - 90_000), 0, True),
        ("", 0, False),
        ("", 90_000, True),
        ("{", 0, False),
    ],
    ids=["fresh", "days old", "empty", "empty, days old", "broken"],
)
def test_other_nodes_locks_age(tmp_path, content, age_s, free):
    """Who can't be asked is believed for a day; so is a lock that was cut short."""
    lock = tmp_path / "build.lock"
    lock.write_text(content)
    os.utime(lock, (time.time() - age_s,) * 2)

    if free:
        with only_builder(tmp_path):
            pass
        assert not lock.exists()
    else:
        with pytest.raises(BuildRunning, match="remove"), only_builder(tmp_path):
            pass
        assert lock.read_text() == content


def test_of_many_racing_builders_one_wins_at_a_time(tmp_path):
    """Threads that find a stale lock together never build together."""
    lock = tmp_path / "build.lock"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    inside, most, refused = 0, 0, 0
    counting = threading.Lock()
    start = threading.Barrier(8)

    def race():
        nonlocal inside, most, refused
        for _ in range(20):
            start.wait()
            try:
                with only_builder(tmp_path):
                    with counting:
                        inside += 1
                        most = max(most, inside)
                    with counting:
                        inside -= 1
            except BuildRunning:
                with counting:
                    refused += 1

    lock.write_text(held(child.pid, socket.gethostname(), time.time()))
    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    assert not lock.exists()


@pytest.mark.parametrize(("age_s", "free"), [(0, False), (3600, True)])
def test_one_that_was_killed_while_it_cleared_stops_nobody_for_long(
    tmp_path, age_s, free
):
    """What it leaves is somebody's at work first, and after ten minutes nobody's."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    lock, left = tmp_path / "build.lock", tmp_path / "build.lock.clearing"
    lock.write_text(held(child.pid, socket.gethostname(), time.time()))
    left.write_bytes(b"")
    then = time.time() - age_s
    os.utime(left, (then, then))

    refused = nullcontext() if free else pytest.raises(BuildRunning)
    with refused, only_builder(tmp_path):
        assert json.loads(lock.read_bytes())["pid"] == os.getpid()

    assert lock.exists() == left.exists() == (not free)


def test_a_places_tier_decides_between_equals(tmp_path, workshop, embedder):
    """Tutorials go before internals that fit as well, and not before better ones."""
    text = "# Ghost cells\n\nFillBoundary copies ghost cells between boxes{}.\n"
    for name, more in (("a-internals", ""), ("z-tutorials", " here")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.md").write_text(text.format(more))
    (tmp_path / "a-internals" / "only.md").write_text(
        "# Plotfiles\n\nWritten by rank.\n"
    )
    places = [
        Place(name, (str(tmp_path / name),), tier=tier)
        for name, tier in (("a-internals", 2), ("z-tutorials", 1))
    ]

    def first(question, places):
        build([Collection("amrex", "AMReX", tuple(places))], workshop)
        shelf = Shelf(workshop.shelf)
        retriever = Retriever(
            shelf, lambda: embedder, settings=Settings(floor=None, deadline_s=60)
        )
        return retriever.find(["amrex"], question).hits[0].passage

    ghost = "How does FillBoundary copy ghost cells between boxes?"
    assert first(ghost, places).text.endswith("here.")
    assert first("Which rank writes plotfiles?", places).path == "only.md"
    swapped = [replace(at, tier=3 - at.tier) for at in places]
    assert first(ghost, swapped).text.endswith("boxes.")
