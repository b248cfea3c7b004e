"""
The eight-turn retrieval chat, and what different checkpoint policies prefill of it.

Each question comes with 320 tokens of fresh documents. A client sends its own messages
back, so the documents stand in the newest turn only, unless the server puts them back
where they were. Policies are played over token lists: a prompt is prefilled from the
end of the longest kept checkpoint that it begins with, and leaves at least one token.
Knows Gemma 3's turns and its tokenizer; nothing of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .texts import sized

TURNS = 8
SYSTEM, DOCUMENTS, QUESTION, ANSWER = 150, 320, 35, 100  # tokens
_END_OF_TURN = "<end_of_turn>"

Messages = list[dict[str, str]]
Ids = tuple[int, ...]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Script:
    """The texts of the chat; answers are stand-ins where no engine writes any."""

    system: str
    documents: Sequence[str]
    questions: Sequence[str]
    answers: Sequence[str]

    def messages(self, turn: int, answers: Sequence[str], *, kept: bool) -> Messages:
        """Return the request of *turn*; documents of earlier turns only if *kept*."""
        sent = [{"role": "system", "content": self.system}]
        for n in range(turn + 1):
            asked = self.questions[n]
            if kept or n == turn:
                asked = f"{self.documents[n]}\n\n{asked}"
            sent.append({"role": "user", "content": asked})
            if n < turn:
                sent.append({"role": "assistant", "content": answers[n]})
        return sent


def tokenizer(folder: Path) -> Encode:
    """Return the encoder of the model in *folder*."""
    from tokenizers import Tokenizer

    inner: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: list(inner.encode(text, add_special_tokens=False).ids)


def script(encode: Encode) -> Script:
    """Return the chat, each text of its exact length."""

    def count(text: str) -> int:
        return len(encode(text))

    return Script(
        sized(SYSTEM, 1, count),
        [sized(DOCUMENTS, 100 + n, count) for n in range(TURNS)],
        [sized(QUESTION, 200 + n, count) for n in range(TURNS)],
        [sized(ANSWER, 300 + n, count) for n in range(TURNS)],
    )


def render(messages: Messages, *, generate: bool = True) -> str:
    """Return a chat as Gemma 3 reads it: system text in the first user turn."""
    head, turns = "", messages
    if messages and messages[0]["role"] == "system":
        head, turns = messages[0]["content"].strip() + "\n\n", messages[1:]
    text = "<bos>"
    for n, turn in enumerate(turns):
        role = "model" if turn["role"] == "assistant" else "user"
        said = (head if n == 0 else "") + turn["content"].strip()
        text += f"<start_of_turn>{role}\n{said}{_END_OF_TURN}\n"
    return text + "<start_of_turn>model\n" * generate


@dataclass(frozen=True)
class Turn:
    """One request as tokens, and where a server may keep a checkpoint of it."""

    prompt: Ids
    system_end: int
    history_end: int  # before the text of the last user turn
    answered: Ids  # prompt and answer


def turns(
    chat: Script, encode: Encode, answers: Sequence[str], *, kept: bool
) -> list[Turn]:
    """Return the requests as tokens, when the model wrote *answers*."""
    found = []
    for n in range(TURNS):
        messages = chat.messages(n, answers, kept=kept)
        prompt = tuple(encode(render(messages)))
        answered = prompt + tuple(encode(answers[n] + _END_OF_TURN))
        # As servers find it: what does not change when the last user turn does.
        other = [*messages[:-1], {"role": "user", "content": "?"}]
        first = [messages[0], {"role": "user", "content": "?"}]
        found.append(
            Turn(
                prompt,
                _common(prompt, encode(render(first, generate=False))),
                _common(prompt, encode(render(other, generate=False))),
                answered,
            )
        )
    return found


Policy = Callable[[Turn], Iterable[Ids]]


def server_policy(turn: Turn) -> Iterable[Ids]:
    """Keep what `mlx_lm.server` keeps: system text, prompt, prompt with answer."""
    return turn.prompt[: turn.system_end], turn.prompt[:-1], turn.answered


def history_policy(turn: Turn) -> Iterable[Ids]:
    """Keep the end of the history as well."""
    return *server_policy(turn), turn.prompt[: turn.history_end]


def prefilled(played: Sequence[Turn], policy: Policy) -> list[int]:
    """Return how many tokens each turn prefills under *policy*, nothing kept before."""
    store: set[Ids] = set()
    counts = []
    for turn in played:
        fits = (
            len(kept)
            for kept in store
            if len(kept) < len(turn.prompt) and turn.prompt[: len(kept)] == kept
        )
        counts.append(len(turn.prompt) - max(fits, default=0))
        store.update(policy(turn))
    return counts


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(other))
