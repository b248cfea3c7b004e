"""
Code and settings taken apart: Python by definition, TOML and YAML by table, the rest
by blank lines.

Knows where a language's parts begin; nothing of what they do. Nothing is compiled or
run: a file may be of any version, or broken.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from .chunk_pack import Fits, Outline, Piece
from .chunk_prose import restructured

_DOC_TITLE = re.compile(r"^[ \t]*(\S.{0,100})")
_TABLE = re.compile(r"\[{1,2}([^\[\]\n]+)\]{1,2}\s*(?:[#;].*)?$")
_KEY = re.compile(r"([\w.\"'/-]+)\s*:(?:\s|$)")
# A licence at the top of a file says nothing about it.
LICENCE = re.compile(r"copyright|licen[cs]e|spdx", re.I)


@dataclass(frozen=True)
class _Definition:
    line: int  # where it starts, decorators included; counted from 0
    depth: int  # 0 in a module, 1 in a class
    name: str


def python(text: str, fits: Fits) -> Outline:
    """Take Python apart by class and function; a broken file, at its blank lines."""
    try:
        found = list(_definitions(text))
    except (tokenize.TokenError, SyntaxError):
        return code(text)
    lines = text.split("\n")
    tops = [d for d in found if d.depth == 0]
    starts = [*(d.line for d in tops), len(lines)]
    head, title = _module_head("\n".join(lines[: starts[0]]), fits)
    pieces = list(head)
    for at, top in enumerate(tops):
        end = starts[at + 1]
        whole = "\n".join(lines[top.line : end]).strip("\n")
        inner = [d for d in found if d.depth == 1 and top.line < d.line < end]
        if fits(whole) or not inner:
            pieces.append(Piece(whole, (top.name,)))
            continue
        cuts = [top.line, *(d.line for d in inner), end]
        names = [(top.name,), *((top.name, d.name) for d in inner)]
        for start, stop, chain in zip(cuts, cuts[1:], names, strict=False):
            pieces.append(Piece("\n".join(lines[start:stop]).strip("\n"), chain))
    return Outline(title, tuple(pieces))


def code(text: str) -> Outline:
    """Take any code apart at its blank lines; a licence at its top is left out."""
    blocks = [b.strip("\n") for b in re.split(r"\n(?:[ \t]*\n)+", text)]
    if len(blocks) > 1 and is_licence(blocks[0]):
        blocks = blocks[1:]
    return Outline("", tuple(Piece(block) for block in blocks))


def tables(text: str) -> Outline:
    """Take TOML or an INI file apart: a section for each table."""
    chain: tuple[str, ...] = ()
    pieces: list[Piece] = []
    for block in _cut_before(text, _TABLE):
        if found := _TABLE.match(_first_line(block)):
            chain = tuple(found[1].strip().split("."))
        pieces += [Piece(part, chain) for part in re.split(r"\n[ \t]*\n", block)]
    return Outline("", tuple(pieces))


def yaml(text: str) -> Outline:
    """Take YAML apart: a section for each key that is not indented."""
    pieces: list[Piece] = []
    for block in _cut_before(text, _KEY):
        found = _KEY.match(_first_line(block))
        pieces.append(Piece(block, (found[1].strip("\"'"),) if found else ()))
    return Outline("", tuple(pieces))


def _definitions(text: str) -> Iterator[_Definition]:
    """Yield classes and functions of a module and of its classes, in order."""
    decorated: int | None = None
    for depth, statement in _statements(text):
        start = statement[0].start[0] - 1
        if statement[0].string == "@":
            decorated = start if decorated is None else decorated
            continue
        words = [token.string for token in statement[:3]]
        if words[0] == "async":
            words = words[1:]
        if words[0] in ("def", "class") and len(words) > 1 and depth < 2:
            yield _Definition(
                start if decorated is None else decorated, depth, words[1]
            )
        decorated = None


def _statements(text: str) -> Iterator[tuple[int, list[tokenize.TokenInfo]]]:
    """Yield each logical line's tokens, remarks left out, and how deep it stands."""
    depth = 0
    held: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.INDENT:
            depth += 1
        elif token.type == tokenize.DEDENT:
            depth -= 1
        elif token.type == tokenize.NEWLINE and held:
            yield depth, held
            held = []
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE):
            held.append(token)


def _module_head(head: str, fits: Fits) -> tuple[list[Piece], str]:
    """Return what stands above a module's first definition, and the module's title."""
    opening = re.search(r"^[rRbBuU]{0,2}(\"\"\"|''')", head, re.M)
    if not opening:
        return list(code(head).pieces), ""
    end = head.find(opening[1], opening.end())
    if end < 0:
        return list(code(head).pieces), ""
    before, rest = head[: opening.start()], head[end + 3 :]
    lines = head[opening.end() : end].strip().split("\n")
    title = _DOC_TITLE.match(lines[0])
    # Many packages keep their guide here, as reStructuredText with headings.
    pieces = [] if is_licence(before) else list(code(before).pieces)
    pieces += restructured("\n".join(lines)).pieces
    pieces += code(rest).pieces
    return pieces, title[1].rstrip(". ") if title else ""


def is_licence(block: str) -> bool:
    """Tell whether a block is a remark that says who may copy the file."""
    lines = [line.strip() for line in block.strip().split("\n")]
    remark = all(
        line.startswith(("#", "//", "/*", "*", "!", "--")) or not line for line in lines
    )
    return remark and bool(LICENCE.search(block))


def _cut_before(text: str, mark: re.Pattern[str]) -> Iterator[str]:
    held: list[str] = []
    for line in text.split("\n"):
        # Remarks stand above what they are about.
        if mark.match(line) and any(not _is_remark(at) for at in held):
            keep = len(held)
            while keep and _is_remark(held[keep - 1]) and held[keep - 1].strip():
                keep -= 1
            yield "\n".join(held[:keep]).strip("\n")
            held = held[keep:]
        held.append(line)
    yield "\n".join(held).strip("\n")


def _first_line(block: str) -> str:
    return next((line for line in block.split("\n") if not _is_remark(line)), "")


def _is_remark(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith(("#", ";"))
