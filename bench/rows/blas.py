"""The same weights with each BLAS that can be loaded, each in its own process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..children.lines import Child, child
from ..context import Run, alternating
from ..figures import Figure, at_least, number

PROMPT = 300


@dataclass
class _Library:
    """One process and its readings."""

    child: Child
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What was loaded, with its threads."""
        return str(self.child.told["blas"])

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens a second, read and written."""
        return statistics.median(self.prefill), statistics.median(self.decode)


def blas(run: Run) -> list[Figure]:
    """Measure prefill and decode by turns; the one that ofa chooses comes first."""
    tokens, model = run.pick(24, 6), str(run.model.folder)
    with ExitStack() as stack:
        # The chosen one, none at all, and those of other environments.
        asked = [("", True), ("", False), *((python, True) for python in run.pythons)]
        libraries = [
            _Library(
                stack.enter_context(
                    child(
                        run.place(f"blas{n}"),
                        "raw",
                        {"model": model, "blas": load},
                        python=python,
                    )
                )
            )
            for n, (python, load) in enumerate(asked)
        ]
        for count, one in alternating([0, *run.rounds(3, 1)], *libraries):
            run.say(f"blas: round {count}, {one.name}")
            told = one.child.ask("speed", prompt=PROMPT, tokens=tokens)
            if count:
                one.prefill.append(told["prefill_per_s"])
                one.decode.append(told["decode_per_s"])
    return _figures(libraries)


def _figures(libraries: Sequence[_Library]) -> list[Figure]:
    chosen, *others = libraries
    figures = []
    for other in others:
        for n, what in enumerate(("prefill", "decode")):
            figures.append(
                Figure(
                    f"{what}, the chosen BLAS ÷ {other.name}",
                    chosen.rates[n] / other.rates[n],
                    at_least(1.0),
                    note=f"{chosen.name}: {number(chosen.rates[n])} against "
                    f"{number(other.rates[n])} tokens/s, prompts of {PROMPT} tokens, "
                    "mlx-lm's own loop, each in a process of its own, by turns",
                    details={"chosen": chosen.rates[n], "other": other.rates[n]},
                )
            )
    return figures
