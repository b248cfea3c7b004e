"""
From a chat to the same chat with its passages: find, choose, fence, remember.

The one part of retrieval that the Answerer knows. A look-up never fails a chat.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote

from ..chat import Chat
from ..modes import Mode
from .cite import footer
from .fence import block, closing, fits, new_tag
from .memory import Block, Memory
from .passage import Passage
from .question import Question
from .replay import Augmented, Replay
from .retrieve import Found, Retriever
from .shown import select

# Sources are listed until the header has this many characters: proxies and clients
# take 4 to 8 KiB of headers in all.
HEADER_CHARS = 1500

# Of the passages' budget; the user's own documents must not crowd out the mode's.
PRIVATE_SHARE = 0.4

# How many sets of passages are tried, each half of the one before. The first is
# measured before the prompt is put together, so it fits but for a few tokens; the
# second is for those, and the third for a chat that is counted quite wrongly.
_SETS = 3

# OpenAI's own servers take no more, and an upstream may be as strict.
_MOST_STOPS = 4


Pair = tuple[Found, Found]  # in the shared and in the user's own collections


@dataclass(frozen=True)
class Budget:
    """How much may be injected for one question."""

    max_tokens: int = 2400
    max_passages: int = 6


class Looked(NamedTuple):
    """A chat with its passages, what ``x-ofa-rag`` tells of them, and their footer."""

    chat: Chat
    told: str
    footer: str = ""  # for the end of the answer, where a site wants one


@dataclass(frozen=True)
class Made:
    """What is injected for a question, or why nothing is."""

    passages: tuple[Passage, ...]
    block: Block | None
    reason: str


@dataclass(frozen=True)
class Preview:
    """What a question would bring along: what was found of either kind, what was made
    of it, and how much might have been."""

    shared: Found
    private: Found
    made: Made
    budget: Budget


class Lookup:
    """
    Adds passages to chats, each question's once, and the same bytes ever after.

    *count_tokens* is the engine's; *budget* is asked for each question, since what an
    engine can read in good time is known only once its model is loaded.
    """

    def __init__(
        self,
        retriever: Retriever,
        memory: Memory,
        *,
        count_tokens: Callable[[str], int],
        budget: Callable[[Mode], Budget],
    ) -> None:
        self._retriever = retriever
        self._memory = memory
        self._count = count_tokens
        self._budget = budget

    def augment(
        self, chat: Chat, mode: Mode, key_id: str, room_tokens: int
    ) -> Iterator[Looked]:
        """
        Yield *chat* with its passages, and what to say of them.

        The first has at most *room_tokens* of them, old and new together. Who finds it
        too long all the same gets it with half of them, then fewer, then as it was.
        """
        reasons: list[str] = []
        found: list[Pair] = []  # once it was looked for

        def make(question: Question, tag: str, room: int) -> Block | None:
            if not found:
                found.append(self._find(mode, question))
            budget = self._budget(mode)
            made = self._make(mode, found[0], budget, tag=tag, room_tokens=room)
            reasons.append(made.reason)
            return made.block

        replay = Replay(self._memory, chat, (mode.id, key_id), make)
        for _ in range(_SETS):
            done = replay.fit(room_tokens)
            told = _told(done, reasons)
            footer = done.block.footer if done.block else ""
            yield Looked(_ending_at_fence(done), told, footer)
            if not done.tokens:
                return
            room_tokens = done.tokens // 2
        replay.fit(0)  # so that the next turn begins like this one
        yield Looked(chat, "none; the context is full")

    def preview(self, mode: Mode, question: Question) -> Preview:
        """Return what *question* would bring into a chat that has room for it."""
        found, budget = self._find(mode, question), self._budget(mode)
        made = self._make(mode, found, budget, tag="", room_tokens=sys.maxsize)
        return Preview(*found, made, budget)

    def _find(self, mode: Mode, question: Question) -> Pair:
        """Return what there is in the shared and in the user's own collections."""
        words = (question.text, question.previous)
        shared = self._retriever.find(mode.collections, *words)
        return shared, self._retriever.find_private(*words)

    def _make(
        self, mode: Mode, found: Pair, budget: Budget, *, tag: str, room_tokens: int
    ) -> Made:
        shared, private = found
        allowed = min(budget.max_tokens, room_tokens)
        while passages := self._select(shared, private, budget, allowed):
            made = self._fenced(mode, passages, tag)
            over = made.tokens - room_tokens
            if over <= 0:
                reason = shared.reason if shared.hits else private.reason
                return Made(passages, made, reason)
            # The fence takes some, too; fewer passages, at least one less, make up.
            allowed = sum(self._count(passage.text) for passage in passages) - over
        found_some = shared.hits or private.hits
        return Made((), None, "none: no room" if found_some else shared.reason)

    def _fenced(self, mode: Mode, passages: Sequence[Passage], tag: str) -> Block:
        tag = tag if fits(tag, passages) else new_tag(p.text for p in passages)
        text = block(passages, mode.label, mode.lead_in, tag=tag)
        sources = tuple(dict.fromkeys(f"{p.collection}/{p.path}" for p in passages))
        tokens = self._count(text)
        return Block(text, tag, sources, tokens, len(passages), footer(passages))

    def _select(
        self, shared: Found, private: Found, budget: Budget, tokens: int
    ) -> tuple[Passage, ...]:
        own: tuple[Passage, ...] = ()
        if private.hits:
            share = PRIVATE_SHARE if shared.hits else 1.0
            own = select(
                private.hits,
                count_tokens=self._count,
                max_tokens=int(tokens * share),
                max_passages=max(1, int(budget.max_passages * share)),
            )
        spent = sum(self._count(passage.text) for passage in own)
        rest = select(
            shared.hits,
            count_tokens=self._count,
            max_tokens=tokens - spent,
            max_passages=budget.max_passages - len(own),
        )
        return (*rest, *own)


def _ending_at_fence(augmented: Augmented) -> Chat:
    """Return the chat, its answer ending where the model writes our fence's end.

    Weak models copy all that they were shown, the fence and what we say of it too.
    """
    chat, found = augmented.chat, augmented.block
    if found is None or len(chat.sampling.stop) >= _MOST_STOPS:
        return chat
    stop = (*chat.sampling.stop, closing(found.tag))
    return replace(chat, sampling=replace(chat.sampling, stop=stop))


def _told(augmented: Augmented, reasons: Sequence[str]) -> str:
    found = augmented.block
    left_out = f"dropped={augmented.left_out}" if augmented.left_out else ""
    if found is None:
        return "; ".join(filter(None, (_why_none(augmented, reasons), left_out)))
    parts = ["hit", f"n={found.passages}", f"tokens={found.tokens}"]
    if augmented.how == "replayed":
        parts.append("replayed")
    if left_out:
        parts.append(left_out)
    if augmented.how == "fresh" and reasons and ":" in reasons[-1]:
        parts.append(reasons[-1].partition(": ")[2])
    told = "; ".join(parts)
    sources = ""
    for source in found.sources:
        # A path may hold anything, halves of characters too; a header only printable
        # ASCII without separators.
        name = quote(source, safe="/._-+~ ", errors="replace")
        more = f"{',' if sources else ''}{name}"
        if len(told) + len(sources) + len(more) > HEADER_CHARS:
            break
        sources += more
    return f"{told}; sources={sources}"


def _why_none(augmented: Augmented, reasons: Sequence[str]) -> str:
    if reasons:
        return reasons[-1].replace(":", ";", 1)
    if augmented.question is None:
        return "skipped; no question of the user's"
    return "none; no room"  # it had passages once
