"""
Office files to Markdown: .docx, .pptx, .odt and .odp.

Knows the packages' layout and the few elements that carry text; nothing of styles. By
the standard library alone: the libraries for it read everything into a tree, with lxml
behind them, to find what are four elements a format.
"""

from __future__ import annotations

import posixpath
import re

from .read_package import Package
from .unread import Unread

_LINE_IS_HEADING = re.compile(r"(?m)^(\s{0,3})(#{1,6}\s)")


def docx(path: str) -> str:
    """Return a .docx as Markdown; raises `Unread`."""
    with Package(path) as package:
        styles = _Styles()
        if package.has("word/styles.xml"):
            package.parse("word/styles.xml", styles)
        walk = _Word(styles.levels)
        package.parse("word/document.xml", walk)
        return walk.text()


def pptx(path: str) -> str:
    """Return a .pptx as Markdown, a section for each slide with its notes."""
    with Package(path) as package:
        shown = [_slide(package, part) for part in _slides(package)]
    sections = [f"## slide {n}\n\n{text}" for n, text in enumerate(shown, 1) if text]
    return "\n\n".join(sections)


def opendocument(path: str) -> str:
    """Return an .odt or .odp as Markdown; raises `Unread`."""
    with Package(path) as package:
        if package.has("META-INF/manifest.xml"):
            manifest = _Attributes("manifest:encryption-data")
            package.parse("META-INF/manifest.xml", manifest)
            if manifest.found:
                raise Unread("encrypted")
        walk = _Open()
        package.parse("content.xml", walk)
        return walk.text()


class _Walk:
    """Collects paragraphs; a format says which elements mean what."""

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._held: list[str] = []
        self._heading = 0
        self._item = False
        self._row: list[str] | None = None
        self._hidden = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take an element's beginning."""

    def end(self, name: str) -> None:
        """Take an element's end."""

    def data(self, text: str) -> None:
        """Take text."""

    def text(self) -> str:
        """Return what was collected."""
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self._blocks)).strip("\n")

    def _close(self) -> None:
        """End a paragraph: a heading, an item, a cell or plain text."""
        text = "".join(self._held).strip()
        self._held = []
        if not text:
            pass
        elif self._row is not None:
            self._row.append(" ".join(text.split()))
        elif self._heading:
            words = " ".join(text.split())
            self._blocks.append(f"\n{'#' * self._heading} {words}\n")
        else:
            # A line of a shell script would be taken for a heading.
            text = _LINE_IS_HEADING.sub(r"\1\\\2", text)
            self._blocks.append(f"- {text}" if self._item else f"\n{text}\n")
        self._heading = 0

    def _close_row(self) -> None:
        if self._row:
            self._blocks.append(f"| {' | '.join(self._row)} |")
        self._row = None


class _Styles(_Walk):
    """The paragraph styles of a .docx that are headings, whatever they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: dict[str, int] = {}
        self._style = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Note a style's name and level."""
        if name == "w:style":
            self._style = attributes.get("w:styleId", "")
        elif name == "w:name" and attributes.get("w:val", "").lower() == "title":
            self.levels[self._style] = 1
        elif name == "w:outlineLvl":
            level = attributes.get("w:val", "")
            if level.isdigit() and int(level) < 9:  # 9 is for body text
                self.levels[self._style] = min(int(level) + 2, 6)


class _Word(_Walk):
    """WordprocessingML; *levels* tells which styles are headings."""

    def __init__(self, levels: dict[str, int]) -> None:
        super().__init__()
        self._levels = levels
        self._reading = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Note a paragraph's style, and where text begins."""
        if name == "w:p":
            self._item = False
        elif name == "mc:Fallback":  # the same again, for older programs
            self._hidden += 1
        elif name == "w:pStyle":
            self._heading = self._levels.get(attributes.get("w:val", ""), 0)
        elif name == "w:numPr":
            self._item = True
        elif name == "w:t":
            self._reading = True
        elif name in ("w:tab", "w:br", "w:cr"):
            self._held.append("\t" if name == "w:tab" else "\n")
        elif name == "w:tr":
            self._row = []

    def end(self, name: str) -> None:
        """End a text, a paragraph or a table's row."""
        if name == "w:t":
            self._reading = False
        elif name == "mc:Fallback":
            self._hidden -= 1
        elif name == "w:p":
            self._close()
        elif name == "w:tr":
            self._close_row()

    def data(self, text: str) -> None:
        """Take what is shown: deleted text stands in other elements."""
        if self._reading and not self._hidden:
            self._held.append(text)


