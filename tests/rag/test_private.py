"""The private layer: one's own folders, added, listed, replaced and forgotten."""

import stat

import pytest

from ofa.errors import ConfigError, OfaError
from ofa.rag.private import PrivateLayers
from ofa.rag.shelf import Shelf


@pytest.fixture
def layers(tmp_path):
    """Give the layers of an empty state folder."""
    return PrivateLayers(tmp_path / "private")


@pytest.fixture
def add(layers, embedder):
    """Give a function that adds a folder."""

    def add(folder, name=""):
        return layers.add(folder, name, embedder, lambda what, done, total: None)[0]

    return add


@pytest.fixture
def thesis(tmp_path):
    """Write a small folder of one's own."""
    root = tmp_path / "My Thesis"
    (root / "chapters").mkdir(parents=True)
    (root / "chapters" / "one.md").write_text("# One\n\nThe zebrafish solver.\n")
    (root / "run.py").write_text("def main():\n    return 'zebra'\n")
    (root / "paper.pdf").write_bytes(b"%PDF-1.7")
    return root


def test_what_is_added_is_private_and_searched(layers, add, thesis):
    """Passages are marked private, under the folder's name, with what was left out."""
    layer = add(thesis)

    shelf = Shelf(layers.folder)
    found = shelf.generation(layer.collection)

    assert (layer.name, layer.collection) == ("My Thesis", "priv-my-thesis")
    assert shelf.collections() == ("priv-my-thesis",)
    assert all(passage.private for passage in found.passages)
    assert {p.path for p in found.passages} == {
        "My Thesis/chapters/one.md",
        "My Thesis/run.py",
    }
    assert layer.skipped == {".pdf: damaged": 1}
    assert layers.layers() == (layer,)


def test_everything_is_the_owners_alone(layers, add, thesis):
    """No file or folder of the layer can be read by others."""
    add(thesis)

    assert stat.S_IMODE(layers.folder.stat().st_mode) == 0o700
    for path in layers.folder.glob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_adding_again_replaces(layers, add, thesis):
    """The same folder again is the same layer, as it is now."""
    add(thesis)
    (thesis / "chapters" / "one.md").write_text("# One\n\nAbout quokkas now.\n")

    layer = add(thesis)

    found = Shelf(layers.folder).generation(layer.collection)
    texts = " ".join(passage.text for passage in found.passages)
    assert "quokkas" in texts
    assert "zebrafish" not in texts
    assert len(layers.layers()) == 1


def test_a_new_name_renames(layers, add, thesis):
    """The same folder under another name leaves no second copy of it."""
    add(thesis)

    layer = add(thesis, "book")

    assert [at.name for at in layers.layers()] == ["book"]
    assert Shelf(layers.folder).collections() == (layer.collection,)


def test_another_folder_of_that_name_is_refused(add, tmp_path, thesis):
    """Two folders called alike need a name to tell them apart."""
    add(thesis)
    other = tmp_path / "elsewhere" / "my-thesis"
    other.mkdir(parents=True)
    (other / "a.md").write_text("text")

    with pytest.raises(ConfigError, match="--name"):
        add(other)


def test_a_name_given_again_replaces_its_folder(layers, add, tmp_path, thesis):
    """Who names the layer means that layer, wherever the folder has moved."""
    add(thesis, "book")
    moved = tmp_path / "moved"
    thesis.rename(moved)

    layer = add(moved, "book")

    assert [at.folder for at in layers.layers()] == [str(moved)]
    assert layer.collection == "priv-book"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", "\u65e5\u672c", "A" * 300])
def test_any_name_stays_in_the_folder(layers, add, thesis, name):
    """No name leads out of the private folder or breaks chromadb's rules."""
    layer = add(thesis, name)

    assert layer.name == name
    assert (layers.folder / layer.collection).parent == layers.folder
    assert Shelf(layers.folder).collections() == (layer.collection,)


def test_nothing_to_index_adds_nothing(layers, add, tmp_path):
    """An empty folder makes no layer; a missing one is an error."""
    empty = tmp_path / "empty"
    empty.mkdir()

    assert add(empty).passages == 0
    assert layers.layers() == ()
    with pytest.raises(ConfigError, match="no such folder"):
        add(tmp_path / "missing")


def test_forgetting_leaves_no_text(layers, add, thesis):
    """After it no file below the private folder holds a word of the documents."""
    layer = add(thesis)
    shelf = Shelf(layers.folder, clock=iter(range(0, 10**6, 100)).__next__)
    assert shelf.generation(layer.collection) is not None

    forgotten = layers.forget("My Thesis")

    assert forgotten == layer
    assert layers.layers() == ()
    assert shelf.generation(layer.collection) is None
    assert shelf.collections() == ()
    for path in layers.folder.rglob("*"):
        assert path.is_dir() or b"zebra" not in path.read_bytes(), path


def test_forgetting_what_is_not_there_names_what_is(layers, add, thesis):
    """The error lists the layers that there are."""
    add(thesis)

    with pytest.raises(ConfigError, match="there are: My Thesis"):
        layers.forget("other")


def test_forget_all_clears_even_a_broken_list(layers, add, thesis):
    """A list that can't be read stops listing, not forgetting."""
    add(thesis)
    (layers.folder / "layers.json").write_text("{broken")
    with pytest.raises(OfaError, match="forget-private all"):
        layers.layers()

    assert layers.forget_all() == 1

    assert layers.layers() == ()
    assert Shelf(layers.folder).collections() == ()
    for path in layers.folder.rglob("*"):
        assert path.is_dir() or b"zebra" not in path.read_bytes(), path
