"""
The domain modes: one row each. Everything that differs between modes is here.

A new mode is one row (or one ``[modes.NAME]`` table in site.toml) and one file in
``prompts/``; no other line of the program changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .chat import Sampling
from .errors import UnknownModel

# Fixed, so that a client which caches /v1/models sees the same bytes on each start.
CREATED = 1767225600  # 2026-01-01T00:00:00Z


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
    lead_in: str = "Reference material that may help with the request:"
    sampling: Sampling = Sampling()
    hidden: bool = False


# Low temperatures: these modes answer from documents, and a small model that is
# told to quote them drifts at Gemma's own default of 1.0.
_FACTUAL = Sampling(temperature=0.2, top_p=0.95, top_k=64)


def _row(
    name: str, title: str, label: str, collections: tuple[str, ...], lead_in: str = ""
) -> Mode:
    more = {"lead_in": lead_in} if lead_in else {}
    return Mode(
        id=f"ofa-{name}",
        name=name,
        title=f"OFA · {title}",
        prompt=f"{name}.txt",
        collections=collections,
        label=label,
        sampling=_FACTUAL,
        **more,
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
