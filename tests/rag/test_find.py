"""Finding documents: what is one, what is left out and why, and nothing outside."""

import gzip
import os

import pytest

from ofa.rag.find import find
from ofa.rag.sources import Collection, Place, one_folder


def place(root, **changes):
    """Return a collection of one place at *root*."""
    return Collection("hpc", "HPC", (Place("docs", (str(root),), **changes),))


def paths(found):
    """Return the paths of what was found."""
    return [document.path for document in found.documents]


def write(root, name, content):
    """Write a file below *root* and return its path."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_documents_come_in_a_fixed_order_with_slashes(tmp_path):
    """The order is that of the paths, however the folder was written."""
    for name in ("b/z.md", "a/b/c.txt", "a.md", "b/a.py"):
        write(tmp_path, name, f"text of {name}")

    found = find(place(tmp_path), {})

    assert paths(found) == ["a.md", "a/b/c.txt", "b/a.py", "b/z.md"]
    assert [p.count for p in found.places] == [4]


@pytest.mark.parametrize(
    "name",
    [
        ".git/config.md",
        "build/out.md",
        "_build/html/index.html",
        "src/lnInclude/U.H",
        "case/processor0/U",
        "case/processors4/U",
        "case/constant/polyMesh/boundary",
        "lib/__pycache__/x.md",
        "node_modules/x/README.md",
    ],
)
def test_folders_without_documents_are_skipped(tmp_path, name):
    """What compilers, solvers and version control leave is not read."""
    write(tmp_path, name, "text")
    write(tmp_path, "kept.md", "kept")

    assert paths(find(place(tmp_path), {})) == ["kept.md"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.png", "not really", ".png is not read"),
        ("a.pdf", "%PDF", ".pdf: damaged"),
        ("a.docx", "PK no zip", ".docx: damaged"),
        ("a.ipynb", "{", "damaged"),
        ("a.doc", "old", ".doc is not read"),
        ("MPI_Send.3", ".so man3/MPI_Recv.3\n", "it only refers to another page"),
        ("genindex.html", "<p>links", "generated beside a site's pages"),
        ("index.html?C=N;O=D", "<p>links", "another view of a page"),
        ("index.php?title=A&action=edit", "<p>links", "another view of a page"),
        ("LICENSE.txt", "text", "a licence"),
        ("OUTCAR", "text", "VASP's output"),
        (
            "POTCAR.Si",
            "PAW_PBE Si",
            "a POTCAR, which VASP's licence keeps to its licensees",
        ),
        ("a.stl.gz", "solid", ".stl is not read"),
        ("a.md", b"head\0tail", "binary"),
        ("a.txt", b"\x80\x81\x82" * 30, "binary"),
        ("a.md", "  \n\n", "empty"),
        ("a.md", "x" * 5000, "larger than 4 kB"),
        ("a.md.gz", b"no gzip", "not readable"),
        ("a.md.gz", gzip.compress(b"x" * 10_000_000), "larger than 4 kB"),
        ("a.log", "text", "not a document"),
        ("a.md~", "text", "not a document"),
        (".hidden.md", "text", "a hidden file"),
    ],
)
def test_what_is_left_out_has_a_reason(tmp_path, name, content, reason):
    """Each file that is no document is counted under why."""
    write(tmp_path, name, content)

    found = find(place(tmp_path, max_file_kb=4), {})

    assert found.documents == []
    assert found.reasons() == {reason: 1}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("caf\u00e9\n".encode(), "caf\u00e9\n"),
        ("caf\u00e9\n".encode("utf-8-sig"), "caf\u00e9\n"),
        (
            "caf\u00e9 and much more text\n".encode("latin-1"),
            "caf\ufffd and much more text\n",
        ),
        ("caf\u00e9\n".encode("utf-16"), "caf\u00e9\n"),
        (b"one\r\ntwo\rthree", "one\ntwo\nthree"),
    ],
)
def test_text_is_decoded_with_replacement(tmp_path, content, text):
    """Marks go, line ends are one kind, and a wrong byte spoils one letter only."""
    write(tmp_path, "a.md", content)

    assert find(place(tmp_path), {}).documents[0].text == text


def test_compressed_text_is_read(tmp_path):
    """Debian compresses its documents and manual pages; OpenFOAM its fields."""
    write(tmp_path, "U.gz", gzip.compress(b"internalField uniform 0;"))

    assert find(place(tmp_path), {}).documents[0].text == "internalField uniform 0;"


def test_copies_are_taken_once(tmp_path):
    """The same content under another path is no second document."""
    write(tmp_path, "a.md", "same")
    write(tmp_path, "b/a.md", "same")
    write(tmp_path, "b/c.md", "other")

    found = find(place(tmp_path), {})

    assert paths(found) == ["a.md", "b/c.md"]
    assert found.reasons() == {"a copy of another file": 1}


def test_links_lead_nowhere_outside(tmp_path):
    """A link out of the root gives nothing away; one within it is a copy at most."""
    root = tmp_path / "docs"
    write(tmp_path, "secret/key.md", "secret")
    write(root, "real.md", "real")
    (root / "out.md").symlink_to(tmp_path / "secret" / "key.md")
    (root / "folder").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(root)
    (root / "self.md").symlink_to(root / "self.md")
    (root / "dead.md").symlink_to(root / "none.md")
    (root / "within.md").symlink_to("real.md")

    found = find(place(root), {})

    assert paths(found) == ["real.md"]
    assert "secret" not in repr(found.documents)
    assert dict(found.skipped)["out.md"] == "a link that leads outside"


def test_a_root_that_is_a_link_is_followed(tmp_path):
    """Sites link the current version's folder: that is no way out."""
    write(tmp_path, "v2/a.md", "text")
    (tmp_path / "current").symlink_to("v2")

    assert paths(find(place(tmp_path / "current"), {})) == ["a.md"]


