"""
A chat with its passages, fitted into the room there is.

Old turns get the very blocks they had, the newest question gets its own. When room is
short the oldest blocks go first, whole ones: a block opens a user's turn, and there the
engine keeps what it has read. Knows nothing of how passages are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from ..chat import Chat, Message
from .memory import Block, Memory, chain
from .question import Question, asked

# Makes the block of a question with the conversation's tag, or an empty one, of at most
# so many tokens; None for nothing to inject.
Make = Callable[[Question, str, int], Block | None]


@dataclass(frozen=True)
class Augmented:
    """A chat with its passages, and how the newest question got its own."""

    chat: Chat
    how: Literal["fresh", "replayed", "none"]
    block: Block | None = None  # of the newest turn, if it has one
    question: Question | None = None  # None: nothing was asked, so nothing looked up
    tokens: int = 0  # of all blocks
    left_out: int = 0  # blocks that earlier requests of this conversation had


class Replay:
    """
    The turns of one chat, and the blocks that go with them.

    *scope* is what must be equal for a block to be said again: mode and key. *make* is
    called for a newest question without a block, and again to make that one smaller.
    """

    def __init__(
        self, memory: Memory, chat: Chat, scope: Sequence[str], make: Make
    ) -> None:
        self._memory = memory
        self._chat = chat
        self._make = make
        self._question = asked(chat)
        turns = tuple(chain(chat.messages, scope))
        self._places = [place for place, _ in turns]
        self._links = [link for _, link in turns]
        self._newest = self._find_newest()
        self._fresh: Block | None = None  # made for this request
        first = memory.left_out(self._links)
        if self._newest is not None:
            # What is asked now gets its chance, whatever came of it last time.
            first = min(first, self._newest)
        self._first = first
        self._blocks = {
            number: block
            for number, link in enumerate(self._links)
            if number >= first and (block := memory.recall(link))
        }

    def fit(self, room_tokens: int) -> Augmented:
        """
        Return the chat with blocks of at most *room_tokens* together.

        What does not fit is left out from here on. May be called again with less room.
        """
        self._look_up(room_tokens)
        self._drop_oldest(room_tokens)
        if self._links:
            self._memory.leave_out(self._links[-1], self._first)
        return self._augmented()

    def _find_newest(self) -> int | None:
        """Return which user message, from the first, holds what is asked now."""
        if self._question is None:
            return None
        return self._places.index(self._question.place)

    def _look_up(self, room_tokens: int) -> None:
        """Give the newest question a block, or a smaller one than it was given."""
        newest, question = self._newest, self._question
        if newest is None or question is None:
            return
        before = self._blocks.get(newest)
        if before and (before is not self._fresh or before.tokens <= room_tokens):
            return
        older = [number for number in self._blocks if number < newest]
        tag = self._blocks[max(older)].tag if older else ""
        made = self._make(question, tag, room_tokens)
        link = self._links[newest]
        if before:
            made = self._memory.swap(link, before, made)
        elif made:
            made = self._memory.remember(link, made)
        self._fresh = made
        if made:
            self._blocks[newest] = made
        else:
            self._blocks.pop(newest, None)

    def _drop_oldest(self, room_tokens: int) -> None:
        """
        Leave out the oldest blocks, if there is not room for all.

        The engine has to read anew whatever follows the first change. So this makes
        room for turns to come as well: it goes down to half of it at once, and the
        next turns only append again. The newest block may fill all of it.
        """
        if sum(block.tokens for block in self._blocks.values()) <= room_tokens:
            return
        numbers = sorted(self._blocks, reverse=True)
        sums = accumulate(self._blocks[number].tokens for number in numbers)
        kept = [
            number
            for number, tokens in zip(numbers, sums, strict=True)
            if tokens <= room_tokens // 2
        ]
        if not kept and self._blocks[numbers[0]].tokens <= room_tokens:
            kept = numbers[:1]
        self._first = min(kept, default=len(self._links))
        self._blocks = {number: self._blocks[number] for number in kept}

    def _augmented(self) -> Augmented:
        messages = list(self._chat.messages)
        newest: Block | None = None
        for number, place in enumerate(self._places):
            block = self._blocks.get(number)
            if block:
                text = block.text + messages[place].text
                messages[place] = replace(messages[place], text=text)
            if block or not _goes_on(self._chat.messages, place):
                newest = block
        how: Literal["fresh", "replayed", "none"] = "none"
        if newest:
            how = "fresh" if newest is self._fresh else "replayed"
        return Augmented(
            replace(self._chat, messages=tuple(messages)),
            how,
            newest,
            self._question,
            sum(block.tokens for block in self._blocks.values()),
            sum(map(self._memory.knows, self._links[: self._first])),
        )


def _goes_on(messages: Sequence[Message], place: int) -> bool:
    """Tell whether the user message at *place* goes on with what stands before it."""
    before = (m.role for m in reversed(messages[:place]) if m.role != "system")
    return next(before, "") == "user"
