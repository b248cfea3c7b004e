"""Files of other formats to text: PDF, office files, notebooks; broken ones skipped."""

import io
import json
import os
import time
import zipfile

import pypdf
import pytest

from ofa.rag.chunk import chunk
from ofa.rag.find import find
from ofa.rag.read import Reader
from ofa.rag.read_apart import Apart
from ofa.rag.read_notebook import notebook
from ofa.rag.sources import Collection, Place
from ofa.rag.unread import Unread

from . import files


@pytest.fixture(scope="module")
def apart():
    """Give one reading process for all tests of this file."""
    with Apart() as reading:
        yield reading


def read(apart, path):
    """Return what is read of a file, within 1 MB."""
    return Reader(apart).read(path, text_bytes=1 << 20, file_bytes=1 << 20)


def why(apart, path):
    """Return why a file is not read."""
    with pytest.raises(Unread) as caught:
        read(apart, path)
    return str(caught.value)


def test_a_pdf_is_read_by_page(apart, tmp_path):
    """Pages are apart, words cut at a line's end are whole, the title is the file's."""
    path = tmp_path / "guide.pdf"
    path.write_bytes(files.pdf([["Use a parti-", "tion (debug)."], ["Second page."]]))

    told = read(apart, path)

    assert told.form == ".pages"
    assert told.text == "The Guide\fUse a partition (debug).\fSecond page."


def test_what_each_page_repeats_is_left_out(apart, tmp_path):
    """Running heads go, whatever their page number; the same line inside stays."""
    pages = [
        [
            "User Guide 1.0",
            f"{n * 'x'} begins",
            "User Guide 1.0",
            f"ends {n * 'y'}",
            f"- {n} -",
        ]
        for n in range(1, 7)
    ]
    path = tmp_path / "guide.pdf"
    path.write_bytes(files.pdf([*pages, ["User Guide 1.0", "The last", "word"]]))

    first, *rest = read(apart, path).text.split("\f")[1:]

    assert "- 1 -" not in first
    assert first.splitlines()[0] == "x begins"
    assert "User Guide 1.0" in first
    assert rest[-1].splitlines() == ["The last", "word"]


def test_a_pdf_with_a_password_is_skipped_and_one_without_need_is_read(apart, tmp_path):
    """An owner's password alone keeps nobody from reading."""
    plain = io.BytesIO(files.pdf([["Secret text."]]))
    for name, user in (("locked.pdf", "word"), ("open.pdf", "")):
        writer = pypdf.PdfWriter(clone_from=plain)
        writer.encrypt(user, "owner", algorithm="RC4-128")
        writer.write(tmp_path / name)

    assert why(apart, tmp_path / "locked.pdf") == ".pdf: encrypted"
    assert "Secret text." in read(apart, tmp_path / "open.pdf").text


def test_a_scan_and_a_broken_pdf_are_skipped(apart, tmp_path):
    """Pictures have no text here; a cut file is damaged, or read as far as it goes."""
    whole = files.pdf([["One"], ["Two"]])
    (tmp_path / "scan.pdf").write_bytes(files.pdf([[], []]))
    (tmp_path / "noise.pdf").write_bytes(b"%PDF-1.7\n" + os.urandom(5000))

    assert why(apart, tmp_path / "scan.pdf") == ".pdf: pictures of pages without text"
    assert why(apart, tmp_path / "noise.pdf") == ".pdf: damaged"
    for cut in range(0, len(whole), 97):
        (tmp_path / "cut.pdf").write_bytes(whole[:cut])
        try:
            read(apart, tmp_path / "cut.pdf")
        except Unread as exc:
            assert str(exc).startswith(".pdf: ")


def test_a_reader_that_hangs_is_ended(tmp_path):
    """A file past its time is a reason, and the next one is read."""
    os.mkfifo(tmp_path / "hangs.pdf")  # opening it waits for ever
    (tmp_path / "good.pdf").write_bytes(files.pdf([["Good."]]))

    with Apart(limit_s=1) as hasty:
        began = time.monotonic()
        with pytest.raises(Unread, match="not read within 1 s"):
            hasty.read(tmp_path / "hangs.pdf", ".pdf")
        assert time.monotonic() - began < 20
    with Apart() as patient:
        assert "Good." in patient.read(tmp_path / "good.pdf", ".pdf")


