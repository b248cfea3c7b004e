"""A build that is killed, and one that others read: nothing lost, nothing written."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from ofa.rag.build import BATCH, Workshop, build
from ofa.rag.retrieve import Retriever, Settings
from ofa.rag.shelf import Shelf
from ofa.rag.shelves import Shelves
from ofa.rag.sources import Collection, Place

ROOT = Path(__file__).parents[2]
BATCHES = 4


class Hashed:
    """An embedder whose vectors are made from words: quick, and the same each time."""

    name, fingerprint, window, dimension = "hashed", "h" * 64, 40, 16

    @staticmethod
    def count_tokens(text):
        """Count words and the two marks."""
        return len(text.split()) + 2

    def passages(self, texts, on_progress=None):
        """Return a unit vector for each text."""
        rows = np.array([self.query(text) for text in texts])
        if on_progress:
            on_progress(len(texts))
        return rows

    @staticmethod
    def query(text):
        """Return the sum of a direction for each word."""
        total = np.zeros(16)
        for word in text.lower().split():
            seed = int.from_bytes(word.encode()[:8].ljust(8, b"."), "big") % (1 << 32)
            total += np.random.default_rng(seed).normal(size=16)
        return (total / np.linalg.norm(total)).astype(np.float32)


def workshop(shelf, **more):
    """Return a workshop in *shelf* with the quick embedder."""
    return Workshop(shelf / "chroma", shelf, Hashed(), env={}, **more)


def collection(root):
    """Return the collection ``hpc`` of one folder."""
    return Collection("hpc", "HPC", (Place("documents", (str(root),)),))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write documents of some batches of passages, and return their folder."""
    root = tmp_path_factory.mktemp("pages")
    for number in range(BATCHES * BATCH):
        (root / f"{number}.md").write_text(
            f"# Page {number}\n\nText of page {number}.\n"
        )
    return root


@pytest.fixture(scope="module")
def whole(pages, tmp_path_factory):
    """Build without an interruption; return the shelf."""
    shelf = tmp_path_factory.mktemp("whole")
    build([whole_collection(pages)], workshop(shelf))
    return shelf


def whole_collection(root):
    """Return the collection with its folder's cap lifted."""
    place = Place("documents", (str(root),), max_files_per_folder=100_000)
    return Collection("hpc", "HPC", (place,))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.rag import test_resumed as at

def progress(step, done, total):
    if step.endswith("embedding") and done > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

shelf = Path(sys.argv[1])
collections = [at.whole_collection(Path(sys.argv[2]))]
at.build(collections, at.workshop(shelf, progress=progress))
"""


@pytest.mark.parametrize("batches", [1, 3])
def test_a_killed_build_is_taken_up_where_it_was(pages, whole, tmp_path, batches):
    """What was embedded before the kill is not embedded again; the end is the same."""
    command = [sys.executable, "-c", KILLED, tmp_path, pages, str(batches * BATCH)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=100)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert Shelf(tmp_path).generation("hpc") is None

    made = build([whole_collection(pages)], workshop(tmp_path))[0]

    assert made.passages == BATCHES * BATCH
    assert made.embedded == (BATCHES - batches) * BATCH
    once, again = (Shelf(at).generation("hpc") for at in (whole, tmp_path))
    assert again.passages == once.passages
    assert np.array_equal(again.vectors, once.vectors)
    assert again.manifest.content == once.manifest.content


def test_a_build_of_ones_own_is_for_nobody_else(whole):
    """Without being asked, nothing that was built can be read by others."""
    for path in (whole / "hpc").rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


@pytest.fixture
def site():
    """Give a folder that strangers can come to, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def seen_from(shelf):
    """Return what a search in *shelf* finds first."""
    retriever = Retriever(
        Shelves([Shelf(shelf / "no such"), Shelf(shelf)]),
        Hashed,
        settings=Settings(floor=None, deadline_s=60),
    )
    return retriever.find(["hpc"], "Text of page 7.").hits[0].passage.path


def test_a_sites_index_is_read_by_who_can_not_write(documents, site):
    """Another user, on files that nobody can write, finds; and leaves no trace."""
    for number in range(9):
        (documents / f"{number}.md").write_text(f"# Page\n\nText of page {number}.\n")
    shelf = site / "index"
    build([collection(documents)], workshop(shelf, open_to_all=True))
    for path in [shelf, *shelf.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = {p: p.stat().st_mtime_ns for p in [shelf, *shelf.rglob("*")]}
    assert seen_from(shelf) == "7.md"  # and all modules are loaded: a child may not be

    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            able = os.access(shelf / "hpc", os.W_OK)
            os._exit(0 if seen_from(shelf) == "7.md" and not able else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    after = {p: p.stat().st_mtime_ns for p in [shelf, *shelf.rglob("*")]}
    for path in [shelf, *shelf.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)

    assert os.waitstatus_to_exitcode(status) == 0
    assert after == before


def test_ones_own_state_goes_before_the_sites(tmp_path, export):
    """Each collection is the user's if they have it, else the site's."""
    own, site = tmp_path / "own", tmp_path / "site"
    export(own / "hpc", ["mine"])
    export(site / "hpc", ["theirs"])
    export(site / "vasp", ["theirs"])
    shelves = Shelves([Shelf(own), Shelf(site)])

    assert shelves.collections() == ("hpc", "vasp")
    assert shelves.generation("hpc").passages[0].text == "mine"
    assert shelves.generation("vasp").passages[0].text == "theirs"
    assert shelves.generation("amrex") is None
    assert not shelves.problems
