"""
The domain modes: one row each. Everything that differs between modes is here.

A new mode is one row (or one ``[modes.NAME]`` table in site.toml) and one file in
``prompts/``; no other line of the program changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from .chat import Sampling
from .config_schema import ModeChange
from .config_values import nearest
from .errors import ConfigError, UnknownModel

# Fixed, so that a client which caches /v1/models sees the same bytes on each start.
CREATED = 1767225600  # 2026-01-01T00:00:00Z

_UNSET = Sampling()
_LEAD_IN = "Reference material that may help with the request:"
# Its id stands in URLs and in editors' settings, its name in file names.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True)
class Mode:
    """
    One domain: a model id, how to brief the model, and where to look things up.

    *collections* are searched in this order of precedence; *label* names the fence
    that their passages stand in; *lead_in* is the sentence before it.
    """

    id: str  # what clients send as `model`
    name: str  # short key: the prompt's file name, the command line's MODE
    title: str  # what a model picker shows
    prompt: str  # file in prompts/
    collections: tuple[str, ...]
    label: str
    lead_in: str = _LEAD_IN
    sampling: Sampling = Sampling()
    weights: str = ""  # of [models.NAME]; empty: [engine] model
    hidden: bool = False


# Low temperatures: these modes answer from documents, and a small model that is
# told to quote them drifts at Gemma's own default of 1.0.
_FACTUAL = Sampling(temperature=0.2, top_p=0.95, top_k=64)


def _row(
    name: str,
    title: str,
    label: str,
    collections: tuple[str, ...],
    lead_in: str = _LEAD_IN,
) -> Mode:
    return Mode(
        id=f"ofa-{name}",
        name=name,
        title=f"OFA · {title}",
        prompt=f"{name}.txt",
        collections=collections,
        label=label,
        lead_in=lead_in,
        sampling=_FACTUAL,
    )


# fmt: off
SEED_MODES: tuple[Mode, ...] = (
    _row("openfoam", "OpenFOAM", "OPENFOAM", ("openfoam",),
         "OpenFOAM example files and notes that may help with the request:"),
    _row("hpc", "HPC", "HPC_DOCS", ("hpc",)),
    _row("code", "Code", "HPC_DOCS", ("code", "hpc")),
    _row("amrex", "AMReX", "HPC_DOCS", ("amrex", "hpc")),
    _row("marbles", "MARBLES (LBM)", "HPC_DOCS", ("marbles", "amrex", "hpc")),
    _row("quantum-computing", "Quantum Computing", "QUANTUM",
         ("quantum-computing", "hpc")),
    _row("vasp", "VASP", "VASP", ("vasp", "hpc")),
    _row("reframe", "ReFrame", "REFRAME+HPC", ("reframe", "hpc"),
         "ReFrame notes, then general HPC notes; the first take precedence:"),
)
# fmt: on


class Modes:
    """The modes on offer, in the order they are shown."""

    def __init__(self, rows: Iterable[Mode] = SEED_MODES) -> None:
        self._rows = tuple(rows)

    def __iter__(self) -> Iterator[Mode]:
        return (mode for mode in self._rows if not mode.hidden)

    def pick(self, model: str) -> Mode:
        """
        Return the mode whose id or name is *model*; hidden ones are found too.

        Raises `UnknownModel`, naming those on offer.
        """
        for mode in self._rows:
            if model in (mode.id, mode.name):
                return mode
        offered = ", ".join(mode.id for mode in self)
        raise UnknownModel(
            f"model: no such model; this server has {offered}", param="model"
        )


def with_changes(
    rows: Iterable[Mode],
    changes: Mapping[str, ModeChange],
    everywhere: Sampling = _UNSET,
) -> tuple[Mode, ...]:
    """
    Return *rows* as a site changed them, its new modes last.

    *everywhere* goes over each row's sampling, a mode's own change over that. Raises
    `ConfigError` for a change that fits no mode and does not make a whole new one.
    """
    known = {mode.name: mode for mode in rows}
    for name, change in changes.items():
        if name not in known:
            known[name] = _new_mode(name, change, known)
    modes = tuple(
        _changed(mode, changes.get(mode.name, ModeChange()), everywhere)
        for mode in known.values()
    )
    if all(mode.hidden for mode in modes):
        raise ConfigError("modes: all of them are hidden; leave one to choose")
    return modes


def _new_mode(name: str, change: ModeChange, known: Mapping[str, Mode]) -> Mode:
    if not _NAME.fullmatch(name) or name.startswith("ofa-"):
        raise ConfigError(
            f"{change.where}: modes.{name}: a mode's name is up to 40 of a-z, 0-9 and "
            "-, without the ofa- that its id gets"
        )
    if not change.title:
        hint = nearest(name, known)
        raise ConfigError(
            f"{change.where}: modes.{name}: no such mode{hint or ';'} "
            "a new one needs a title"
        )
    label = name.upper().replace("-", "_")
    return replace(_row(name, change.title, label, (name,)), title=change.title)


def _changed(mode: Mode, change: ModeChange, everywhere: Sampling) -> Mode:
    own = Sampling(
        temperature=change.temperature, top_p=change.top_p, top_k=change.top_k
    )
    texts = {
        name: value
        for name in ("title", "prompt", "collections", "label", "lead_in", "hidden")
        if (value := getattr(change, name)) is not None
    }
    sampling = own.over(everywhere).over(mode.sampling)
    weights = change.model or mode.weights
    return replace(mode, sampling=sampling, weights=weights, **texts)
