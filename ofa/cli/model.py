"""`ofa model`: fetch the model that is used where none is named; list what is there."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..progress import Bars
from .common import Subparsers, add_site_option, load_config

if TYPE_CHECKING:
    from ..engine.mlx.starter import Taken


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa model starter` and `ofa model list`."""
    parser = subparsers.add_parser(
        "model", help="the starter model: fetch it, see which models are kept"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    starter = commands.add_parser(
        "starter", help="fetch the model that is used where none is named"
    )
    which = starter.add_mutually_exclusive_group()
    which.add_argument(
        "--gemma",
        action="store_const",
        dest="which",
        const="gemma",
        help="the packaged Gemma 3 270M instead: pretrained, continues text",
    )
    which.add_argument(
        "--small",
        action="store_const",
        dest="which",
        const="small",
        help="the packaged SmolLM2 135M instead: for tests, fast and simple",
    )
    starter.add_argument(
        "--no-hub", action="store_true", help="ask no model hub: the packaged one"
    )
    starter.add_argument(
        "--print-path", action="store_true", help="print the model's folder alone"
    )
    starter.add_argument(
        "--if-unset",
        action="store_true",
        help="do nothing where the configuration names a model or another engine",
    )
    starter.set_defaults(func=_starter)
    listed = commands.add_parser("list", help="list the models that come packaged")
    listed.set_defaults(func=_list)
    for command in (starter, listed):
        add_site_option(command)


def _starter(args: argparse.Namespace) -> int:
    if args.if_unset:
        engine = load_config(args).engine
        if engine.kind != "mlx" or engine.model:
            return 0
    taken = _take(args.which, no_hub=args.no_hub)
    if args.print_path:
        print(taken.model)
        return 0
    # Before a start, standard output belongs to the server: `scripts/serve --json`.
    out = sys.stderr if args.if_unset else sys.stdout
    for name in ("title", "source", "checksum", "licence"):
        label = "model" if name == "title" else name
        print(f"{label:9}{getattr(taken, name)}", file=out)
    print(f"{'folder':9}{taken.model}", file=out)
    return 0


def _take(which: str | None, *, no_hub: bool) -> Taken:
    """Return the wanted model, in its folder on this machine."""
    from ..engine.mlx.starter import PACKAGED, cache_folder, fetch, starter_model

    with Bars() as bars:
        if which is None and not no_hub:
            return starter_model(cache_folder(), progress=bars.show)
        row = PACKAGED[which or "starter"]
        return fetch(row, cache_folder(), progress=bars.show)


def _list(args: argparse.Namespace) -> int:
    from ..engine.mlx.starter import PACKAGED, cache_folder, find

    for option, row in PACKAGED.items():
        taken = find(row, cache_folder())
        where = taken.model if taken else "not fetched"
        command = "ofa model starter" + ("" if option == "starter" else f" --{option}")
        print(f"{row.title}\n  {where}\n  {row.source}, {row.licence}; {command}")
    return 0
