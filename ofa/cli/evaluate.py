"""`ofa index eval BENCH`: how well retrieval answers a benchmark's questions."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..chat import Sampling
from ..config import Config
from ..config_schema import RagSection
from ..errors import ConfigError, OfaError
from ..modes import SEED_MODES, Mode, Modes, with_changes
from ..rag.build import STORE, Workshop, build
from ..rag.embed import Embedder
from ..rag.evaluate import (
    Asked,
    Outcome,
    Result,
    Scores,
    grouped,
    load_bench,
    run_line,
    scores,
)
from ..rag.lookup import Lookup
from ..rag.passage import Passage
from ..rag.question import asked as question_of
from ..rag.retrieve import Retriever
from ..rag.shelf import Shelf
from ..rag.sources import Collection, load_glossary, one_folder
from ..retrieval import lookup_as_configured, make_embedder, search_settings
from .build import sources_file
from .common import Subparsers, add_site_option, load_config, state_of

_EVAL = "eval"  # in the state folder; an index a corpus
# A person waits for the figures; a server would give up earlier, and that is no
# property of what it finds.
_PATIENCE_S = 60.0

Progress = Callable[[str, int, int], None]
Bars = Callable[[], contextlib.AbstractContextManager[Progress]]


def add(subparsers: Subparsers[argparse.ArgumentParser], bars: Bars) -> None:
    """Register the command; *bars* gives a progress function."""
    parser = subparsers.add_parser(
        "eval",
        help="measure how well a benchmark's questions are answered",
        description="Index the corpora, if they changed, and put each question of "
        "BENCH through search as a server does: its own words and the ones before, "
        "the gate, the budget. BENCH has a JSON object a line: id, mode, question, "
        "history, relevant (collection/path), evidence (file to pattern), kind, split.",
    )
    parser.add_argument("bench", type=Path, metavar="BENCH", help="the questions")
    parser.add_argument(
        "--corpora",
        type=Path,
        required=True,
        metavar="DIR",
        help="a folder a collection, with its documents",
    )
    parser.add_argument("--split", default="", help="of the questions: only these")
    parser.add_argument(
        "--run-out", type=Path, metavar="FILE", help="write what was found, a line each"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_site_option(parser)
    parser.set_defaults(func=lambda args: _evaluate(args, bars))


def _evaluate(args: argparse.Namespace, bars: Bars) -> int:
    config = load_config(args)
    modes = Modes(with_changes(SEED_MODES, config.modes, Sampling()))
    bench = load_bench(args.bench, args.split)
    for one in bench:
        modes.pick(one.mode)  # an unknown one is told before an hour of indexing
    embedder = make_embedder(config.rag)
    with bars() as progress:
        shelf = _indexed(args.corpora, sources_file(config), embedder, progress)
        outcomes = _outcomes(bench, modes, shelf, embedder, config, progress)
    if args.run_out is not None:
        lines = (json.dumps(run_line(one), ensure_ascii=False) for one in outcomes)
        args.run_out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(_as_json(outcomes) if args.json else "\n".join(_told(outcomes)))
    return 0


def _indexed(
    corpora: Path, sources: Path, embedder: Embedder, progress: Progress
) -> Shelf:
    """
    Return a shelf with a collection for each folder of *corpora*, as it is now.

    Each has the glossary of its name that lies beside *sources*.
    """
    if not corpora.is_dir():
        raise ConfigError(f"--corpora {corpora}: no such folder")
    wanted: list[Collection] = [
        replace(
            one_folder(folder.name, folder.resolve()),
            glossary=load_glossary(sources, folder.name),
        )
        for folder in sorted(corpora.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    ]
    if not wanted:
        raise ConfigError(f"--corpora {corpora}: it has no folder in it")
    name = hashlib.sha256(str(corpora.resolve()).encode()).hexdigest()[:16]
    place = state_of().folder(_EVAL) / name
    build(wanted, Workshop(place / STORE, place, embedder, progress=progress))
    return Shelf(place)


def _outcomes(
    bench: Sequence[Asked],
    modes: Modes,
    shelf: Shelf,
    embedder: Embedder,
    config: Config,
    progress: Progress,
) -> list[Outcome]:
    embedder.load()
    lookup = lookup_in(shelf, embedder, config.rag)
    for one in bench:
        for collection in modes.pick(one.mode).collections:
            shelf.generation(collection)  # opened before, as by a server at its start
    outcomes = []
    for number, one in enumerate(bench, 1):
        mode = modes.pick(one.mode)
        outcomes.append(outcome(one, mode, lookup))
        progress("questions", number, len(bench))
    for name, why in shelf.problems.items():
        print(f"{name}: {why}", file=sys.stderr)
    return outcomes


def lookup_in(shelf: Shelf, embedder: Embedder, rag: RagSection) -> Lookup:
    """Return what a server looks questions up with, without a server's hurry."""
    settings = search_settings(rag, _PATIENCE_S)
    retriever = Retriever(shelf, lambda: embedder, settings=settings)
    return lookup_as_configured(retriever, rag, embedder.count_tokens)


