"""
site.toml as a file: where it is looked for, its tables, and the line of each key.

Knows TOML and paths; nothing of which keys there are.
"""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError

NAME = "site.toml"
LIMIT_BYTES = 1024 * 1024  # a FIFO or a device given by mistake ends here

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True)
class SiteFile:
    """A parsed file; *lines* has the first line of every key that has one."""

    path: Path
    tables: dict[str, Any]
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def where(self, *key: str) -> str:
        """Return file and line of *key*, or of the nearest table around it."""
        for length in range(len(key), 0, -1):
            if line := self.lines.get(key[:length]):
                return f"{self.path}:{line}"
        return str(self.path)


def find_site_file(given: str | None, env: Mapping[str, str]) -> Path | None:
    """
    Return the file to read, or None for built-in defaults alone.

    *given* (``--site``) and $OFA_SITE_TOML name a file that must exist; $OFA_ROOT and
    the user's configuration folder are places where one may be.
    """
    for source, chosen in (("--site", given), ("$OFA_SITE_TOML", _named(env))):
        if chosen:
            path = _from_home(chosen, env).absolute()
            if not path.exists():
                raise ConfigError(f"{path}: no such file, though {source} names it")
            return path
    return next((path for path in _places(env) if _is_file(path)), None)


def read_site_file(path: Path) -> SiteFile:
    """Parse *path*. Raises `ConfigError` with file and line where it is no TOML."""
    text = _text(path)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except ValueError as error:
        told = _AT_LINE.search(str(error))
        line = told[1] if told else str(len(text.splitlines()))  # "at end of document"
        said = _AT_LINE.sub("", str(error)).strip()
        raise ConfigError(f"{path}:{line}: not valid TOML: {said}") from None
    return SiteFile(path, tables, _lines(text))


def _named(env: Mapping[str, str]) -> str:
    return env.get("OFA_SITE_TOML", "")


def _places(env: Mapping[str, str]) -> list[Path]:
    places = []
    if root := env.get("OFA_ROOT"):
        places.append(_from_home(root, env) / NAME)
    if (base := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        places.append(Path(base) / "ofa" / NAME)
    elif (home := env.get("HOME", "")).startswith("/"):
        places.append(Path(home) / ".config/ofa" / NAME)
    return [path.absolute() for path in places]


def _from_home(path: str, env: Mapping[str, str]) -> Path:
    if path.startswith("~/") and env.get("HOME"):
        return Path(env["HOME"]) / path[2:]
    return Path(path)


def _is_file(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a home that this user can't look into holds nothing for them
        return False


def _text(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"{path}: not a regular file")
    try:
        with path.open("rb") as opened:
            content = opened.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(content) > LIMIT_BYTES:
        raise ConfigError(f"{path}: larger than {LIMIT_BYTES} bytes")
    try:
        # Windows editors put a mark in front; TOML itself allows none.
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """
    Return the line of each table and key, which tomllib does not tell.

    Good enough for messages: what stands in an inline table has its table's line.
    """
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    inside = ""  # the quotes of the multi-line string we are in
    for number, line in enumerate(text.split("\n"), 1):
        if not inside:
            if header := _HEADER.match(line):
                table = _parts(header[1])
                found.setdefault(table, number)
            elif name := _KEY.match(line):
                found.setdefault((*table, *_parts(name[1])), number)
        inside = _inside_after(line, inside)
    return found


def _inside_after(line: str, inside: str) -> str:
    for quotes in re.findall(r'"""|\'\'\'', line):
        if not inside:
            inside = quotes
        elif inside == quotes:
            inside = ""
    return inside


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))
