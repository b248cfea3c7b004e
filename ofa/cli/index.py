"""`ofa index`: build what is searched, see what there is, add folders of one's own."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..rag.generation import IndexDamaged, Manifest, current_folder, open_generation
from ..rag.private import PrivateLayers
from ..retrieval import INDEX, PRIVATE, make_embedder
from . import build, evaluate, search
from .common import Subparsers, add_site_option, load_config, state_of
from .steps import steps


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa index` and its commands."""
    parser = subparsers.add_parser(
        "index", help="the documents that answers come from: build, look, add, search"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build.add(commands)
    search.add(commands)
    evaluate.add(commands, steps)
    status = commands.add_parser(
        "status", help="what is indexed, and what is not there"
    )
    status.set_defaults(func=_status)
    own = commands.add_parser(
        "add-private", help="index a folder for yourself alone, or index it again"
    )
    own.add_argument("folder", type=Path, metavar="DIR", help="the folder")
    own.add_argument(
        "--name", default="", help="what to call it (the folder's own name)"
    )
    own.set_defaults(func=_add_private)
    listed = commands.add_parser("list-private", help="the folders you added")
    listed.set_defaults(func=_list_private)
    forget = commands.add_parser("forget-private", help="take one out, or all")
    forget.add_argument(
        "name", metavar="NAME|all", help="one of list-private's names, or all"
    )
    forget.set_defaults(func=_forget_private)
    for command in (status, own, listed, forget):
        add_site_option(command)


def _status(args: argparse.Namespace) -> int:
    config = load_config(args)
    shelf = state_of().folder(INDEX)
    sources = build.sources_of(config)
    print(f"index: {shelf}")
    site = Path(config.rag.index) if config.rag.index else None
    if site:
        print(f"the site's index: {site}")
    for name, collection in sources.items():
        print(f"{name} ({collection.title})")
        print(f"  {_state(shelf / name, name)}")
        if site:
            print(f"  the site's: {_state(site / name, name)}")
        for place in collection.places:
            root = place.root(os.environ)
            where = str(root) if root else f"not there: {' or '.join(place.roots)}"
            print(f"  {place.label}: {where}")
    layers = PrivateLayers(state_of().folder(PRIVATE)).layers()
    print(f"private: {len(layers)} (ofa index list-private)")
    return 0


def _state(folder: Path, name: str) -> str:
    try:
        at = current_folder(folder)
        manifest = open_generation(at).manifest if at else None
    except IndexDamaged as exc:
        return f"damaged: {exc}"
    if manifest is None:
        return f"not built; run `ofa index build {name}`"
    return _made(manifest)


def _made(manifest: Manifest) -> str:
    parts = ", ".join(f"{note.count} from {note.label}" for note in manifest.sources)
    return (
        f"{manifest.passages} passages ({parts}), by {manifest.embedder}, "
        f"{manifest.created}"
    )


def _add_private(args: argparse.Namespace) -> int:
    config = load_config(args)
    layers = PrivateLayers(state_of().folder(PRIVATE))
    with steps() as progress:
        layer, made = layers.add(
            args.folder, args.name, make_embedder(config.rag), progress
        )
    if not made.passages:
        print(f"ofa: {layer.folder}: no text to index in it", file=sys.stderr)
    else:
        print(
            f"{layer.name}: {layer.documents} documents, {layer.passages} passages of "
            f"{layer.folder}, for you alone"
        )
    for why, count in layer.skipped.items():
        print(f"  left out: {count} {why}")
    return 0 if made.passages else 1


def _list_private(args: argparse.Namespace) -> int:
    for layer in PrivateLayers(state_of().folder(PRIVATE)).layers():
        print(
            f"{layer.name}: {layer.documents} documents, {layer.passages} passages of "
            f"{layer.folder}, added {layer.added}"
        )
    return 0


def _forget_private(args: argparse.Namespace) -> int:
    layers = PrivateLayers(state_of().folder(PRIVATE))
    if args.name == "all":
        print(f"forgot {layers.forget_all()} private layers")
    else:
        print(f"forgot {layers.forget(args.name).name}")
    return 0