def outcome(one: Asked, mode: Mode, lookup: Lookup) -> Outcome:
    """Return what comes of a question in a server that has room for it."""
    began = time.perf_counter()
    question = question_of(one.chat)
    if question is None:
        return Outcome(one, reason="skipped: no question of the user's")
    preview = lookup.preview(mode, question)
    found, made = preview.shared, preview.made
    if found.kind == "failed":
        raise OfaError(f"{one.id}: the search failed: {found.reason}")
    return Outcome(
        one,
        tuple(_result(hit.passage, hit.score) for hit in found.hits),
        tuple(_result(one, 1 / rank) for rank, one in enumerate(made.passages, 1)),
        made.block.tokens if made.block else 0,
        time.perf_counter() - began,
        made.reason,
    )


def _result(passage: Passage, score: float) -> Result:
    # A scorer looks for the answer in what the model would see, its heading included.
    text = f"{passage.section}\n{passage.text}" if passage.section else passage.text
    return Result(f"{passage.collection}/{passage.path}", score, text)


_COLUMNS = (
    ("recall@5", "recall"),
    ("nDCG@10", "ndcg"),
    ("MRR@10", "mrr"),
    ("evidence@5", "evidence"),
    ("missed", "missed"),
    ("false", "false"),
    ("tokens", "tokens"),
)


def _told(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table for people: all, by kind, by mode, and how long it took."""
    every = scores(outcomes)
    titles = "".join(f"{title:>11}" for title, _ in _COLUMNS)
    lines = [f"{'':20}{'questions':>10}{titles}", _row("all", every)]
    for groups in (
        grouped(outcomes, lambda one: one.kind),
        grouped(outcomes, lambda one: one.mode),
    ):
        lines += ["", *(_row(name or "-", each) for name, each in groups.items())]
    p50, p95 = (f"{seconds * 1000:.0f} ms" for seconds in (every.p50_s, every.p95_s))
    return [*lines, "", f"a retrieval: p50 {p50}, p95 {p95}"]


def _row(name: str, these: Scores) -> str:
    cells = "".join(
        f"{_cell(getattr(these, field), whole=field == 'tokens'):>11}"
        for _, field in _COLUMNS
    )
    return f"{name:20}{these.answerable + these.off_topic:>10}{cells}"


def _cell(value: float, *, whole: bool) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if whole else f"{value:.3f}"


def _as_json(outcomes: Sequence[Outcome]) -> str:
    def plain(these: Scores) -> dict[str, float | int | None]:
        pairs = dataclasses.asdict(these).items()
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in pairs
        }

    groups = {
        "kinds": grouped(outcomes, lambda one: one.kind),
        "modes": grouped(outcomes, lambda one: one.mode),
    }
    told = {
        "all": plain(scores(outcomes)),
        **{
            title: {name: plain(each) for name, each in group.items()}
            for title, group in groups.items()
        },
    }
    return json.dumps(told, indent=1)
