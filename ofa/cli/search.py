"""`ofa index search MODE QUESTION`: what would be injected, from where, and why not."""

from __future__ import annotations

import argparse
import json
import sys

from ..chat import Sampling
from ..config import Config
from ..errors import ConfigError, OfaError
from ..modes import SEED_MODES, Mode, Modes, with_changes
from ..rag.embed import Embedder
from ..rag.fence import header
from ..rag.lookup import Made
from ..rag.passage import Hit
from ..rag.report import Layer, Report, as_json
from ..rag.shown import is_shown
from ..retrieval import (
    lookup_as_configured,
    make_embedder,
    open_shelves,
    search_settings,
)
from .common import Subparsers, add_site_option, load_config, state_of

_PATIENCE_S = 600.0


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "search",
        help="show what would be injected for a question",
        description="Search as the server does: the passages that a question to MODE "
        "would bring along, with their scores, and why others or none.",
    )
    add_site_option(parser)
    parser.add_argument("mode", metavar="MODE", help="a mode's name or model id")
    parser.add_argument("question", metavar="QUESTION", help="- reads standard input")
    parser.add_argument(
        "--previous", default="", metavar="TEXT", help="the question before this one"
    )
    parser.add_argument(
        "--text", action="store_true", help="print what stands before the question"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(func=_search)


def _search(args: argparse.Namespace) -> int:
    config = load_config(args)
    mode = Modes(with_changes(SEED_MODES, config.modes, Sampling())).pick(args.mode)
    typed = sys.stdin.read() if args.question == "-" else args.question
    report = _report(config, mode, typed, args.previous)
    if args.json:
        print(json.dumps(as_json(report), indent=1))
    else:
        print(f"{mode.id} searches {', '.join(mode.collections)}")
        print("\n".join(lines(report)))
    if args.text:
        print(report.text + typed)
    return 0


def lines(report: Report) -> list[str]:
    """Return *report* for people: a line a passage, best first."""
    return [line for layer in report.layers for line in _lines(layer, report.made)]


def _lines(layer: Layer, made: Made) -> list[str]:
    hits, shown = layer.found.hits, made.passages
    marks = ["+" if is_shown(hit, shown) else " " for hit in hits]
    told = [f"{layer.name}: {layer.found.reason}; {marks.count('+')} injected"]
    if hits and not shown:
        told[0] += f" ({made.reason})"
    for number, (hit, mark) in enumerate(zip(hits, marks, strict=True), 1):
        told.append(f" {mark} {_scores(hit)}  {header(hit.passage, number)}")
    for number, hit in enumerate(layer.nearest, 1):
        told.append(f"   {_scores(hit)}  {header(hit.passage, number)}  (not injected)")
    return told


def _scores(hit: Hit) -> str:
    pinned = " pinned" if hit.passage.pinned else ""
    return f"score {hit.score:.2f}  cosine {hit.cosine:+.2f}{pinned}"


def _loaded(config: Config) -> Embedder | None:
    """Return the embedder, or None with a line on standard error, as a server would."""
    try:
        embedder = make_embedder(config.rag)
        print("loading the embedding model ...", file=sys.stderr)
        embedder.load()
    except ConfigError as exc:
        print(f"{exc}; searching by words alone", file=sys.stderr)
        return None
    return embedder


def _report(config: Config, mode: Mode, typed: str, previous: str) -> Report:
    """Return what a server of this configuration would do with a question."""
    shelves = open_shelves(config.rag, state_of())
    embedder = _loaded(config)
    # A person waits for the whole answer: nothing is given up for being late.
    settings = search_settings(config.rag, _PATIENCE_S)
    lookup = lookup_as_configured(
        shelves.retriever(lambda: embedder, settings),
        config.rag,
        embedder.count_tokens if embedder else _about,
    )
    inspector = shelves.inspector(lookup, lambda: embedder, settings)
    report = inspector.report(mode, typed, previous)
    for layer in report.layers:
        if layer.found.kind == "failed":
            raise OfaError(f"the search failed: {layer.found.reason}")
    for name, why in shelves.problems().items():
        print(f"{name}: {why}", file=sys.stderr)
    return report


def _about(text: str) -> int:
    return len(text) // 3  # without a tokenizer: on the high side for English
