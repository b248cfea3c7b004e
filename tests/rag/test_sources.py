"""Declarations of collections: read, checked, and resolved to folders."""

import os

import pytest

from ofa.errors import ConfigError
from ofa.modes import SEED_MODES
from ofa.rag.glossary import NONE
from ofa.rag.sources import (
    Place,
    load_glossary,
    load_sources,
    one_folder,
    packaged_sources,
    pick,
)


def written(tmp_path, text):
    """Write a sources.toml and return its path."""
    path = tmp_path / "sources.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_packaged_file_declares_what_the_modes_search():
    """Every collection that a mode names is declared, with notes of its own."""
    sources = load_sources(packaged_sources())

    named = {name for mode in SEED_MODES for name in mode.collections}

    assert named == set(sources)
    for collection in sources.values():
        assert collection.places[0].label == "notes"
        assert collection.places[0].root({}) is not None, collection.name


def test_notes_are_found_beside_the_file(tmp_path):
    """A copied sources.toml has its notes beside the copy."""
    (tmp_path / "notes" / "hpc").mkdir(parents=True)

    sources = load_sources(written(tmp_path, '[hpc]\ntitle = "HPC"\n'))

    assert sources["hpc"].title == "HPC"
    assert sources["hpc"].places[0].root({}) == tmp_path / "notes" / "hpc"


def glossary_beside(tmp_path, content):
    """Write a glossary of hpc, and a sources.toml; return both paths."""
    path = tmp_path / "glossary" / "hpc.txt"
    path.parent.mkdir()
    path.write_bytes(content)
    return path, written(tmp_path, "[hpc]\n[vasp]\n")


def test_a_glossary_is_found_beside_the_file(tmp_path):
    """A collection has the one of its name, and none where there is no such file."""
    _, sources = glossary_beside(tmp_path, "fat node => gr\u00f6\u00dfer\n".encode())

    found = load_sources(sources)

    assert found["hpc"].glossary.added("two fat nodes") == ("gr\u00f6\u00dfer",)
    assert found["vasp"].glossary == NONE
    assert load_glossary(sources, "hpc") == found["hpc"].glossary


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"# nodes\n\nfat node =>\n", "line 3: a rule is"),
        (b"fat node => bigmem\nit, is => this\n", "line 2: 'it' is of words"),
        ("gr\u00f6\u00dfer => bigmem".encode("latin-1"), "not UTF-8"),
    ],
)
def test_a_mistake_in_a_glossary_is_told_by_file_and_line(tmp_path, content, told):
    """Whoever wrote it learns where; the other collections' are no use without it."""
    path, sources = glossary_beside(tmp_path, content)

    with pytest.raises(ConfigError, match=told) as caught:
        load_sources(sources)

    assert str(caught.value).startswith(f"{path}: ")


