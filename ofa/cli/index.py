"""`ofa index`: build what is searched, see what there is, add folders of one's own."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..config import Config
from ..errors import ConfigError
from ..rag.build import Built, Workshop, build, plan
from ..rag.generation import IndexDamaged, Manifest, current_folder, open_generation
from ..rag.private import PrivateLayers
from ..rag.sources import (
    Collection,
    Sources,
    load_sources,
    one_folder,
    packaged_sources,
    pick,
)
from ..retrieval import INDEX, PRIVATE, make_embedder
from . import evaluate, search
from .common import Subparsers, add_site_option, load_config, state_of

STORE = "chroma"  # chromadb's folder, beside the collections


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa index` and its commands."""
    parser = subparsers.add_parser(
        "index", help="the documents that answers come from: build, look, add, search"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands)
    search.add(commands)
    evaluate.add(commands, _bars)
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


def _add_build(commands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "build",
        help="index what sources.toml declares",
        description="Find the documents, embed what is new or changed, and put the "
        "result in place; a running server takes it up within two seconds.",
    )
    parser.add_argument(
        "collections", nargs="*", metavar="COLLECTION", help="which (all of them)"
    )
    parser.add_argument(
        "--from",
        dest="folder",
        type=Path,
        metavar="DIR",
        help="index DIR, beside the notes, instead of the declared places; for several "
        "collections, DIR's folders of their names",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be indexed, and stop"
    )
    add_site_option(parser)
    parser.set_defaults(func=_build)


def _build(args: argparse.Namespace) -> int:
    config = load_config(args)
    wanted = pick(_sources(config), args.collections)
    if args.folder is not None:
        wanted = _from_folder(wanted, args.folder)
    if args.dry_run:
        built = plan(wanted, os.environ)
    else:
        shelf = state_of().folder(INDEX)
        embedder = make_embedder(config.rag)
        with _bars() as progress:
            workshop = Workshop(shelf / STORE, shelf, embedder, progress=progress)
            built = build(wanted, workshop)
    for one in built:
        print(_told(one, dry=args.dry_run))
    return 0


def _told(built: Built, *, dry: bool) -> str:
    """Return for people what became of a collection, and what was left out."""
    lines = []
    if dry:
        lines.append(f"{built.collection}: {built.documents} documents")
    elif not built.generation:
        lines.append(f"{built.collection}: nothing to index; left as it was")
    else:
        what = "built" if built.changed else "as it was"
        lines.append(
            f"{built.collection}: {what}; {built.documents} documents, "
            f"{built.passages} passages, {built.embedded} of them new, "
            f"{built.dropped} gone, {built.seconds:.1f} s"
        )
    lines += [f"  not there: {label}" for label in built.missing]
    lines += [f"  left out: {count} {why}" for why, count in built.skipped.items()]
    return "\n".join(lines)


def _status(args: argparse.Namespace) -> int:
    config = load_config(args)
    shelf = state_of().folder(INDEX)
    sources = _sources(config)
    print(f"index: {shelf}")
    for name, collection in sources.items():
        print(f"{name} ({collection.title})")
        print(f"  {_state(shelf / name, name)}")
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
    with _bars() as progress:
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


def _sources(config: Config) -> Sources:
    own = config.rag.sources
    return load_sources(Path(own) if own else packaged_sources())


def _from_folder(
    wanted: tuple[Collection, ...], folder: Path
) -> tuple[Collection, ...]:
    """Return the collections with *folder* in place of their declared places."""
    if not folder.is_dir():
        raise ConfigError(f"--from {folder}: no such folder")
    made = []
    for collection in wanted:
        root = folder if len(wanted) == 1 else folder / collection.name
        if root.is_dir():
            own = one_folder(collection.name, root.resolve()).places
            places = (*collection.places[:1], *own)  # the notes are always the first
            made.append(Collection(collection.name, collection.title, places))
    if not made:
        names = ", ".join(collection.name for collection in wanted)
        raise ConfigError(f"--from {folder}: it has none of the folders {names}")
    return tuple(made)


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """Give a progress function that shows a bar a step, on steps over two seconds."""
    from tqdm import tqdm

    steps: list[str] = []
    with contextlib.ExitStack() as last:
        bars: list[tqdm[None]] = []

        def progress(step: str, done: int, total: int) -> None:
            if steps[-1:] != [step]:
                last.close()
                steps.append(step)
                # A bar in a job's output file would be thousands of lines: not there.
                bar = tqdm(total=total, desc=step, delay=2, disable=None)
                bars[:] = [last.enter_context(bar)]
            bars[0].update(done - bars[0].n)

        yield progress
