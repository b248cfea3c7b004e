"""Calls that are demanded of small models, held to the schemas and not; fences."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import models, servers, toolset, wire
from ..context import Run
from ..figures import Figure, at_least
from ..models import Model
from ..servers import ROOT, Ofa

_AT_ONCE = 8
_UNHELD = 3  # of so many requests one is also made without constraints
_UNHELD_TOKENS = 512  # and what is no call by then will be none


@dataclass(frozen=True)
class _Side:
    """A model, the family it is told of tools in, and how it is asked."""

    name: str
    family: str
    tokens: int = 1500  # sixteen short calls, if it must be
    temperature: float = 0.7
    # Of demanded calls, towards what ends texts, lists and objects: small models hardly
    # end a text that they were made to begin, and random ones nothing.
    bias: float = 6

    def model(self, run: Run) -> Model:
        """Return the model."""
        return models.find(self.name, run.folder / self.name)


_GEMMA = _Side("gemma", "generic")
_STARTER = _Side("starter", "hermes")
_TINY_4 = _Side("tiny4", "gemma4", 4096, temperature=1.0, bias=8)


def of_gemma(run: Run) -> list[Figure]:
    """Demand the first hundred of 500 calls, of a hundred tools, of Gemma 3 270M."""
    return _calls(run, _GEMMA, toolset.demands(500)[:100])


def of_starter(run: Run) -> list[Figure]:
    """Demand the next fifty of the starter, which reads slowly."""
    return _calls(run, _STARTER, toolset.demands(500)[100:150])


def of_tiny_4(run: Run) -> list[Figure]:
    """Demand the rest of a tiny random Gemma 4."""
    return _calls(run, _TINY_4, toolset.demands(500)[150:])


def _calls(run: Run, side: _Side, asked: Sequence[toolset.Demand]) -> list[Figure]:
    """Count the valid calls, with constraints; of a third of *asked* without, too."""
    told = f"{side.name} ({side.family})"
    figures = []
    for held in (True, False):
        demands = asked[: run.pick(500, 8)][:: 1 if held else _UNHELD]
        run.say(f"tools: {told}, {'held to' if held else 'without'} the grammar")
        outcomes = _demanded(run, side, demands, held=held)
        run.say(f"  {toolset.counted(outcomes)}")
        figures.append(
            Figure(
                f"valid calls of {len(demands)}, {told}, "
                + ("held to the schemas" if held else "read, mended and checked"),
                outcomes.count("valid"),
                at_least(len(demands)) if held else None,
                note=f"{toolset.counted(outcomes)}; half of the requests name one of "
                f"{len(toolset.offers())} tools, half require one of three",
                details={"outcomes": outcomes},
            )
        )
    return figures


def _demanded(
    run: Run, side: _Side, demands: Sequence[toolset.Demand], *, held: bool
) -> list[str]:
    model = side.model(run)
    # Where nothing holds a call, the bias would keep it from beginning.
    more = {"logit_bias": model.closing(side.bias)} if held else {}
    tokens = side.tokens if held else _UNHELD_TOKENS
    bodies = [one.body(tokens, more) for one in demands]
    # What a mode says of its field is half of what would be read, and decides nothing.
    root = _copy(run.place("terse"), directive=True)
    flags = ["--model", str(model.folder)]
    place = run.place(f"tools-{side.name}-{held}")
    keys = {"tools.format": side.family, "tools.constrain": held}
    with _server(place, flags, keys, root) as server:
        heard = _ask(run, server, side, bodies)
    return [
        toolset.verdict(demand, one.status, one.body)
        for demand, one in zip(demands, heard, strict=True)
    ]


def fences(run: Run) -> list[Figure]:
    """Leave the choice to the models; count blocks that stand where a call should."""
    bodies = toolset.tempting(run.pick(36, 12))
    figures = []
    for side in (_GEMMA, _STARTER):
        flags = ["--model", str(side.model(run).folder)]
        keys = {"tools.format": side.family}
        for directed in (True, False):
            run.say(f"fences: {side.name}, {'with' if directed else 'no'} directive")
            root = ROOT if directed else _copy(run.place("bare"), directive=False)
            place = run.place(f"fences-{side.name}-{directed}")
            with _server(place, flags, keys, root) as server:
                heard = _ask(run, server, side, bodies)
            outcomes = [toolset.answered_with(one.status, one.body) for one in heard]
            figures.append(
                Figure(
                    f"answers with a fence-style block, {side.name}, "
                    f"{'with' if directed else 'without'} the directive",
                    100 * outcomes.count("fence") / len(outcomes),
                    unit="%",
                    note=f"{toolset.counted(outcomes)}, of {len(bodies)} that "
                    "OpenCode's tools can do; tool_choice auto",
                    details={"outcomes": outcomes},
                )
            )
    return figures


def _copy(folder: Path, *, directive: bool) -> Path:
    """Return a copy of the program whose only instruction, or the only one that says
    nothing, is the *directive* to use tools."""
    root = folder / "copy"
    if not root.exists():
        for name in ("ofa", "prompts", "page", "rag_index"):
            skip: Callable[..., Any] = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, root / name, ignore=skip)
        for path in (root / "prompts").glob("*.txt"):
            if (path.name == "openai_tools.txt") != directive:
                path.write_text("")
    return root


def _server(
    place: Path, flags: Sequence[str], keys: Mapping[str, object], root: Path
) -> AbstractContextManager[Ofa]:
    """Return a server of the checkout *root* that calls tools, as many as are asked."""
    more = {"tools.enabled": True, "server.running": _AT_ONCE}
    return servers.ofa(
        place, flags=[*flags, "--quiet"], keys={**keys, **more}, root=root
    )


def _ask(
    run: Run, server: Ofa, side: _Side, bodies: Sequence[Mapping[str, Any]]
) -> list[wire.Heard]:
    """Ask as many at once as are written together, a batch of them after the other."""
    sent = [server.post({"temperature": side.temperature, **body}) for body in bodies]
    heard: list[wire.Heard] = []
    for at in range(0, len(sent), 10 * _AT_ONCE):
        run.say(f"  {at} of {len(sent)}")
        part = sent[at : at + 10 * _AT_ONCE]
        heard += wire.ask_all(server.port, part, at_once=_AT_ONCE)
    return heard
