"""`ofa index`: build, status and the private layer, from the command line."""

import pytest

from ofa.cli import index
from ofa.cli.parser import Parser
from ofa.errors import ConfigError
from ofa.rag.shelf import Shelf

SOURCES = """
[hpc]
title = "HPC"

[[hpc.places]]
label = "site"
roots = ["$SITE_DOCS"]

[vasp]
title = "VASP"
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Give the commands a state folder, a site.toml and sources of this test's own."""
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SITE_DOCS", raising=False)
    (tmp_path / "notes" / "hpc").mkdir(parents=True)
    (tmp_path / "notes" / "hpc" / "queue.md").write_text(
        "# Queues\n\nThe queue `gpu` has a limit of two days.\n"
    )
    (tmp_path / "sources.toml").write_text(SOURCES)
    (tmp_path / "site.toml").write_text(
        f'[rag]\nsources = "{tmp_path / "sources.toml"}"\n'
    )
    return tmp_path / "state"


@pytest.fixture
def run(state, capsys):
    """Run a command; return its exit code, output and errors."""
    site = state.parent / "site.toml"

    def run(*words):
        parser = Parser()
        index.add(parser.add_subparsers())
        args = parser.parse_args(["index", *words, "--site", str(site)])
        code = args.func(args)
        return code, *capsys.readouterr()

    return run


def test_built_status_and_built_again(run, state):
    """A build says what it took, status what there is, and a second build nothing."""
    code, out, _ = run("build")
    assert code == 0
    assert "hpc: built; 1 documents, 1 passages, 1 of them new, 0 gone" in out
    assert "  not there: site" in out
    assert "vasp: nothing to index" in out
    assert Shelf(state / "rag").collections() == ("hpc",)

    code, out, _ = run("status")
    assert code == 0
    assert f"index: {state / 'rag'}" in out
    assert "1 passages (1 from notes), by all-minilm-l6-v2" in out
    assert "not built; run `ofa index build vasp`" in out
    assert "site: not there: $SITE_DOCS" in out
    assert "private: 0" in out

    assert "hpc: as it was; 1 documents" in run("build", "hpc")[1]


def test_a_damaged_index_is_told_by_status(run, state):
    """Status says that it is damaged and what to do; it does not fail."""
    run("build", "hpc")
    next((state / "rag" / "hpc").glob("gen-*/passages.jsonl")).write_text("{")

    code, out, _ = run("status")

    assert code == 0
    assert "damaged: " in out
    assert "ofa index build" in out


def test_a_dry_run_counts_and_leaves_no_trace(run, state):
    """What would be indexed is told; nothing is built."""
    code, out, _ = run("build", "--dry-run")

    assert code == 0
    assert "hpc: 1 documents" in out
    assert not (state / "rag").exists()


def test_from_a_folder_takes_it_beside_the_notes(run, state):
    """One collection takes the folder itself, several the folders of their names."""
    docs = state.parent / "docs"
    (docs / "hpc").mkdir(parents=True)
    (docs / "hpc" / "login.md").write_text("# Login\n\nUse ssh.\n")
    (docs / "hpc" / "logo.png").write_bytes(b"PNG")

    whole = run("build", "hpc", "--from", str(docs), "--dry-run")[1]
    several = run("build", "--from", str(docs), "--dry-run")[1]

    assert "hpc: 2 documents" in whole
    assert "left out: 1 .png is not read" in whole
    assert "hpc: 2 documents" in several
    assert "vasp" not in several


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("build", "nope"), "no collection 'nope'; there are hpc, vasp"),
        (("build", "--from", "/no/such/folder"), "no such folder"),
        (("add-private", "/no/such/folder"), "no such folder"),
        (("forget-private", "nope"), "no private layer 'nope'; there are: none"),
    ],
)
def test_mistakes_name_the_thing(run, words, told):
    """A wrong name or folder is a configuration error that says which."""
    with pytest.raises(ConfigError, match=told):
        run(*words)


def test_a_folder_with_no_collections_is_refused(run, state):
    """--from for several collections needs folders of their names."""
    (state.parent / "docs").mkdir()

    with pytest.raises(ConfigError, match="none of the folders hpc, vasp"):
        run("build", "--from", str(state.parent / "docs"))


def test_the_private_layer_from_add_to_forget(run, state):
    """A folder is added, listed and forgotten, by the name it was given."""
    own = state.parent / "own"
    own.mkdir()
    (own / "a.md").write_text("# Mine\n\nMy allocation is tulip.\n")

    code, out, _ = run("add-private", str(own), "--name", "garden")
    assert code == 0
    assert f"garden: 1 documents, 1 passages of {own}, for you alone" in out
    assert run("list-private")[1].startswith(
        f"garden: 1 documents, 1 passages of {own}"
    )
    assert "private: 1" in run("status")[1]
    assert Shelf(state / "private").collections() == ("priv-garden",)

    assert run("forget-private", "garden")[1] == "forgot garden\n"
    assert run("list-private")[1] == ""
    assert run("forget-private", "all")[1] == "forgot 0 private layers\n"


def test_a_private_folder_without_text_fails(run, state):
    """Nothing to index is an error, with the reasons."""
    own = state.parent / "own"
    own.mkdir()
    (own / "a.pdf").write_bytes(b"%PDF")

    code, out, err = run("add-private", str(own))

    assert code == 1
    assert "no text to index" in err
    assert "left out: 1 .pdf: damaged" in out
