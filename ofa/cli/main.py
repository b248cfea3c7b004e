"""The `ofa` command: parse the arguments, run the subcommand, say what went wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import ConfigError, OfaError

# Each has `add(subparsers)`; in the order that --help lists them.
GROUPS = ("serve", "ask", "index", "model", "key", "config", "byok", "client")

# Upstream's flags for the server, without a subcommand: `ofa --serve …` still works.
_SEED_SERVE = "--serve"


def run() -> None:
    """Run the command line and leave with its exit code; the console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """
    Run one command and return its exit code.

    0 done, 1 failed, 2 wrong arguments, 78 (EX_CONFIG) what was configured can't be
    used, 130 interrupted.
    """
    words = list(argv)
    if _SEED_SERVE in words:
        words.remove(_SEED_SERVE)
        words.insert(0, "serve")
    try:
        args = make_parser().parse_args(words)
    except SystemExit as stop:  # argparse's: 0 for --help, 2 for wrong arguments
        return int(stop.code or 0)
    try:
        return int(args.func(args))
    except ConfigError as exc:
        print(f"ofa: {exc}", file=sys.stderr)
        return exc.exit_code
    except OfaError as exc:
        print(f"ofa: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; importing no heavy library."""
    from importlib import import_module

    parser = argparse.ArgumentParser(
        prog="ofa",
        description="A local Gemma, with your site's own documents, behind the chat "
        "box people already use.",
    )
    parser.add_argument("--version", action="version", version=f"ofa {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in GROUPS:
        import_module(f"{__package__}.{group}").add(commands)
    return parser