def test_devices_and_pipes_are_not_opened(tmp_path):
    """A FIFO would wait for ever: it is passed over."""
    os.mkfifo(tmp_path / "pipe.md")
    write(tmp_path, "a.md", "text")

    found = find(place(tmp_path), {})

    assert paths(found) == ["a.md"]
    assert dict(found.skipped)["pipe.md"] == "not a regular file"


def test_globs_take_and_exclude(tmp_path):
    """``**/`` is any number of folders, ``*`` stays in one, exclusion wins."""
    for name in ("a.md", "x/b.md", "x/y/c.md", "x/d.txt", "x/y/e.txt"):
        write(tmp_path, name, name)

    chosen = find(place(tmp_path, globs=("**/*.md", "x/*.txt")), {})
    fewer = find(place(tmp_path, exclude=("x/y/**", "?.md")), {})

    assert paths(chosen) == ["a.md", "x/b.md", "x/d.txt", "x/y/c.md"]
    assert paths(fewer) == ["x/b.md", "x/d.txt"]


def test_pinned_files_are_marked(tmp_path):
    """A pinned page's document says so."""
    write(tmp_path, "policy.md", "text")
    write(tmp_path, "other.md", "more")

    found = find(place(tmp_path, pinned=("policy.md",)), {})

    assert {d.path: d.pinned for d in found.documents} == {
        "policy.md": True,
        "other.md": False,
    }


def test_one_folder_does_not_crowd_out_the_rest(tmp_path):
    """Past the limit a folder's files are left out, and counted."""
    for number in range(6):
        write(tmp_path, f"many/{number}.md", f"text {number}")
    write(tmp_path, "rest/a.md", "rest")

    found = find(place(tmp_path, max_files_per_folder=4), {})

    assert len(found.documents) == 5
    assert found.reasons() == {"more files than allowed in its folder": 2}


