"""
C, C++ and CUDA taken apart: by definition, with the remark above it.

Knows where a file's top-level parts begin and end; nothing of what they mean. Nothing
is preprocessed: a file whose braces do not match, as those of conditional code may not,
is taken apart at its blank lines instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .chunk_code import LICENCE, code
from .chunk_pack import Fits, Outline, Piece
from .chunk_parts import parts

# What hides braces comes first; what is never closed ends with the text.
_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)"
    r"|R\"(?P<mark>[^()\s\\]{0,16})\(.*?(?:\)(?P=mark)\"|\Z)"
    r"|\"(?:\\.|[^\"\\\n])*\"?|(?<![\w'])'(?:\\.|[^'\\\n]){1,8}'"
    r"|^[ \t]*\#(?:[^\n\\]|\\.)*"
    r"|[{};]",
    re.S | re.M,
)
_REMARK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.S)
# What holds definitions and is none itself: they keep its name.
_OPEN = re.compile(r"(?:inline\s+)?namespace\b[^;{]*|extern\s*\"C\"\s*", re.S)
_CLASS = re.compile(
    r"\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:[A-Z_]+\s+)*([\w:]+)"
)
_CALL = re.compile(r"([\w:~]+|operator\s*[^\s(]{1,3}|operator\s*\(\s*\))\s*\(")
_NOT_NAMES = frozenset(
    {"__attribute__", "__declspec", "__launch_bounds__", "alignas", "decltype"}
    | {"noexcept", "throw", "requires", "if", "while", "for", "switch"}
)
# OpenFOAM's files say what they are for behind their licence, in the same remark.
_ABOUT = re.compile(
    r"^(?:Application|Class|Description|Global|InClass|Namespace)$", re.M
)
_SHORT_LINES = 6  # shorter definitions are joined with their neighbours
_SIGNATURE_LINES = 8
_DEEPEST = 20  # of namespaces within each other: more is no program


@dataclass(frozen=True)
class _Part:
    """A top-level part: its text, and where its first brace opens, if it has one."""

    text: str
    opens: int = -1  # within the text


def cpp(text: str, fits: Fits) -> Outline:
    """Take C or C++ apart; one whose braces do not match, at its blank lines."""
    pieces = _pieces(text, (), fits, 0)
    if pieces is None:
        return code(text)
    return Outline("", tuple(piece for piece in pieces if piece.text.strip()))


def _pieces(
    text: str, chain: tuple[str, ...], fits: Fits, depth: int
) -> list[Piece] | None:
    found = _parts(text)
    if found is None or depth > _DEEPEST:
        return None
    pieces: list[Piece] = []
    for part in found:
        pieces += _of(part, chain, fits, depth)
    return pieces


def _of(part: _Part, chain: tuple[str, ...], fits: Fits, depth: int) -> Iterator[Piece]:
    part = _unlicensed(part)
    remark = _REMARK.match(part.text)
    start = remark.end() if remark else 0
    if part.opens < 0:
        yield Piece(part.text.strip("\n"), chain)
        return
    head = part.text[start : part.opens]
    if _OPEN.fullmatch(head):
        yield from _within(part, head, (chain, start), fits, depth)
        return
    name = _name(head)
    under = (*chain, name) if name else chain
    whole = part.text.strip("\n")
    if whole.count("\n") < _SHORT_LINES:
        yield Piece(whole, chain)
        return
    signature = _signature(head)
    for one in parts(whole, signature, fits):
        yield Piece(one, under)


def _unlicensed(part: _Part) -> _Part:
    """Return *part* without the licence above it; what else a remark says stays."""
    remark = _REMARK.match(part.text)
    if not remark or not LICENCE.search(remark[0]):
        return part
    about = _ABOUT.search(remark[0])
    kept = f"/*\n{remark[0][about.start() :].strip()}\n" if about else ""
    moved = len(kept) - remark.end()
    opens = part.opens + moved if part.opens >= 0 else -1
    return _Part(kept + part.text[remark.end() :], opens)


def _within(
    part: _Part,
    head: str,
    at: tuple[tuple[str, ...], int],
    fits: Fits,
    depth: int,
) -> Iterator[Piece]:
    """Yield what a namespace holds, under its name."""
    chain, start = at
    if part.text[:start].strip():
        yield Piece(part.text[:start].strip("\n"), chain)
    words = head.replace("{", " ").split()
    name = words[-1] if words and words[-1] not in ('"C"', "namespace") else ""
    inner = part.text[part.opens + 1 : part.text.rfind("}")]
    under = (*chain, name) if name else chain
    held = _pieces(inner, under, fits, depth + 1)
    yield from held if held is not None else [Piece(inner.strip("\n"), under)]


def _parts(text: str) -> list[_Part] | None:
    """Return the parts at the top of *text*, or None if its braces do not match."""
    found: list[_Part] = []
    start = depth = 0
    opens = -1
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign == "{":
            opens = token.start() if not depth and opens < 0 else opens
            depth += 1
        elif sign == "}":
            depth -= 1
        if depth < 0:
            return None
        if depth or not _ends(sign, text, token.end()):
            continue
        end = _line_end(text, token.end())
        if text[start:end].strip():
            found.append(_Part(text[start:end], opens - start if opens >= 0 else -1))
        start, opens = end, -1
    if depth:
        return None
    if text[start:].strip():
        found.append(_Part(text[start:]))
    return found


def _ends(sign: str, text: str, after: int) -> bool:
    if sign == "}":  # of a class, and of an initialiser, its semicolon is the end
        return not re.match(r"\s*[;=,\w]", text[after : after + 40]) or bool(
            re.match(r"\s*\n\s*\w", text[after : after + 200])
        )
    return sign == ";" or sign.lstrip().startswith("#")


def _line_end(text: str, at: int) -> int:
    """Return where the remark behind a part ends, if it stands on its line."""
    found = re.compile(r"[ \t]*(?://[^\n]*)?\n?").match(text, at)
    return found.end() if found else at


def _name(head: str) -> str:
    bare = re.sub(r"template\s*<[^{;]*?>\s*(?=\w)", "", head)
    call = next((m for m in _CALL.finditer(bare) if m[1] not in _NOT_NAMES), None)
    if call and not call[1].isupper():
        return " ".join(call[1].split())
    if found := _CLASS.search(bare):
        return found[1]
    return call[1] if call else ""


def _signature(head: str) -> str:
    lines = [line.rstrip() for line in head.strip().split("\n") if line.strip()]
    more = " ..." if len(lines) > _SIGNATURE_LINES else ""
    return "\n".join(lines[:_SIGNATURE_LINES]) + more + " { // continued"
