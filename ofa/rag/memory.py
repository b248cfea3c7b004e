"""
What was injected for which turn, so that it can be said again byte for byte.

A client sends its own messages back, without what we put in front of them. Were old
turns left bare, or looked up anew, the prompt would differ from the one that the engine
has already read, and every turn would pay for the whole conversation again (R044).
Held in memory only: nothing of a conversation reaches a disk.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

from ..chat import Chat, Message
from .question import Question, asked

# What an entry takes beside its text: key, objects, and its place in the order.
_OVERHEAD_BYTES = 600


@dataclass(frozen=True)
class Block:
    """What stands before a user's text, and where it came from."""

    text: str
    tag: str
    sources: tuple[str, ...] = ()
    tokens: int = 0
    passages: int = 0

    @property
    def size_bytes(self) -> int:
        """About what it costs to remember."""
        strings = (self.text, self.tag, *self.sources)
        return _OVERHEAD_BYTES + sum(4 * len(string) for string in strings)


@dataclass(frozen=True)
class Augmented:
    """A chat with its passages, and how the newest question got its own."""

    chat: Chat
    how: Literal["fresh", "replayed", "none"]
    block: Block | None = None  # of the newest turn, if it has one
    question: Question | None = None  # None: nothing was asked, so nothing looked up


class Memory:
    """
    The blocks of recent conversations, at most *limit_bytes* of them, for all threads.

    The least recently used go first. A turn whose block is gone is sent bare: the
    answer loses a little, the engine's cache of that conversation from there on.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._bytes = 0

    def augment(
        self,
        chat: Chat,
        scope: Sequence[str],
        make: Callable[[Question, str], Block | None],
    ) -> Augmented:
        """
        Return *chat* with each user turn's block in front of the turn's own text.

        *scope* is what must be equal for a block to be said again: mode and key.
        *make* is called at most once, for a newest question without a block: with it
        and the conversation's tag, or an empty one. None from it injects nothing.
        """
        question = asked(chat)
        messages = list(chat.messages)
        fresh = False
        block: Block | None = None
        tag = ""
        for place, link in chain(chat.messages, scope):
            found = self.recall(link)
            if not found and question and place == question.place:
                made = make(question, tag)
                found = self.remember(link, made) if made else None
                fresh = found is not None
            if found:
                tag = found.tag
                text = found.text + messages[place].text
                messages[place] = replace(messages[place], text=text)
            if found or not _same_turn(chat.messages, place):
                block = found
        how: Literal["fresh", "replayed", "none"] = "replayed" if block else "none"
        return Augmented(
            replace(chat, messages=tuple(messages)),
            "fresh" if fresh else how,
            block,
            question,
        )

    def recall(self, link: bytes) -> Block | None:
        """Return what was injected at *link*, now the most recently used."""
        with self._lock:
            found = self._blocks.get(link)
            if found:
                self._blocks.move_to_end(link)
            return found

    def remember(self, link: bytes, block: Block) -> Block:
        """
        Keep *block* for *link* and return what to inject.

        That is the block of whoever came first: of two identical requests at a time,
        both must send the same bytes.
        """
        with self._lock:
            before = self._blocks.get(link)
            if before:
                return before
            self._blocks[link] = block
            self._bytes += block.size_bytes
            while self._bytes > self._limit_bytes and self._blocks:
                _, gone = self._blocks.popitem(last=False)
                self._bytes -= gone.size_bytes
            return block

    @property
    def held(self) -> tuple[int, int]:
        """How many blocks are remembered, and about how many bytes they take."""
        with self._lock:
            return len(self._blocks), self._bytes


def chain(
    messages: Sequence[Message], scope: Sequence[str]
) -> Iterator[tuple[int, bytes]]:
    """
    Yield each user message's place with a hash of *scope* and all up to it.

    System messages don't count (ours replaces them, and it may name the time); nor do
    reasoning and the ids of calls, which clients rewrite or leave out later.
    """
    link = blake2b(json.dumps(["ofa", *scope]).encode(), digest_size=32).digest()
    for place, message in enumerate(messages):
        if message.role == "system":
            continue
        link = blake2b(link + _said(message), digest_size=32).digest()
        if message.role == "user":
            yield place, link


def _same_turn(messages: Sequence[Message], place: int) -> bool:
    """Tell whether the user message at *place* goes on with what stands before it."""
    before = (m.role for m in reversed(messages[:place]) if m.role != "system")
    return next(before, "") == "user"


def _said(message: Message) -> bytes:
    calls = [[call.name, call.arguments] for call in message.calls]
    images = [image.url for image in message.images]
    # ASCII, so that half a surrogate pair from a client is no error here.
    said = json.dumps(
        [message.role, message.text, calls, images], sort_keys=True, default=str
    )
    return said.encode("ascii")
