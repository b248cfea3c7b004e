"""What a model without a tool format makes of tools, by the form it is told of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import models, toolset
from ..children.lines import Child, child
from ..context import Run
from ..figures import Figure
from ..forms import FORMS, Form, outcome, questions, system_text
from ..servers import user

if TYPE_CHECKING:
    from tests.toolcalls.bfcl import Question

_AT_ONCE = 8
_TOKENS = 128  # the longest gold call takes fewer
# Chat models of two families, and of how many questions each reads in five minutes; the
# packaged Gemma is none, and calls nothing.
_MODELS = (("starter", 16), ("small", 32))


def forms(run: Run) -> list[Figure]:
    """Ask BFCL's questions in each form; count right calls, and calls of no use."""
    figures = []
    for name, full in _MODELS:
        calling = questions(run.pick(full, 8))
        irrelevant = questions(8, irrelevant=True)
        values = {"model": str(models.find(name, run.folder / name).folder)}
        place = run.place(f"forms-{name}")
        with child(place, "raw", {**values, "blas": True}, huge_pages=True) as raw:
            for form in FORMS:
                run.say(f"forms: {name}, {form.name}")
                right = _outcomes(raw, form, calling)
                others = _outcomes(raw, form, irrelevant)
                figures.append(_figure(run, name, form, right, others))
    return figures


def _outcomes(
    raw: Child, form: Form, asked: Sequence[Question]
) -> list[tuple[str, int]]:
    """Return for each question what came of it, and the tokens of its prompt."""
    chats = [
        [{"role": "system", "content": system_text(form, one.tools)}, user(one.text)]
        for one in asked
    ]
    made: list[tuple[str, int]] = []
    for at in range(0, len(chats), _AT_ONCE):
        told = raw.ask("texts", chats=chats[at : at + _AT_ONCE], tokens=_TOKENS)
        part = asked[at : at + _AT_ONCE]
        made += [
            (outcome(form, question, text), tokens)
            for question, text, tokens in zip(
                part, told["texts"], told["prompt_tokens"], strict=True
            )
        ]
    return made


def _figure(
    run: Run,
    name: str,
    form: Form,
    calling: Sequence[tuple[str, int]],
    irrelevant: Sequence[tuple[str, int]],
) -> Figure:
    outcomes = [what for what, _ in calling]
    idle = [what for what, _ in irrelevant]
    tokens = statistics.median(tokens for _, tokens in calling)
    run.say(f"  {toolset.counted(outcomes)}; where none helps: {toolset.counted(idle)}")
    return Figure(
        f"right calls, {name} told in the generic form: {form.name}",
        100 * outcomes.count("right") / len(outcomes),
        unit="%",
        note=f"of {len(outcomes)} of BFCL's questions over several functions: "
        f"{toolset.counted(outcomes)}; of {len(idle)} where none helps: "
        f"{toolset.counted(idle)}; {tokens:.0f} tokens a prompt, median; greedy, held "
        "to no grammar",
        details={"outcomes": outcomes, "irrelevant": idle},
    )
