"""
The command line's parser: argparse's, but with closed lips.

Imports nothing heavy: `ofa --help` is answered with this alone.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

# Every message of argparse's that repeats a word of the command line; kept are its
# first words and the choices.
_ECHO = re.compile(
    r"(invalid \w+ value|invalid choice|ignored explicit argument|unknown parser"
    r"|ambiguous option)\b.*?( \((?:choose from|choices:).*)?$",
    re.DOTALL,
)
_OPTION_NAME = re.compile(r"--?[a-z][a-z-]{0,30}")


class Parser(argparse.ArgumentParser):
    """
    Refuses wrong words without repeating them: one may be a key that was pasted.

    What it says stands in a job's log. Nor are options abbreviated: `--key KEY` must
    not be read as `--key-file KEY`. Its subcommands' parsers are of this class too.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_args(  # type: ignore[override]  # the one form that is used here
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """
        Return the parsed *args*; leave with status 2 for any that are unknown.

        argparse reads words after an option only where there were none before it; a
        command that takes them anywhere names their list as its default `rest`.
        """
        parsed, unknown = self.parse_known_args(args, namespace)
        rest = getattr(parsed, "rest", "")
        if rest and not any(word.startswith("--") for word in unknown):
            getattr(parsed, rest).extend(unknown)
            unknown = []
        if unknown:
            names = [name for word in unknown if (name := _option_name(word))]
            self.error(f"unknown arguments{': ' if names else ''}{', '.join(names)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without the value that is, and leave with status 2."""
        super().error(_ECHO.sub(r"\1\2", message))


def _option_name(word: str) -> str:
    """Return *word* as far as it can only be an option's name, else ""."""
    name = word.partition("=")[0]
    return name if _OPTION_NAME.fullmatch(name) else ""