def test_a_folders_share_counts_the_folders_in_it(tmp_path):
    """A tree of small folders is capped as one; the root itself is not."""
    for number in range(9):
        write(tmp_path, f"api/{number}/page.md", f"api {number}")
        write(tmp_path, f"guide{number}/page.md", f"guide {number}")

    found = find(place(tmp_path, max_files_below=3), {})

    assert paths(found)[:3] == ["api/0/page.md", "api/1/page.md", "api/2/page.md"]
    assert len(found.documents) == 12
    assert found.reasons() == {"more files than allowed below one folder": 6}


MENU = '<div class="menu-x"><a>Home</a><p>Contact the help desk</p></div>'


def test_a_mirrored_site_is_its_pages_without_their_chrome(tmp_path):
    """Names with a query are pages; menus, known or not, and copies are left out."""
    for number in range(10):
        page = (
            f"<html><head><title>Page {number}</title></head><body>{MENU}"
            f'<div class="sphinxsidebar"><div>Side {number}</div></div>'
            f"<h1>Page {number}</h1><p>Text of {number}.</p><pre>Home</pre>"
            '<div role="contentinfo">Foot</div></body></html>'
        )
        write(tmp_path, f"site/page.php?id={number}", page)
    write(tmp_path, "site/index.html?lang=en", "<!DOCTYPE html><p>Start here.")
    write(tmp_path, "site/index.html", "<!DOCTYPE html><p>Start here.")
    write(tmp_path, "site/_sources/page.rst.txt", "the same as source")

    found = find(place(tmp_path), {})

    assert len(found.documents) == 11
    assert found.reasons() == {"a copy of another file": 1}
    for document in found.documents:
        told = document.text
        assert "Contact" not in told
        assert "Side" not in told
        assert "Foot" not in told
        assert document.form == ".md"
    page = next(d for d in found.documents if d.path.endswith("id=3"))
    assert page.text == "# Page 3\n\nText of 3.\n\n```\nHome\n```"


def test_pages_of_the_same_text_under_other_menus_are_copies(tmp_path):
    """What makes two pages differ is what they say, not what is around it."""
    for name in ("a", "b"):
        write(
            tmp_path,
            f"{name}.html",
            f"<html><body><nav>{name}</nav><main><p>Same.</p></main></body></html>",
        )

    assert paths(find(place(tmp_path), {})) == ["a.html"]


def test_a_place_that_is_not_there_is_said(tmp_path):
    """A missing root gives no documents and no error."""
    found = find(place(tmp_path / "none"), {})

    assert found.documents == []
    assert found.places[0].root is None


def test_names_that_are_no_text_are_shown_safely(tmp_path):
    """Control characters and broken bytes in a name never reach a prompt or a log."""
    write(tmp_path, "bad\nname\x1b[31m.md", "one")
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("two")

    found = find(place(tmp_path), {})

    assert len(found.documents) == 2
    for path in paths(found):
        assert path.isprintable()
        path.encode()


def test_the_sum_of_a_place_follows_its_content(tmp_path):
    """Any changed, added or renamed document changes the place's sum."""
    write(tmp_path, "a.md", "one")
    sums = {find(place(tmp_path), {}).places[0].sha256}
    write(tmp_path, "a.md", "two")
    sums.add(find(place(tmp_path), {}).places[0].sha256)
    (tmp_path / "a.md").rename(tmp_path / "b.md")
    sums.add(find(place(tmp_path), {}).places[0].sha256)

    assert len(sums) == 3


def test_a_dictionary_that_two_cases_share_is_taken_for_each(tmp_path):
    """Who asks for a case's file gets that case's; within a case a copy is a copy."""
    for case in ("a/cavity", "b/cavityGrade"):
        folder = tmp_path / case / "constant"
        folder.mkdir(parents=True)
        (folder / "transportProperties").write_text("nu 0.01;\n")
    (tmp_path / "a/cavity/constant/copy").write_text("nu 0.01;\n")

    found = find(one_folder("openfoam", tmp_path), {})

    assert [document.path for document in found.documents] == [
        "a/cavity/constant/copy",
        "b/cavityGrade/constant/transportProperties",
    ]