class _Slide(_Walk):
    """DrawingML: a slide, or its notes."""

    def __init__(self) -> None:
        super().__init__()
        self._reading = False
        self._title = False
        self._number = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Note what kind of a box this is, and where text begins."""
        if name == "p:sp":
            self._title = self._number = False
        elif name == "p:ph":
            kind = attributes.get("type", "")
            self._title = kind in ("title", "ctrTitle")
            self._number = kind in ("sldNum", "ftr", "dt", "hdr")
        elif name == "a:t":
            self._reading = not self._number
        elif name == "a:br":
            self._held.append("\n")
        elif name == "a:tr":
            self._row = []

    def end(self, name: str) -> None:
        """End a text, a paragraph or a table's row."""
        if name == "a:t":
            self._reading = False
        elif name == "a:p":
            self._heading = 3 if self._title else 0
            self._close()
        elif name == "a:tr":
            self._close_row()

    def data(self, text: str) -> None:
        """Take what is shown."""
        if self._reading:
            self._held.append(text)


class _Open(_Walk):
    """OpenDocument's text and presentations."""

    def __init__(self) -> None:
        super().__init__()
        self._deep = 0
        self._slide = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Note headings, items and slides, and leave out what is not shown."""
        if name in ("text:tracked-changes", "office:annotation"):
            self._hidden += 1
        elif name == "text:h":
            self._deep += 1
            level = attributes.get("text:outline-level", "1")
            self._heading = min(int(level), 6) if level.isdigit() else 1
        elif name == "text:p":
            self._deep += 1
        elif name == "text:list-item":
            self._item = True
        elif name == "draw:page":
            self._slide += 1
            self._blocks.append(f"\n## slide {self._slide}\n")
        elif name == "table:table-row":
            self._row = []
        elif space := {"text:tab": "\t", "text:line-break": "\n"}.get(name):
            self._held.append(space)
        elif name == "text:s":
            count = attributes.get("text:c", "1")
            self._held.append(" " * min(int(count) if count.isdigit() else 1, 80))

    def end(self, name: str) -> None:
        """End what was begun."""
        if name in ("text:tracked-changes", "office:annotation"):
            self._hidden -= 1
        elif name in ("text:h", "text:p"):
            self._deep -= 1
            if not self._hidden:
                self._close()
        elif name == "text:list-item":
            self._item = False
        elif name == "table:table-row":
            self._close_row()

    def data(self, text: str) -> None:
        """Take text of paragraphs; blanks between elements mean nothing."""
        if self._deep and not self._hidden:
            self._held.append(text)


class _Attributes(_Walk):
    """Looks for one element; relations are kept as well: id to target and kind."""

    def __init__(self, wanted: str = "", key: str = "") -> None:
        super().__init__()
        self._wanted, self._key = wanted, key
        self.found: list[str] = []
        self.relations: dict[str, tuple[str, str]] = {}

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Keep what was asked for."""
        if name == self._wanted:
            self.found.append(attributes.get(self._key, ""))
        if name == "Relationship":
            kind = attributes.get("Type", "").rpartition("/")[2]
            self.relations[attributes.get("Id", "")] = (
                attributes.get("Target", ""),
                kind,
            )


def _slides(package: Package) -> list[str]:
    """Return the slides' parts in the order they are shown in."""
    order = _Attributes("p:sldId", "r:id")
    package.parse("ppt/presentation.xml", order)
    targets = _relations(package, "ppt/presentation.xml")
    shown = [targets[id_][0] for id_ in order.found if id_ in targets]
    found = [name for name in shown if package.has(name)]
    return found or package.named(r"ppt/slides/slide\d+\.xml")


def _slide(package: Package, part: str) -> str:
    walk = _Slide()
    package.parse(part, walk)
    texts = [walk.text()]
    for target, kind in _relations(package, part).values():
        if kind == "notesSlide" and package.has(target):
            notes = _Slide()
            package.parse(target, notes)
            texts.append(notes.text())
    return "\n\n".join(filter(None, texts))


def _relations(package: Package, part: str) -> dict[str, tuple[str, str]]:
    folder, _, name = part.rpartition("/")
    told = f"{folder}/_rels/{name}.rels"
    if not package.has(told):
        return {}
    walk = _Attributes()
    package.parse(told, walk)
    return {
        id_: (_joined(folder, target), kind)
        for id_, (target, kind) in walk.relations.items()
    }


def _joined(folder: str, target: str) -> str:
    if target.startswith("/"):
        return target[1:]
    return posixpath.normpath(posixpath.join(folder, target))
