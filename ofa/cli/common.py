"""
What the subcommands share: --site, the configuration, the state folder, the key file.

An option whose destination is a dotted key (``dest="server.port"``) sets that key.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from ..auth import KeyFile, key_file_in
from ..config import Config, load
from ..state import StateFolder, find_state_folder

Subparsers = argparse._SubParsersAction  # typeshed has no public name for it


def add_site_option(parser: argparse.ArgumentParser) -> None:
    """Give *parser* the option that every subcommand has."""
    parser.add_argument(
        "--site",
        metavar="FILE",
        help="read this site.toml instead of the one that would be found",
    )


def load_config(args: argparse.Namespace) -> Config:
    """Return the configuration that *args* and the environment make."""
    overrides = {name: value for name, value in vars(args).items() if "." in name}
    return load(getattr(args, "site", None), os.environ, overrides)


def state_of(env: Mapping[str, str] | None = None) -> StateFolder:
    """Return this user's state folder, made where it can be."""
    return StateFolder(find_state_folder(os.environ if env is None else env))


def key_file_of(config: Config, state: StateFolder) -> KeyFile:
    """Return the key file that is configured, else the one in the state folder."""
    return key_file_in(state, config.server.key_file)
