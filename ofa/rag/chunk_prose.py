"""
Prose taken apart: Markdown, reStructuredText, manual pages and plain text.

Knows headings, paragraphs and blocks of code; nothing of sizes beyond what it is told
fits. Every piece carries the headings above it, and the heading's own line as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .chunk_pack import Outline, Piece

_ATX = re.compile(r" {0,3}(#{1,6})\s+(.+?)\s*#*\s*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_SETEXT = re.compile(r" {0,3}(=+|-{3,})\s*$")
_FRONT_TITLE = re.compile(r"^title:\s*[\"']?(.+?)[\"']?\s*$", re.M)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_ADORNED = re.compile(r"([=\-~^\"'#*+.:`_])\1{2,}\s*$")
_MAN_HEAD = re.compile(r"[A-Z][A-Z0-9 ,/()&-]{2,60}$")
_MAN_SUB = re.compile(r" {2,3}[A-Z]\S.{1,60}$")
_DROPPED = re.compile(r"\.\. (?:_[^:]+:|toctree::|index::|only::|meta::|\|)")


class Chain:
    """The headings above a place in a document, kept by level."""

    def __init__(self) -> None:
        self._held: list[tuple[int, str]] = []

    def enter(self, level: int, heading: str) -> None:
        """Note a heading; those of its level and below end."""
        self._held = [at for at in self._held if at[0] < level]
        self._held.append((level, heading.strip()))

    @property
    def names(self) -> tuple[str, ...]:
        """The headings, outermost first."""
        return tuple(name for _, name in self._held)


def markdown(text: str) -> Outline:
    """Take Markdown apart; fenced code is one piece, joined to the line before it."""
    body, title = _front_matter(text)
    chain = Chain()
    pieces: list[Piece] = []
    for block in _markdown_blocks(_COMMENT.sub("", body)):
        if found := _heading(block):
            chain.enter(*found)
            title = title or found[1]
        code = bool(_FENCE.match(block))
        pieces.append(Piece(block, chain.names, joined=code and _leads(pieces)))
    return _under_title(title, pieces)


def restructured(text: str) -> Outline:
    """Take reStructuredText apart; an indented block is joined to its paragraph."""
    chain = Chain()
    levels: list[str] = []
    pieces: list[Piece] = []
    for block in _paragraphs(text):
        if _DROPPED.match(block):
            continue
        heading, mark, rest = _adorned_heading(block)
        if heading:
            if mark not in levels:
                levels.append(mark)
            chain.enter(levels.index(mark) + 1, heading)
            pieces.append(Piece(block[: len(block) - len(rest)].strip(), chain.names))
        if rest.strip():
            indented = rest[0] in " \t" and bool(pieces)
            pieces.append(Piece(rest.strip("\n"), chain.names, joined=indented))
    title = pieces[0].chain[0] if pieces and pieces[0].chain else ""
    return _under_title(title, pieces)


def plain(text: str) -> Outline:
    """Take a manual page or a plain text apart, at its capital headings if any."""
    chain = Chain()
    pieces: list[Piece] = []
    manual = sum(bool(_MAN_HEAD.match(line)) for line in text.split("\n")) >= 3
    for block in _paragraphs(text):
        first, _, rest = block.partition("\n")
        if manual and _MAN_HEAD.match(first):
            chain.enter(1, first.title())
        elif (
            manual and _MAN_SUB.match(first) and (not rest or rest.startswith("     "))
        ):
            chain.enter(2, first)
        pieces.append(Piece(block, chain.names))
    return Outline("", tuple(pieces))


def looks_like_markdown(text: str) -> bool:
    """Tell whether a .txt is Markdown by another name: more than one ``##`` line."""
    return len(re.findall(r"^#{1,4} \S", text, re.M)) > 1


def _under_title(title: str, pieces: list[Piece]) -> Outline:
    """Return the outline with the title taken off each chain, where it stands first."""
    shorter = [
        Piece(p.text, p.chain[1:] if p.chain[:1] == (title,) else p.chain, p.joined)
        for p in pieces
    ]
    return Outline(title, tuple(shorter))


def _front_matter(text: str) -> tuple[str, str]:
    if not text.startswith("---\n"):
        return text, ""
    end = text.find("\n---", 4)
    if end < 0:
        return text, ""
    found = _FRONT_TITLE.search(text[4:end])
    return text[end + 4 :], found[1] if found else ""


def _markdown_blocks(text: str) -> Iterator[str]:
    """Yield headings, fenced blocks and paragraphs, each as its whole lines."""
    held: list[str] = []
    fence = ""
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            held.append(line)
            if opened and opened[1].startswith(fence) and line.strip() == opened[1]:
                yield "\n".join(held)
                held, fence = [], ""
        elif opened:
            yield from _prose_blocks(held)
            held, fence = [line], opened[1]
        else:
            held.append(line)
    if fence:
        yield "\n".join(held)  # never closed: code to the end, as renderers have it
    else:
        yield from _prose_blocks(held)


def _prose_blocks(lines: list[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        if len(held) == 1 and _SETEXT.match(line):
            yield f"{held.pop()}\n{line}"
        elif not line.strip() or _ATX.match(line):
            if held:
                yield "\n".join(held)
            held = []
            if line.strip():
                yield line
        else:
            held.append(line)
    if held:
        yield "\n".join(held)


def _heading(block: str) -> tuple[int, str] | None:
    first, _, second = block.partition("\n")
    if not second and (found := _ATX.match(first)):
        return len(found[1]), found[2]
    if second and "\n" not in second and _SETEXT.match(second):
        return (1 if second.strip()[0] == "=" else 2), first.strip()
    return None


def _leads(pieces: list[Piece]) -> bool:
    """Tell whether the last piece announces the code that follows it."""
    last = pieces[-1].text.rstrip() if pieces else ""
    return last.endswith(":") or _heading(last) is not None


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n(?:[ \t]*\n)+", text):
        if block.strip():
            yield block.strip("\n").rstrip()


def _adorned_heading(block: str) -> tuple[str, str, str]:
    """Return a heading, what marks its level, and what follows; empty if it is none."""
    lines = block.split("\n")
    over = bool(_ADORNED.match(lines[0]))
    at = 1 if over else 0
    if len(lines) < at + 2 or not lines[at].strip() or lines[at].startswith("   "):
        return "", "", block
    under = _ADORNED.match(lines[at + 1])
    text = lines[at].strip()
    if not under or _ADORNED.match(text) or len(lines[at + 1].strip()) + 1 < len(text):
        return "", "", block
    rest = "\n".join(lines[at + 2 :])
    return text, under[1] * (2 if over else 1), rest
