"""
docs/cli.md from the command line's own parser; `scripts/cli-docs` writes it.

Rendered here and not by argparse, whose help differs between versions of Python and
widths of terminals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ofa.cli.main import make_parser

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"

HEAD = """\
# The command line

Made by `scripts/cli-docs` from the program, which says the same with `--help`.
It leaves with 0: done, 1: failed, 2: wrong arguments, 78: what was configured can't
be used, 130: interrupted. `ofa --serve …` is `ofa serve …`.
"""


def commands(
    parser: argparse.ArgumentParser, name: str = "ofa", summary: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield every command that can be run: its words, its summary, its parser."""
    subs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not subs:
        yield name, summary, parser
    for sub in subs:
        helps = {action.dest: action.help or "" for action in sub._choices_actions}
        for word, child in sub.choices.items():
            yield from commands(child, f"{name} {word}", helps.get(word, ""))


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return a command's own arguments: those that --help lists, itself not."""
    return [
        action
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
        and action.help != argparse.SUPPRESS
    ]


def render() -> str:
    """Return the whole page."""
    parts = [HEAD]
    parts += [
        "\n".join(_command(*command)) + "\n" for command in commands(make_parser())
    ]
    return "\n".join(parts)


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = arguments(parser)
    positionals = [_positional(a) for a in actions if not a.option_strings]
    options = ["[OPTION …]"] if any(a.option_strings for a in actions) else []
    yield f"## {name}"
    yield ""
    yield _sentence(parser.description or summary)
    yield ""
    yield "```"
    yield " ".join([name, *options, *positionals])
    yield "```"
    if actions:
        yield from ("", "| argument | meaning |", "| --- | --- |")
        yield from (f"| {_names(action)} | {_meaning(action)} |" for action in actions)
    if parser.epilog:
        yield from ("", "```", parser.epilog.strip(), "```")


def _positional(action: argparse.Action) -> str:
    name = _value(action)
    if action.nargs == "*":
        return f"[{name} …]"
    return f"[{name}]" if action.nargs == "?" else name


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_cell(_value(action))}`"
    value = "" if action.nargs == 0 else f" {_value(action)}"
    return ", ".join(f"`{_cell(option + value)}`" for option in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.metavar:
        return str(action.metavar)
    if action.choices:
        return "|".join(map(str, action.choices))
    return action.dest.upper()


def _meaning(action: argparse.Action) -> str:
    told = action.help or ""
    if action.choices and action.metavar:
        told = "; ".join(filter(None, [told, "one of " + ", ".join(action.choices)]))
    return _cell(told)


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
