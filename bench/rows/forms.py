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
_TOKENS = 100  # the longest gold call takes fewer
# The one packaged chat model that calls: Gemma 3 270M and SmolLM2 135M never do.
_MODEL = "starter"


def forms(run: Run) -> list[Figure]:
    """Ask BFCL's questions in each form; count right calls, and calls of no use."""
    calling = questions(run.pick(16, 4))
    irrelevant = questions(4, irrelevant=True)
    values = {"model": str(models.find(_MODEL, run.folder / _MODEL).folder)}
    figures = []
    with child(
        run.place("forms"), "raw", {**values, "blas": True}, huge_pages=True
    ) as raw:
        for form in FORMS:
            run.say(f"forms: {form.name}")
            outcomes = _outcomes(raw, form, [*calling, *irrelevant])
            at = len(calling)
            figures.append(_figure(run, form, outcomes[:at], outcomes[at:]))
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
    form: Form,
    calling: Sequence[tuple[str, int]],
    irrelevant: Sequence[tuple[str, int]],
) -> Figure:
    outcomes = [what for what, _ in calling]
    idle = [what for what, _ in irrelevant]
    tokens = statistics.median(tokens for _, tokens in calling)
    run.say(f"  {toolset.counted(outcomes)}; where none helps: {toolset.counted(idle)}")
    return Figure(
        f"right calls, {_MODEL}, told in the generic form: {form.name}",
        100 * outcomes.count("right") / len(outcomes),
        unit="%",
        note=f"of {len(outcomes)} of BFCL's questions over several functions: "
        f"{toolset.counted(outcomes)}; of {len(idle)} where none helps: "
        f"{toolset.counted(idle)}; {tokens:.0f} tokens a prompt, median; greedy, held "
        "to no grammar",
        details={"outcomes": outcomes, "irrelevant": idle},
    )
