"""
What is indexed: the declarations of sources.toml, checked.

Knows tables and keys; reads no document (`find` does). The format:

    [openfoam]                        # a collection; its notes/openfoam/*.md always,
                                      # and glossary/openfoam.txt, if there is one
    title = "OpenFOAM"
    [[openfoam.places]]               # where more may be found; a missing one is none
    label = "tutorials"
    roots = ["$FOAM_TUTORIALS", "/opt/openfoam*/tutorials", "py:reframe"]
    globs = ["**/*"]
    exclude = ["**/*.stl"]
    pinned = ["README.md"]            # goes first among what is found
    tier = 2                          # after the places of tier 1 where both fit
    max_file_kb = 64                  # of text; max_document_mb for PDF, office files
    max_files_per_folder = 40         # max_files_below counts folders in it as well

The first root that is there counts; with a ``*`` the highest version of it. ``py:NAME``
is the folder of an installed Python package.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..files import reason
from ..shipped import shipped
from .glossary import NONE, BadGlossary, Glossary

_LAST_TIER = 9
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{2,59}")  # chromadb wants three characters


@dataclass(frozen=True)
class Place:
    """Where documents of a collection may be found, and which files there are some."""

    label: str
    roots: tuple[str, ...]
    globs: tuple[str, ...] = ("**/*",)
    exclude: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    max_file_kb: int = 512
    max_document_mb: int = 64
    max_files_per_folder: int = 400
    max_files_below: int = 10_000
    tier: int = 1
    under: str = ""  # put before each path: what the root is called, where it is ours

    def root(self, env: Mapping[str, str]) -> Path | None:
        """Return the first of the roots that is there, or None."""
        for root in self.roots:
            for folder in _folders(root, env):
                if folder.is_dir():
                    return folder.resolve()
        return None


@dataclass(frozen=True)
class Collection:
    """A declared collection: its name, what people call it, and where to look."""

    name: str
    title: str
    places: tuple[Place, ...]
    glossary: Glossary = NONE


Sources = Mapping[str, Collection]


def packaged_sources() -> Path:
    """Return the sources.toml that comes with ofa; raises `ConfigError` without one."""
    return shipped("rag_index/sources.toml")


def load_sources(path: Path) -> Sources:
    """Return the collections that *path* declares; raises `ConfigError`."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: not readable ({exc.strerror})") from exc
    except ValueError as exc:  # TOML's and Unicode's errors both
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    return {name: _collection(path, name, tables[name]) for name in tables}


def load_glossary(beside: Path, name: str) -> Glossary:
    """
    Return the glossary of the collection *name*, of the folder beside a sources.toml.

    An empty one where there is no such file; raises `ConfigError` for a wrong one.
    """
    path = beside.parent / "glossary" / f"{name}.txt"
    try:
        return Glossary.parse(path.read_text("utf-8"))
    except FileNotFoundError:
        return NONE
    except OSError as exc:
        raise ConfigError(f"{path}: not readable ({reason(exc)})") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8: {exc}") from exc
    except BadGlossary as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def one_folder(name: str, folder: Path) -> Collection:
    """Return a collection of all that is in *folder*, for a folder named by hand."""
    label = folder.name or name
    return Collection(name, label, (Place(label, (_literal(folder),)),))


def pick(sources: Sources, names: Iterable[str]) -> tuple[Collection, ...]:
    """Return the named collections, or all without a name; `ConfigError` for others."""
    wanted = tuple(names) or tuple(sources)
    for name in wanted:
        if name not in sources:
            raise ConfigError(
                f"no collection {name!r}; there are {', '.join(sorted(sources))}"
            )
    return tuple(sources[name] for name in dict.fromkeys(wanted))


def _collection(path: Path, name: str, table: Any) -> Collection:  # noqa: ANN401 - TOML
    where = f"{path}: [{name}]"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name is 3 to 60 of a-z, 0-9 and -")
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table, got {_kind(table)}")
    _refuse_unknown(where, table, {"title", "places"})
    title = table.get("title", name)
    if not isinstance(title, str):
        raise ConfigError(f"{where} title: expected a string, got {_kind(title)}")
    rows = table.get("places", [])
    if not isinstance(rows, list):
        raise ConfigError(f"{where}: write places as [[{name}.places]]")
    notes = path.parent / "notes" / name
    own = Place("notes", (_literal(notes),), globs=("**/*.md",))
    places = [
        _place(f"{path}: [[{name}.places]] {i}", r) for i, r in enumerate(rows, 1)
    ]
    return Collection(name, title, (own, *places), load_glossary(path, name))


def _place(where: str, row: Any) -> Place:  # noqa: ANN401 - TOML
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected a table, got {_kind(row)}")
    known = {field.name for field in fields(Place)} - {"under"}
    _refuse_unknown(where, row, known)
    for key in ("label", "roots"):
        if key not in row:
            raise ConfigError(f"{where}: {key} is missing")
    return Place(**{key: _value(f"{where} {key}", key, row[key]) for key in row})


def _value(where: str, key: str, value: Any) -> Any:  # noqa: ANN401 - TOML
    if key == "label":
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}: expected a string, got {_kind(value)}")
        return value
    if key.startswith("max_") or key == "tier":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{where}: expected a number of 1 or more")
        if key == "tier" and value > _LAST_TIER:
            raise ConfigError(f"{where}: expected 1 to {_LAST_TIER}")
        return value
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise ConfigError(f"{where}: expected a list of strings, got {_kind(value)}")
    return tuple(value)


def _refuse_unknown(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            names = ", ".join(sorted(known))
            raise ConfigError(f"{where} {key}: no such key; there are {names}")


def _folders(root: str, env: Mapping[str, str]) -> list[Path]:
    """Return what *root* may stand for, best first; none if a variable is unset."""
    if root.startswith("py:"):
        return _package(root.removeprefix("py:"))
    unset = [name for name in re.findall(r"\$\{?(\w+)\}?", root) if not env.get(name)]
    if unset:
        return []
    full = re.sub(r"\$\{?(\w+)\}?", lambda found: env[found[1]], root)
    path = Path(full).expanduser() if full.startswith("~") else Path(full)
    if not path.is_absolute():
        return []  # relative to where somebody happens to stand: never
    if not any(sign in root for sign in "*?["):
        return [path]
    found = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    return sorted(found, key=_version, reverse=True)


def _package(name: str) -> list[Path]:
    if "." in name:
        return []  # to find a part, Python would run the whole
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return (
        [Path(at) for at in (spec.submodule_search_locations or ()) if at]
        if spec
        else []
    )


def _version(path: Path) -> tuple[tuple[int, str], ...]:
    """Return a key by which openfoam10 comes after openfoam9."""
    pieces = re.findall(r"\d+|\D+", str(path))
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in pieces)


def _literal(folder: Path) -> str:
    """Return *folder* as a root in which no sign means anything but itself."""
    return re.sub(r"([*?\[])", r"[\1]", os.fspath(folder.absolute())).replace(
        "$", "[$]"
    )


def _kind(value: object) -> str:
    names = {dict: "a table", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "a number")
