"""The `ofa` command: parse the arguments, run the subcommand, say what went wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from .. import __version__
from ..errors import ConfigError, OfaError
from .parser import Parser

# Each is a module with `add(subparsers)`; in the order and with the words of --help,
# for which importing them all would take most of a second.
GROUPS = {
    "serve": "run the server",
    "ask": "ask a running server a question",
    "index": "the documents that answers come from: build, look, add, search",
    "model": "the starter model: fetch it, see which models are kept",
    "key": "the API key: its file, its text, a new one",
    "config": "show the configuration and where each value comes from",
    "byok": "VS Code: write its entry for this server, or show it",
    "client": "print another client's configuration for this server",
}

# Upstream's flags for the server, without a subcommand: `ofa --serve …` still works.
_SEED_SERVE = "--serve"


def run() -> None:
    """Run the command line and leave with its exit code; the console script."""
    # Answers and pipes hold anything; a Latin-1 terminal is no reason for a traceback.
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
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
        args = make_parser(words).parse_args(words)
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


def make_parser(groups: Iterable[str] = tuple(GROUPS)) -> Parser:
    """Return the command line's parser, whole for those of `GROUPS` in *groups*."""
    parser = Parser(
        prog="ofa",
        description="A local Gemma, with your site's own documents, behind the chat "
        "box people already use.",
    )
    parser.add_argument("--version", action="version", version=f"ofa {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    wanted = frozenset(groups)
    for group, summary in GROUPS.items():
        if group in wanted:
            import_module(f"{__package__}.{group}").add(commands)
        else:
            commands.add_parser(group, help=summary)
    return parser
