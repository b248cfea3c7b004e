"""Files of other formats, written for tests: PDF by hand, office files by zipfile."""

from __future__ import annotations

import zipfile

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_A = "http://schemas.openxmlformats.org/drawingml/2006/main"
_P = "http://schemas.openxmlformats.org/presentationml/2006/main"
_R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELS = "http://schemas.openxmlformats.org/package/2006/relationships"
_ODF = "urn:oasis:names:tc:opendocument:xmlns:"


def pdf(pages, title="The Guide"):
    """Return a PDF whose pages have these lines, in Helvetica."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>"
        % (len(pages), b" ".join(b"%d 0 R" % (5 + 2 * n) for n in range(len(pages)))),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Title (%s) >>" % title.encode(),
    ]
    for number, lines in enumerate(pages):
        drawn = b"".join(
            b"1 0 0 1 50 %d Tm (%s) Tj\n" % (800 - 14 * n, _escaped(line))
            for n, line in enumerate(lines)
        )
        stream = b"BT /F1 10 Tf\n" + drawn + b"ET"
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 850] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (6 + 2 * number),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % at for at in places)
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R /Info "
        b"4 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (len(objects) + 1, table, len(objects) + 1, len(out))
    )


def _escaped(line):
    return line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)").encode()


def packed(path, parts):
    """Write a zip file of *parts* and return its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, part in parts.items():
            package.writestr(name, part)
    return path


def docx(path, body):
    """Write a .docx with this body, whose styles are of a German Word."""
    styles = (
        f'<w:styles xmlns:w="{_W}"><w:style w:styleId="Titel"><w:name w:val="Title"/>'
        '</w:style><w:style w:styleId="berschrift1"><w:name w:val="heading 1"/>'
        '<w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style></w:styles>'
    )
    document = f'<w:document xmlns:w="{_W}"><w:body>{body}</w:body></w:document>'
    return packed(path, {"word/styles.xml": styles, "word/document.xml": document})


def pptx(path, slides, notes=""):
    """Write a .pptx of slides (title, text), shown in the opposite order of names."""
    ids = "".join(f'<p:sldId r:id="r{n}"/>' for n in reversed(range(len(slides))))
    parts = {
        "ppt/presentation.xml": f'<p:presentation xmlns:p="{_P}" xmlns:r="{_R}">'
        f"<p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": f'<Relationships xmlns="{_RELS}">'
        + "".join(
            f'<Relationship Id="r{n}" Type="x/slide" Target="slides/slide{n}.xml"/>'
            for n in range(len(slides))
        )
        + "</Relationships>",
        "ppt/notesSlides/n.xml": _shapes([("", notes)]),
        "ppt/slides/_rels/slide0.xml.rels": f'<Relationships xmlns="{_RELS}">'
        '<Relationship Id="n" Type="x/notesSlide" Target="../notesSlides/n.xml"/>'
        "</Relationships>",
    }
    for n, (title, text) in enumerate(slides):
        shapes = [("title", title), ("", text), ("sldNum", "17")]
        parts[f"ppt/slides/slide{n}.xml"] = _shapes(shapes)
    return packed(path, parts)


def _shapes(shapes):
    drawn = "".join(
        f'<p:sp><p:nvPr><p:ph type="{kind}"/></p:nvPr><a:p><a:r><a:t>{text}</a:t></a:r>'
        "</a:p></p:sp>"
        for kind, text in shapes
    )
    return f'<p:sld xmlns:p="{_P}" xmlns:a="{_A}">{drawn}</p:sld>'


def odt(path, body, manifest=""):
    """Write an .odt with this body."""
    spaces = " ".join(
        f'xmlns:{name}="{_ODF}{long}:1.0"'
        for name, long in (("office", "office"), ("text", "text"), ("table", "table"))
    )
    return packed(
        path,
        {
            "content.xml": f"<office:document-content {spaces}><office:body>{body}"
            "</office:body></office:document-content>",
            "META-INF/manifest.xml": f'<m:manifest xmlns:m="{_ODF}manifest:1.0">'
            f"{manifest}</m:manifest>",
        },
    )
