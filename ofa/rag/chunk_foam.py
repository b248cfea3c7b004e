"""
OpenFOAM dictionaries taken apart: by entry, never in the middle of a brace.

Knows the dictionary's syntax and where files stand in a case; nothing of what keywords
mean. The banner, the FoamFile header and ruling lines are left out: they are the same
in every file, and would be most of a small one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from .chunk_code import code
from .chunk_pack import Fits, Outline, Piece

_BANNER = re.compile(r"\s*/\*.{0,2000}?\*/", re.S)
_RULE = re.compile(r"^[ \t]*//[ *\-=/]*$\n?", re.M)
_HEADER = re.compile(r"^FoamFile\s*\{", re.M)
# Comments, strings and verbatim code hide braces. What is never closed ends with the
# text, so that a scan of broken files stays linear.
_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"?|#\{.*?(?:#\}|\Z)|[{}();\n]",
    re.S,
)
_NAME = re.compile(r"(?:\s|//[^\n]*\n|/\*.*?\*/|#\w+[^\n]*\n)*([^\s{(]+)", re.S)
_CASE_FOLDERS = {"system", "constant", "0", "0.orig", "0.org"}

# A longer list is data: of points, of faces. Its first lines show its form.
_LONG_LIST = 60
_SHOWN_LINES = 8


def is_foam(path: str, text: str) -> bool:
    """Tell whether *text* is a dictionary: by its header, or its place in a case."""
    if _HEADER.search(text, 0, 4000):
        return True
    name = PurePosixPath(path).name
    return in_case(path) and ";" in text and "." not in name.replace(".orig", "")


def in_case(path: str) -> bool:
    """Tell whether *path* stands where the files of a case do."""
    return any(name in _CASE_FOLDERS for name in PurePosixPath(path).parts[:-1])


def case_of(path: str) -> str:
    """Return the folder of the case that *path* is of, or the file's own folder."""
    folders = PurePosixPath(path).parts[:-1]
    inside = next((n for n, name in enumerate(folders) if name in _CASE_FOLDERS), None)
    return "/".join(folders[:inside])


def foam(text: str, fits: Fits) -> Outline:
    """Take a dictionary apart; one whose braces do not match, at its blank lines."""
    body = strip(text)
    pieces = _pieces(body, (), fits)
    if pieces is None:
        return code(body)
    return Outline("", tuple(pieces))


def strip(text: str) -> str:
    """Return *text* without banner, FoamFile header and ruling lines."""
    banner = _BANNER.match(text)
    if banner and ("OpenFOAM" in banner[0] or "F ield" in banner[0]):
        text = text[banner.end() :]
    header = _HEADER.search(text)
    if header:
        end = text.find("}", header.end())
        text = text[: header.start()] + text[end + 1 :] if end >= 0 else text
    return re.sub(r"\n{3,}", "\n\n", _RULE.sub("", text)).strip()


def _pieces(body: str, chain: tuple[str, ...], fits: Fits) -> list[Piece] | None:
    entries = _entries(body)
    if entries is None:
        return None
    found: list[Piece] = []
    for entry in entries:
        if fits(entry) or not (inner := _inside(entry)):
            found.append(Piece(entry.strip("\n"), chain))
            continue
        name, sign, held = inner
        under = (*chain, name)
        nested = _pieces(held, under, fits) if sign == "{" else None
        found += nested or [Piece(item, under) for item in _items(name, held)]
    return found


def _entries(body: str) -> list[str] | None:
    """Return the entries at the top of *body*, or None if its braces do not match."""
    found: list[str] = []
    start = depth = 0
    complete = False  # an entry has ended on this line: cut at the line's end
    for token in _TOKEN.finditer(body):
        sign = token.group()
        if sign in "{(":
            depth += 1
        elif sign in "})":
            depth -= 1
        if depth < 0:
            return None
        complete = (complete or sign in ";}") and depth == 0
        if sign == "\n" and complete:
            found.append(body[start : token.end()])
            start, complete = token.end(), False
    if depth:
        return None
    if body[start:].strip():
        found.append(body[start:])
    return found


def _inside(entry: str) -> tuple[str, str, str] | None:
    """Return an entry's name, its opening brace and what is in it, if it has one."""
    name = _NAME.match(entry)
    if not name:
        return None
    for token in _TOKEN.finditer(entry, name.end()):
        sign = token.group()
        if sign == ";":
            return None
        if sign in "{(":
            end = entry.rfind("}" if sign == "{" else ")")
            return name[1], sign, entry[token.end() : end].strip("\n")
    return None


def _items(name: str, held: str) -> Iterator[str]:
    """Yield the lines of a list, each with all that its brackets hold."""
    lines: list[str] = []
    start = depth = 0
    for token in _TOKEN.finditer(held):
        sign = token.group()
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(sign, 0)
        if sign == "\n" and depth <= 0:
            lines.append(held[start : token.start()])
            start = token.end()
    lines.append(held[start:])
    lines = [line for line in lines if line.strip()]
    if len(lines) > _LONG_LIST:
        left = len(lines) - _SHOWN_LINES
        lines = [*lines[:_SHOWN_LINES], f"    // {left} more lines of {name} left out"]
    yield from lines