def test_a_docx_is_markdown(apart, tmp_path):
    """Headings by the styles' levels, lists, tables; deleted text and twins not."""
    body = (
        '<w:p><w:pPr><w:pStyle w:val="Titel"/></w:pPr><w:r><w:t>Handbuch</w:t></w:r>'
        "</w:p>"
        '<w:p><w:pPr><w:pStyle w:val="berschrift1"/></w:pPr><w:r><w:t>Warte</w:t></w:r>'
        "<w:r><w:t>schlangen</w:t></w:r></w:p>"
        "<w:p><w:r><w:t># no heading</w:t></w:r><w:r><w:delText>gone</w:delText></w:r>"
        "</w:p><w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>item</w:t></w:r></w:p>"
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>debug</w:t></w:r></w:p></w:tc>"
        "<w:tc><w:p><w:r><w:t>30 min</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    )

    told = read(apart, files.docx(tmp_path / "a.docx", body))

    assert told.form == ".md"
    assert told.text.split("\n") == [
        "# Handbuch",
        "",
        "## Warteschlangen",
        "",
        "\\# no heading",
        "",
        "- item",
        "| debug | 30 min |",
    ]


def test_a_pptx_is_a_section_a_slide(apart, tmp_path):
    """Slides in the order they are shown, with notes, without page numbers."""
    path = files.pptx(
        tmp_path / "a.pptx", [("Last", "Bye."), ("First", "Hello.")], notes="Wave."
    )

    told = read(apart, path).text

    assert told.split("\n\n") == [
        "## slide 1",
        "### First",
        "Hello.",
        "## slide 2",
        "### Last",
        "Bye.",
        "Wave.",
    ]


def test_an_odt_is_markdown(apart, tmp_path):
    """Headings by level, blanks as they are told, changes that were deleted not."""
    body = (
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
        '<text:h text:outline-level="1">Quotas</text:h>'
        '<text:p>Run<text:s text:c="2"/><text:span>quota -s</text:span>.</text:p>'
    )

    told = read(apart, files.odt(tmp_path / "a.odt", body)).text

    assert told == "# Quotas\n\nRun  quota -s."


def test_office_files_that_hurt_are_skipped(apart, tmp_path):
    """Bombs, entities, passwords, old formats and missing parts are reasons."""
    bomb = b"<w>" + b" " * (65 << 20)
    files.packed(tmp_path / "bomb.docx", {"word/document.xml": bomb})
    laughs = '<!DOCTYPE w [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><w>&b;</w>'
    files.packed(tmp_path / "laughs.docx", {"word/document.xml": laughs})
    files.packed(tmp_path / "empty.docx", {"other.xml": "<a/>"})
    (tmp_path / "old.docx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 99)
    files.odt(
        tmp_path / "locked.odt", "", "<m:file-entry><m:encryption-data/></m:file-entry>"
    )
    with zipfile.ZipFile(tmp_path / "many.pptx", "w") as package:
        for number in range(5001):
            package.writestr(f"{number}", "")

    told = {p.name: why(apart, p) for p in tmp_path.iterdir()}

    assert told == {
        "bomb.docx": ".docx: too large when unpacked",
        "laughs.docx": ".docx: it declares a document type, which no such file may",
        "empty.docx": ".docx: damaged",
        "old.docx": ".docx: encrypted, or of an old format",
        "locked.odt": ".odt: encrypted",
        "many.pptx": ".pptx: more parts than a document has",
    }


def test_a_notebook_is_prose_and_fenced_code():
    """Cells in order, results left out, fences longer than what they hold."""
    cells = [
        {"cell_type": "markdown", "source": ["# Bell states\n", "Two qubits."]},
        {"cell_type": "code", "source": "qc.h(0)\n", "outputs": [{"data": "BIG"}]},
        {"cell_type": "code", "source": 'print("```")', "outputs": []},
        {"cell_type": "code", "source": [], "outputs": []},
    ]
    about = {"kernelspec": {"language": "python"}}

    told = notebook(json.dumps({"metadata": about, "cells": cells, "nbformat": 4}))

    assert told == (
        "# Bell states\nTwo qubits.\n\n```python\nqc.h(0)\n```\n\n"
        '````python\nprint("```")\n````'
    )


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"cells": 3}', '{"cells": [3]}', "[" * 9999]
)
def test_a_broken_notebook_is_damaged(text):
    """Whatever stands in a file of that name, it is a reason."""
    with pytest.raises(Unread, match="damaged"):
        notebook(text)


def test_all_formats_are_found_and_cut(tmp_path):
    """From a folder to chunks: each format's words are under their sections."""
    (tmp_path / "guide.pdf").write_bytes(files.pdf([["Pages have text."]]))
    files.docx(tmp_path / "a.docx", "<w:p><w:r><w:t>Word has text.</w:t></w:r></w:p>")
    (tmp_path / "n.ipynb").write_text(
        '{"cells": [{"cell_type": "raw", "source": "Raw."}]}'
    )

    found = find(Collection("c", "C", (Place("p", (str(tmp_path),)),)), {})
    chunks = [
        piece
        for document in found.documents
        for piece in chunk(document, count=lambda text: len(text.split()), window=99)
    ]

    assert [(d.path, d.form) for d in found.documents] == [
        ("a.docx", ".md"),
        ("guide.pdf", ".pages"),
        ("n.ipynb", ".md"),
    ]
    assert [(c.section, c.text) for c in chunks] == [
        ("", "Word has text."),
        ("p. 1", "Pages have text."),
        ("", "Raw."),
    ]
