"""`ofa index build`: find, cut, embed and put in place; or say what that comes to."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..config import Config
from ..errors import ConfigError
from ..rag.build import STORE, Built, Workshop, build
from ..rag.plan import Planned, plan
from ..rag.sources import (
    Collection,
    Sources,
    load_sources,
    one_folder,
    packaged_sources,
    pick,
)
from ..retrieval import INDEX, make_embedder
from .common import Subparsers, add_site_option, load_config, state_of
from .steps import duration, steps


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa index build`."""
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
        "--out",
        type=Path,
        metavar="DIR",
        help="build in DIR, for all users of the system to read ([rag] index)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be indexed, and stop"
    )
    add_site_option(parser)
    parser.set_defaults(func=_build)


def sources_of(config: Config) -> Sources:
    """Return the declared collections, a site's own or the packaged ones."""
    return load_sources(sources_file(config))


def sources_file(config: Config) -> Path:
    """Return the sources.toml in use; notes/ and glossary/ lie beside it."""
    own = config.rag.sources
    return Path(own) if own else packaged_sources()


def _build(args: argparse.Namespace) -> int:
    config = load_config(args)
    wanted = pick(sources_of(config), args.collections)
    if args.folder is not None:
        wanted = _from_folder(wanted, args.folder)
    # Only its path: a dry run makes no folder.
    shelf = args.out.absolute() if args.out else state_of().path_of(INDEX)
    with steps() as progress:
        workshop = Workshop(
            shelf / STORE,
            shelf,
            make_embedder(config.rag),
            progress=progress,
            open_to_all=args.out is not None,
        )
        if args.dry_run:
            print("\n".join(_planned(*plan(wanted, workshop))))
            return 0
        built = build(wanted, workshop)
    for one in built:
        print(_told(one))
    return 0


def _planned(planned: list[Planned], seconds: float) -> list[str]:
    """Return for people what a build would come to."""
    lines = []
    for one in planned:
        lines.append(
            f"{one.collection}: {one.documents:,} documents, about {one.chunks:,} "
            f"passages, {one.fresh:,} of them new"
        )
        lines += [
            f"  {place.label}: {place.count:,} from {place.root}"
            for place in one.places
            if place.root
        ]
        lines += [f"  not there: {p.label}" for p in one.places if p.root is None]
        lines += _left_out(one.skipped)
    took = f"about {duration(seconds)} on this machine" if seconds else "nothing to do"
    return [*lines, f"to embed: {took}"]


def _told(built: Built) -> str:
    """Return for people what became of a collection, and what was left out."""
    lines = []
    if not built.generation:
        lines.append(f"{built.collection}: nothing to index; left as it was")
    else:
        what = "built" if built.changed else "as it was"
        pace = f", {built.pace:,.0f} passages/s" if built.embedded > 99 else ""
        lines.append(
            f"{built.collection}: {what}; {built.documents} documents, "
            f"{built.passages} passages, {built.embedded} of them new, "
            f"{built.dropped} gone, {built.seconds:.1f} s{pace}"
        )
    lines += [f"  not there: {label}" for label in built.missing]
    return "\n".join([*lines, *_left_out(built.skipped)])


def _left_out(skipped: Mapping[str, int]) -> list[str]:
    return [f"  left out: {count:,} {why}" for why, count in skipped.items()]


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
            made.append(replace(collection, places=places))
    if not made:
        names = ", ".join(collection.name for collection in wanted)
        raise ConfigError(f"--from {folder}: it has none of the folders {names}")
    return tuple(made)
