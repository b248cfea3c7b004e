"""Tokens prefilled in the eight-turn retrieval chat: ours counted, policies played."""

from __future__ import annotations

from collections.abc import Sequence

from .. import conversation, models
from ..children.lines import Child, child
from ..context import Run
from ..conversation import ANSWER, TURNS, Encode, Script
from ..figures import Figure, at_most
from ..servers import CannotMeasure


def chat8(run: Run) -> list[Figure]:
    """Count what the engine prefills, with both ways to treat old passages."""
    model = run.model
    if run.model_name not in ("gemma", "tiny"):
        model = models.find("gemma", run.folder)  # the figures are of Gemma's tokens
    encode = conversation.tokenizer(model.folder)
    chat = conversation.script(encode)
    figures = []
    for kept, bound in ((False, 4100), (True, 3200)):
        with child(
            run.place("chat8"), "inproc", {"model": str(model.folder)}
        ) as engine:
            counts, answers = _play(run, engine, chat, kept=kept)
        figures.append(
            Figure(
                "tokens prefilled in the 8-turn retrieval chat, "
                + ("passages kept" if kept else "passages in the last turn only"),
                sum(counts),
                at_most(bound),
                unit="tokens",
                note=f"{model.name}, {ANSWER} tokens an answer at most, greedy; by "
                f"turn {counts}; {_played(chat, encode, answers, kept=kept)}",
                details={"by_turn": counts},
            )
        )
    return [*figures, *_reference(chat, encode)]


def _play(
    run: Run, engine: Child, chat: Script, *, kept: bool
) -> tuple[list[int], list[str]]:
    """Hold the chat with the engine; return what it prefilled, and its answers."""
    counts: list[int] = []
    answers: list[str] = []
    for turn in range(TURNS):
        run.say(f"chat8: {'kept' if kept else 'last turn only'}, turn {turn + 1}")
        told = engine.ask(
            "ask", messages=chat.messages(turn, answers, kept=kept), tokens=ANSWER
        )
        if not told["prompt_tokens"]:
            raise CannotMeasure("the engine told no counts")
        counts.append(told["prompt_tokens"] - told["cached_tokens"])
        answers.append(told["text"])
    return counts, answers


def _played(chat: Script, encode: Encode, answers: Sequence[str], *, kept: bool) -> str:
    """Return what the policies prefill of the very same chat."""
    turns = conversation.turns(chat, encode, answers, kept=kept)
    server = sum(conversation.prefilled(turns, conversation.server_policy))
    history = sum(conversation.prefilled(turns, conversation.history_policy))
    return (
        f"of the same chat mlx_lm.server's checkpoints would prefill {server}, with "
        f"one at the end of the history {history}"
    )


def _reference(chat: Script, encode: Encode) -> list[Figure]:
    """Play the policies with the stand-in answers, each of its exact length."""
    last = conversation.turns(chat, encode, chat.answers, kept=False)
    kept = conversation.turns(chat, encode, chat.answers, kept=True)
    rows = (
        ("mlx_lm.server's checkpoints", last, conversation.server_policy),
        ("and one at the end of the history", last, conversation.history_policy),
        ("the same, passages kept", kept, conversation.history_policy),
    )
    return [
        Figure(
            f"reference, played: {name}",
            sum(counts := conversation.prefilled(turns, policy)),
            unit="tokens",
            note=f"by turn {counts}",
        )
        for name, turns, policy in rows
    ]
