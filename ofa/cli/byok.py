"""`ofa byok`: the entry for VS Code, put into its file, printed, or where that is."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import byok
from ..errors import ConfigError
from ..files import UnsafeFile, make_file, make_folder, read_own, reason, write_file
from .common import Subparsers, add_site_option, key_file_of, load_config, state_of
from .running import (
    add_key_file_option,
    key_of,
    laptop_port,
    loopback_url,
    offer_of,
    port_to_ask,
    server_port,
    url_here,
)

_LIMIT_BYTES = 4 * 1024 * 1024  # of a settings file; a real one has a few kilobytes

_CLICKS = """\
in VS Code:
  1. Ctrl+Shift+P (macOS: Cmd), "Developer: Reload Window"
  2. Ctrl+Shift+P, "Chat: Manage Language Models": the eye icons show or hide models
"""
_KEY_CLICKS = """\
  3. there, the gear beside {name}, "Update API Key": paste what `ofa key show` prints
"""
_LAST_CLICK = """\
  {number}. choose one in the chat's model picker, under "Other Models" at first
"""


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa byok write`, `print` and `where`."""
    parser = subparsers.add_parser(
        "byok", help="VS Code: write its entry for this server, or show it"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    write = commands.add_parser(
        "write",
        help="put the entry into the file of a VS Code on this machine",
        description="Create or change chatLanguageModels.json; other entries and all "
        "comments stay as they are, and the first change keeps a copy (.bak).",
    )
    write.add_argument("--path", type=Path, metavar="FILE", help="that file itself")
    write.add_argument(
        "--profile", default="", metavar="ID", help="of a profile (see ofa byok where)"
    )
    write.set_defaults(func=_write)
    show = commands.add_parser(
        "print", help="print the entry, with the laptop's port, for another machine"
    )
    show.add_argument(
        "--show-key", action="store_true", help="with the key itself: save it as 0600"
    )
    show.set_defaults(func=_print)
    for command in (write, show):
        _add_shape(command)
    where = commands.add_parser("where", help="print where the file is, by system")
    where.set_defaults(func=_where)


def _add_shape(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--key",
        dest="where_key",
        choices=("header", "ui"),
        default="header",
        help="where VS Code has the key from: the entry (default), or its own store, "
        "into which you paste it",
    )
    command.add_argument("--name", help="the entry's name in VS Code")
    command.add_argument("--port", type=int, metavar="N", help="the port in its URL")
    add_key_file_option(command)
    add_site_option(command)


@dataclass(frozen=True)
class _Made:
    """An entry and what to say of it."""

    group: dict[str, Any]
    said: tuple[str, ...]


def _make(args: argparse.Namespace, *, laptop: bool) -> _Made:
    config, state = load_config(args), state_of()
    find_port = laptop_port if laptop else server_port
    port = find_port(config, state, args.port)
    key = key_of(config, state)
    in_header = args.where_key == "header" and config.server.auth
    if in_header and not key:
        key_file = key_file_of(config, state).path
        raise ConfigError(
            f"the key file {key_file} is missing: `ofa serve` makes one at its start"
        )
    asked = port_to_ask(config, state, port) if laptop else port
    offer = offer_of(config, asked, key)
    group = byok.entry(
        offer.each,
        loopback_url(port) if laptop else url_here(port),
        name=args.name or byok.group_name(config.site),
        key=key if in_header else None,
    )
    return _Made(group, (*offer.doubts, *byok.warnings(offer.limits)))


def _write(args: argparse.Namespace) -> int:
    path = args.path or _found(args.profile)
    made = _make(args, laptop=False)
    changed = _put(path.absolute(), made.group)
    count = len(made.group["models"])
    print(
        f"wrote {count} models as {made.group['name']} into {path}"
        if changed
        else f"{path} has these {count} models already: nothing to change"
    )
    _say(made)
    print(_clicks(args.where_key, made.group["name"]), end="")
    return 0


def _print(args: argparse.Namespace) -> int:
    made = _make(args, laptop=True)
    group = made.group if args.show_key else byok.masked(made.group)
    print(json.dumps([group], indent=2, ensure_ascii=False))
    _say(made)
    if args.where_key == "header" and not args.show_key:
        print("ofa: the key is masked; --show-key prints it", file=sys.stderr)
    return 0


def _where(args: argparse.Namespace) -> int:
    here = _editors()
    found = [editor for editor in here if Path(editor.user).is_dir()]
    print("on this machine:" if found else "on this machine: no VS Code was found")
    for editor in found:
        print(f"  {editor.name}: {editor.file}")
        for profile in _profiles(Path(editor.user)):
            print(f"    profile {profile}: {editor.of_profile(profile)}")
    print("elsewhere (or run `Chat: Open Language Models (JSON)` there):")
    for system, platform, home in (
        ("Linux", "linux", "/home/YOU"),
        ("macOS", "darwin", "/Users/YOU"),
        ("Windows", "win32", "C:\\Users\\YOU"),
    ):
        print(f"  {system}: {byok.paths({}, platform, home)[0].file}")
    return 0


def _editors() -> tuple[byok.Editor, ...]:
    return byok.paths(os.environ, sys.platform, str(Path.home()))


def _found(profile: str) -> Path:
    """Return the file of the first editor that is installed here."""
    editors = [editor for editor in _editors() if Path(editor.user).is_dir()]
    if not editors:
        raise ConfigError(
            "no VS Code was found on this machine: run this where it is installed, or "
            "name its chatLanguageModels.json with --path (ofa byok where)"
        )
    first, *others = editors
    if others:
        names = ", ".join(f"{editor.name} ({editor.file})" for editor in others)
        print(f"ofa: also here, for --path: {names}", file=sys.stderr)
    if not profile:
        return Path(first.file)
    known = _profiles(Path(first.user))
    if profile not in known:
        raise ConfigError(
            f"--profile: {first.name} has no such profile; it has "
            f"{', '.join(known) or 'the default one only'}"
        )
    return Path(first.of_profile(profile))


def _profiles(user: Path) -> list[str]:
    folder = user / "profiles"
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def _put(path: Path, group: dict[str, Any]) -> bool:
    """Merge *group* into the file at *path*, 0600; return False if it was in there."""
    try:
        path = path.resolve()  # what a link in a folder of dotfiles leads to
        before = _read(path)
        after = byok.merge(before.decode("utf-8"), group, where=str(path)).encode()
        if after == before:
            path.chmod(0o600)
            return False
        if before:
            make_file(path.with_name(f"{path.name}.bak"), before)
        write_file(path, after)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no UTF-8 text; nothing was written") from None
    except OSError as exc:
        raise ConfigError(f"{path}: can't be written: {reason(exc)}") from None
    return True


def _read(path: Path) -> bytes:
    """Return what is in *path*; nothing where it is missing, whose folder is made."""
    try:
        return read_own(path, limit_bytes=_LIMIT_BYTES)[0]
    except FileNotFoundError:
        make_folder(path.parent)
        return b""
    except UnsafeFile as exc:
        raise ConfigError(f"{path}: {reason(exc)}") from None


def _say(made: _Made) -> None:
    for line in made.said:
        print(f"ofa: {line}", file=sys.stderr)


def _clicks(where_key: str, name: str) -> str:
    steps = _CLICKS
    if where_key == "ui":
        steps += _KEY_CLICKS.format(name=name)
    return steps + _LAST_CLICK.format(number=4 if where_key == "ui" else 3)
