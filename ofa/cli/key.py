"""`ofa key`: where the key is, the key itself for a person's eyes, and a new one."""

from __future__ import annotations

import argparse
import sys

from ..auth import KeyFile
from .common import Subparsers, add_site_option, key_file_of, load_config, state_of


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa key path`, `ofa key show` and `ofa key rotate`."""
    parser = subparsers.add_parser(
        "key", help="the API key: its file, its text, a new one"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    path = commands.add_parser("path", help="print where the key file is")
    path.set_defaults(func=_path)
    show = commands.add_parser("show", help="print the key to this terminal")
    show.add_argument(
        "--force", action="store_true", help="print it into a file or pipe as well"
    )
    show.set_defaults(func=_show)
    rotate = commands.add_parser(
        "rotate",
        help="make a new key; the old one ends within two seconds",
    )
    rotate.set_defaults(func=_rotate)
    for command in (path, show, rotate):
        add_site_option(command)
        command.add_argument(
            "--key-file",
            dest="server.key_file",
            metavar="FILE",
            help="another key file",
        )


def _path(args: argparse.Namespace) -> int:
    print(_key_file(args).path)
    return 0


def _show(args: argparse.Namespace) -> int:
    # A job's output file or a shared tmux log is where keys are found by others.
    if not args.force and not sys.stdout.isatty():
        print(
            "ofa: not printed, as this is no terminal; --force prints it anyway, and "
            "`ofa key path` says where it is",
            file=sys.stderr,
        )
        return 1
    for key in _key_file(args).read():
        print(key)
    return 0


def _rotate(args: argparse.Namespace) -> int:
    key_file = _key_file(args)
    key_file.rotate()
    print(f"a new key is in {key_file.path}; `ofa byok write` gives it to your editor")
    return 0


def _key_file(args: argparse.Namespace) -> KeyFile:
    return key_file_of(load_config(args), state_of())
