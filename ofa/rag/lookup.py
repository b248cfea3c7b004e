"""
From a chat to the same chat with its passages: find, choose, fence, remember.

The one part of retrieval that the Answerer knows. A look-up never fails a chat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from ..chat import Chat
from ..modes import Mode
from .fence import block, fits, new_tag
from .memory import Augmented, Block, Memory
from .passage import Passage
from .question import Question
from .retrieve import Found, Retriever, select

# Sources are listed until the header has this many characters: proxies and clients
# take 4 to 8 KiB of headers in all.
HEADER_CHARS = 1500

# Of the passages' budget; the user's own documents must not crowd out the mode's.
PRIVATE_SHARE = 0.4


@dataclass(frozen=True)
class Budget:
    """How much may be injected for one question."""

    max_tokens: int = 2400
    max_passages: int = 6


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
        budget: Callable[[], Budget],
    ) -> None:
        self._retriever = retriever
        self._memory = memory
        self._count = count_tokens
        self._budget = budget

    def augment(
        self, chat: Chat, mode: Mode, key_id: str, room_tokens: int
    ) -> tuple[Chat, str]:
        """
        Return *chat* with its passages, and what to say of them in ``x-ofa-rag``.

        *room_tokens* is what new passages may take at the most.
        """
        reasons: list[str] = []

        def make(question: Question, tag: str) -> Block | None:
            made, reason = self._look_up(mode, question, tag, room_tokens)
            reasons.append(reason)
            return made

        augmented = self._memory.augment(chat, (mode.id, key_id), make)
        return augmented.chat, _told(augmented, reasons)

    def _look_up(
        self, mode: Mode, question: Question, tag: str, room_tokens: int
    ) -> tuple[Block | None, str]:
        asked = (question.text, question.previous)
        shared = self._retriever.find(mode.collections, *asked)
        private = self._retriever.find_private(*asked)
        budget = self._budget()
        passages = self._select(shared, private, budget, room_tokens)
        if not passages:
            found_some = shared.hits or private.hits
            return None, "none: no room" if found_some else shared.reason
        tag = tag if fits(tag, passages) else new_tag(p.text for p in passages)
        text = block(passages, mode.label, mode.lead_in, tag=tag)
        sources = tuple(dict.fromkeys(f"{p.collection}/{p.path}" for p in passages))
        tokens = self._count(text)
        reason = shared.reason if shared.hits else private.reason
        return Block(text, tag, sources, tokens, len(passages)), reason

    def _select(
        self, shared: Found, private: Found, budget: Budget, room_tokens: int
    ) -> tuple[Passage, ...]:
        tokens = min(budget.max_tokens, room_tokens)
        own: tuple[Passage, ...] = ()
        if private.hits:
            share = PRIVATE_SHARE if shared.hits else 1.0
            own = select(
                private,
                count_tokens=self._count,
                max_tokens=int(tokens * share),
                max_passages=max(1, int(budget.max_passages * share)),
            )
        spent = sum(self._count(passage.text) for passage in own)
        rest = select(
            shared,
            count_tokens=self._count,
            max_tokens=tokens - spent,
            max_passages=budget.max_passages - len(own),
        )
        return (*rest, *own)


def _told(augmented: Augmented, reasons: list[str]) -> str:
    found = augmented.block
    if found is None:
        if reasons:
            return reasons[0].replace(":", ";", 1)
        return "skipped; no question of the user's"
    parts = ["hit", f"n={found.passages}", f"tokens={found.tokens}"]
    if augmented.how == "replayed":
        parts.append("replayed")
    elif reasons and ":" in reasons[0]:
        parts.append(reasons[0].partition(": ")[2])
    told = "; ".join(parts)
    sources = ""
    for source in found.sources:
        # A path may hold anything; a header only printable ASCII without separators.
        more = f"{',' if sources else ''}{quote(source, safe='/._-+~ ')}"
        if len(told) + len(sources) + len(more) > HEADER_CHARS:
            break
        sources += more
    return f"{told}; sources={sources}"