def test_a_glossary_that_cannot_be_read_is_told(tmp_path):
    """A folder of that name is a mistake, not a collection without one."""
    (tmp_path / "glossary" / "hpc.txt").mkdir(parents=True)

    with pytest.raises(ConfigError, match=r"hpc\.txt: not readable \("):
        load_glossary(written(tmp_path, "[hpc]"), "hpc")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[hpc", "not TOML"),
        ("hpc = 1", r"\[hpc\]: expected a table, got a number"),
        ("[HPC docs]", "not TOML"),
        ('["HPC docs"]', "a name is"),
        ("[hpc]\ntitel = 'x'", "titel: no such key; there are places, title"),
        ("[hpc]\ntitle = 3", "title: expected a string, got a number"),
        ("[hpc.places]\nlabel = 'x'", r"write places as \[\[hpc.places\]\]"),
        ("[hpc]\nplaces = ['x']", "1: expected a table, got a string"),
        ("[[hpc.places]]\nroots = []", "1: label is missing"),
        ("[[hpc.places]]\nlabel = 'x'", "1: roots is missing"),
        ("[[hpc.places]]\nlabel = ''\nroots = []", "label: expected a string"),
        ("[[hpc.places]]\nlabel = 'x'\nroots = 'y'", "roots: expected a list"),
        ("[[hpc.places]]\nlabel = 'x'\nroots = ['']", "roots: expected a list"),
        ("[[hpc.places]]\nlabel='x'\nroots=[]\nglob=[]", "1 glob: no such key"),
        ("[[hpc.places]]\nlabel='x'\nroots=[]\nunder='y'", "1 under: no such key"),
        ("[[hpc.places]]\nlabel='x'\nroots=[]\nmax_file_kb=0", "1 or more"),
        ("[[hpc.places]]\nlabel='x'\nroots=[]\nmax_file_kb=true", "1 or more"),
        ("[[hpc.places]]\nlabel='x'\nroots=[]\ntier=0", "1 or more"),
        ("[[hpc.places]]\nlabel='x'\nroots=[]\ntier=10", "1 to 9"),
    ],
)
def test_a_mistake_is_told_by_file_and_key(tmp_path, text, told):
    """The message names the file, the table and the key."""
    path = written(tmp_path, text)

    with pytest.raises(ConfigError, match=told) as caught:
        load_sources(path)

    assert str(caught.value).startswith(str(path))


def test_no_file_and_no_text_are_told(tmp_path):
    """A missing file and one that is not UTF-8 are configuration errors."""
    with pytest.raises(ConfigError, match="not readable"):
        load_sources(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"[hpc]\ntitle = '\xff'\n")
    with pytest.raises(ConfigError, match="not TOML"):
        load_sources(tmp_path / "latin.toml")


def test_the_first_root_that_is_there_counts(tmp_path):
    """Variables that are unset or lead nowhere are passed over."""
    (tmp_path / "there").mkdir()
    place = Place("x", ("$UNSET/docs", "${GONE}", "$THERE/there", str(tmp_path)))
    env = {"GONE": str(tmp_path / "gone"), "THERE": str(tmp_path)}

    assert place.root(env) == tmp_path / "there"
    assert Place("x", ("$UNSET",)).root(env) is None


def test_a_star_means_the_highest_version(tmp_path):
    """openfoam10 is newer than openfoam9, whatever the alphabet says."""
    for name in ("openfoam9", "openfoam10", "openfoam2"):
        (tmp_path / name / "tutorials").mkdir(parents=True)

    root = Place("x", (f"{tmp_path}/openfoam*/tutorials",)).root({})

    assert root == tmp_path / "openfoam10" / "tutorials"


def test_a_relative_root_is_none(tmp_path, monkeypatch):
    """Where somebody stands has no say in what is indexed."""
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)

    assert Place("x", ("docs", "$D")).root({"D": "docs"}) is None


def test_an_installed_package_can_be_a_root():
    """``py:NAME`` is its folder; a missing or dotted name is not there."""
    root = Place("x", ("py:ofa",)).root({})

    assert root is not None
    assert (root / "errors.py").is_file()
    assert Place("x", ("py:no_such_package", "py:ofa.rag")).root({}) is None


@pytest.mark.parametrize("name", ["plain", "with [brackets]", "with $HOME", "a*b?"])
def test_a_folder_named_by_hand_means_itself(tmp_path, name):
    """No sign in a folder's name is taken for a pattern or a variable."""
    folder = tmp_path / name
    folder.mkdir()

    collection = one_folder("mine", folder)

    assert collection.places[0].root(dict(os.environ)) == folder


def test_pick_gives_the_named_or_all():
    """Names are taken once each, in order; an unknown one is told with the others."""
    sources = load_sources(packaged_sources())

    assert [c.name for c in pick(sources, ["vasp", "hpc", "vasp"])] == ["vasp", "hpc"]
    assert len(pick(sources, [])) == len(sources)
    with pytest.raises(ConfigError, match="no collection 'hpcc'; there are amrex"):
        pick(sources, ["hpcc"])
