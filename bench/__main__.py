"""`python -m bench`: measure rows, print the table, keep it."""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import machine, models
from .context import Run
from .figures import Bound, Figure, notes, table
from .rows import ROWS, Row
from .servers import ROOT, CannotMeasure

RESULTS = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; return 0 if every figure is met, 1 if one is not."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        for row in ROWS:
            print(f"{row.name:10} {row.about}")
        return 0
    if unknown := set(args.rows) - set(_names()):
        parser.error(f"no such row: {', '.join(sorted(unknown))} (--list names them)")
    before = _latest(Path(args.out), quick=args.quick) if args.resume else []
    chosen = _chosen(args.rows, {figure.row for figure in before})
    figures = [one for one in before if one.row not in {row.name for row in chosen}]
    # A job's end is no reason to leave servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="ofa-bench-"))
    run = Run(folder, args.model, args.quick, tuple(args.python))
    saves = args.save if args.save is not None else args.resume or not args.rows
    try:
        facts = machine.describe(_model_named(run))
        run.say(f"memory touched: {machine.touch_memory() or 'none'}")
        for row in chosen:
            made = facts.get("ofa", "")
            figures += [replace(one, ofa=made) for one in _measure(row, run)]
            figures.sort(key=lambda figure: _names().index(figure.row))
            if saves:  # each row at once: the next one may be interrupted
                _keep(Path(args.out), facts, figures, quick=args.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report(facts, figures, quick=args.quick))
    return 0 if all(figure.met is not False for figure in figures) else 1


def _chosen(named: Sequence[str], measured: set[str]) -> list[Row]:
    """Return the rows to measure: the *named*, else the usual ones not *measured*."""
    if named:
        return [row for row in ROWS if row.name in named]
    return [row for row in ROWS if row.usual and row.name not in measured]


def report(
    facts: dict[str, str], figures: Sequence[Figure], *, quick: bool = False
) -> str:
    """Return the page of one run: machine, table, what was compared."""
    title = "# Bench" + (", quick: too few rounds to quote" if quick else "")
    lines = [title, ""]
    made = {figure.ofa: figure.row for figure in figures if figure.ofa}
    if len(made) > 1:  # rows of several runs
        rows = {
            ofa: ", ".join(dict.fromkeys(f.row for f in figures if f.ofa == ofa))
            for ofa in made
        }
        told = "; ".join(f"{ofa} for {names}" for ofa, names in rows.items())
        facts = {**facts, "ofa": told}
    lines += [f"- {name}: {fact}" for name, fact in facts.items()]
    lines += ["", table(figures), "", "## What was compared", "", notes(figures)]
    return "\n".join(lines)


def _measure(row: Row, run: Run) -> list[Figure]:
    """Return the row's figures; a row that fails is one that is not met."""
    run.say(f"{row.name}: {row.about}")
    try:
        figures = row.measure(run)
    except CannotMeasure as exc:
        figures = [_failed(row, str(exc))]
    except Exception as exc:  # noqa: BLE001 - the other rows are measured all the same
        figures = [_failed(row, f"{type(exc).__name__}: {exc}")]
    return [replace(figure, row=row.name) for figure in figures]


def _failed(row: Row, why: str) -> Figure:
    told = why.replace(f"{ROOT}/", "")  # results are for others to read
    return Figure(row.about, None, note=f"NOT MEASURED: {told}")


def _model_named(run: Run) -> str:
    try:
        return f"{run.model.name}, {run.model.numbers} on disk"
    except CannotMeasure as exc:
        return f"none: {exc}"


def _keep(
    out: Path,
    facts: dict[str, str],
    figures: Sequence[Figure],
    *,
    quick: bool,
) -> None:
    """Write the page, and all readings as JSON beside it."""
    out.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.date.today()}{_ending(quick=quick)}"
    kept: dict[str, Any] = {
        "machine": facts,
        "quick": quick,
        "figures": [
            {
                "row": figure.row,
                "figure": figure.name,
                "measured": figure.measured,
                "unit": figure.unit,
                "must": f"{figure.must.sign} {figure.must.value}"
                if figure.must
                else None,
                "met": figure.met,
                "ofa": figure.ofa,
                "note": figure.note,
                "details": dict(figure.details),
            }
            for figure in figures
        ],
    }
    page = report(facts, figures, quick=quick)
    (out / f"{name}.md").write_text(page + "\n", encoding="utf-8")
    written = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    (out / f"{name}.json").write_text(written, encoding="utf-8")
    sys.stderr.write(f"kept in {out / name}.md and .json\n")


def _ending(*, quick: bool) -> str:
    return f"-{machine.slug()}" + ("-quick" if quick else "")


def _latest(out: Path, *, quick: bool) -> list[Figure]:
    """Return the figures of the newest results of a machine like this one, if any."""
    kept = sorted(out.glob(f"????-??-??{_ending(quick=quick)}.json"))
    if not kept:
        return []
    return [_again(one) for one in json.loads(kept[-1].read_text("utf-8"))["figures"]]


def _again(kept: dict[str, Any]) -> Figure:
    """Return a figure as `_keep` wrote it."""
    sign, _, value = (kept["must"] or "").partition(" ")
    return Figure(
        kept["figure"],
        kept["measured"],
        Bound(sign, float(value)) if sign else None,
        kept["unit"],
        kept["note"],
        kept["details"],
        kept["row"],
        kept.get("ofa", ""),
    )


def _names() -> list[str]:
    return [row.name for row in ROWS]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Measure ofa beside its peers."
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="the usual ones if none is named"
    )
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: does it run, not what is it"
    )
    parser.add_argument(
        "--model",
        default="gemma",
        metavar="NAME|DIR",
        help=f"{', '.join(models.NAMES)}, or a folder (default: gemma)",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="the python of another environment, with another BLAS, for the row blas",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="add to the newest results in --out: the rows they lack, or those named",
    )
    parser.add_argument("--out", default=str(RESULTS), metavar="DIR")
    parser.add_argument(
        "--save",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the results in --out (default: where no row was named)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
