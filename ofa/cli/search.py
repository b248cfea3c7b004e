"""`ofa index search MODE QUESTION`: what would be injected, from where, and why not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..chat import Sampling
from ..config import Config
from ..errors import ConfigError, OfaError
from ..modes import SEED_MODES, Mode, Modes, with_changes
from ..rag.embed import Embedder
from ..rag.fence import block, header, new_tag
from ..rag.passage import Hit, Passage
from ..rag.question import own_words
from ..rag.retrieve import Found, Retriever
from ..rag.shelf import Shelf
from ..rag.shown import is_shown, select
from ..retrieval import PRIVATE, make_embedder, search_settings, shared_shelf
from ..state import StateFolder
from .common import Subparsers, add_site_option, load_config, state_of

_PATIENCE_S = 600.0
_NEAREST = 3  # shown where nothing is injected


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


@dataclass(frozen=True)
class Report:
    """What one layer, shared or private, gave for a question."""

    name: str
    found: Found
    chosen: tuple[Passage, ...]
    nearest: tuple[Hit, ...] = ()  # where nothing was found: what came closest


def _search(args: argparse.Namespace) -> int:
    config = load_config(args)
    mode = Modes(with_changes(SEED_MODES, config.modes, Sampling())).pick(args.mode)
    typed = sys.stdin.read() if args.question == "-" else args.question
    question = own_words(typed)
    embedder = _loaded(config)
    reports = _reports(config, state_of(), embedder, mode, (question, args.previous))
    if args.json:
        print(json.dumps([as_json(report) for report in reports], indent=1))
    else:
        print(f"{mode.id} searches {', '.join(mode.collections)}")
        print("\n".join(line for report in reports for line in lines(report)))
    if args.text:
        passages = [passage for report in reports for passage in report.chosen]
        tag = new_tag(passage.text for passage in passages)
        print(block(passages, mode.label, mode.lead_in, tag=tag) + typed)
    return 0


def lines(report: Report) -> list[str]:
    """Return *report* for people: a line a passage, best first."""
    told = [f"{report.name}: {report.found.reason}; {len(report.chosen)} injected"]
    for number, hit in enumerate(report.found.hits, 1):
        mark = "+" if is_shown(hit, report.chosen) else " "
        told.append(f" {mark} {_scores(hit)}  {header(hit.passage, number)}")
    for number, hit in enumerate(report.nearest, 1):
        told.append(f"   {_scores(hit)}  {header(hit.passage, number)}  (not injected)")
    return told


def as_json(report: Report) -> dict[str, object]:
    """Return *report* for programs."""
    return {
        "layer": report.name,
        "reason": report.found.reason,
        "hits": [
            {
                "collection": hit.passage.collection,
                "path": hit.passage.path,
                "section": hit.passage.section,
                "score": round(hit.score, 4),
                "cosine": round(hit.cosine, 4),
                "injected": is_shown(hit, report.chosen),
            }
            for hit in (*report.found.hits, *report.nearest)
        ],
    }


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


def _reports(
    config: Config,
    state: StateFolder,
    embedder: Embedder | None,
    mode: Mode,
    asked: tuple[str, str],
) -> list[Report]:
    shared = shared_shelf(config.rag, state)
    private = Shelf(state.folder(PRIVATE))
    layers: list[tuple[str, Callable[[Retriever], Found]]] = [
        ("shared", lambda retriever: retriever.find(mode.collections, *asked))
    ]
    if config.rag.private and private.collections():
        layers.append(("private", lambda retriever: retriever.find_private(*asked)))
    # A person waits for the whole answer: nothing is given up for being late.
    settings = search_settings(config.rag, _PATIENCE_S)
    gated, open_ = (
        Retriever(shared, lambda: embedder, private=private, settings=with_)
        for with_ in (settings, replace(settings, floor=None))
    )
    reports = []
    for name, search in layers:
        found = search(gated)
        if found.kind == "failed":
            raise OfaError(f"the search failed: {found.reason}")
        nearest = search(open_).hits[:_NEAREST] if found.kind == "none" else ()
        reports.append(Report(name, found, _chosen(found, config, embedder), nearest))
    for name, why in (*shared.problems.items(), *private.problems.items()):
        print(f"{name}: {why}", file=sys.stderr)
    return reports


def _chosen(
    found: Found, config: Config, embedder: Embedder | None
) -> tuple[Passage, ...]:
    """Return what the configured budget lets in; a slow engine's may be smaller."""
    return select(
        found.hits,
        count_tokens=embedder.count_tokens if embedder else _about,
        max_tokens=config.rag.max_tokens,
        max_passages=config.rag.max_passages,
    )


def _about(text: str) -> int:
    return len(text) // 3  # without a tokenizer: on the high side for English
