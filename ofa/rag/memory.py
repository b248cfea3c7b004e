"""
What was injected for which turn, so that it can be said again byte for byte.

A client sends its own messages back, without what we put in front of them. Were old
turns left bare, or looked up anew, the prompt would differ from the one that the engine
has already read, and every turn would pay for the whole conversation again (R044).
Held in memory only, unless a site has kept prompts outlive the server: these begin with
the same bytes. What of it fits into a prompt is the matter of `ofa.rag.replay`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

from ..chat import Message
from .journal import Journal

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
    footer: str = ""  # for an answer that names what it was given

    @property
    def size_bytes(self) -> int:
        """About what it costs to remember."""
        strings = (self.text, self.tag, self.footer, *self.sources)
        return sum(4 * len(string) for string in strings)


@dataclass(frozen=True)
class _Turn:
    """What is known of a conversation up to one of its user messages."""

    block: Block | None = None  # of that message
    left_out: int = 0  # from here on: how many of the first user messages go bare

    @property
    def size_bytes(self) -> int:
        return _OVERHEAD_BYTES + (self.block.size_bytes if self.block else 0)


_UNKNOWN = _Turn()


class Memory:
    """
    The blocks of recent conversations, at most *limit_bytes* of them, for all threads.

    The least recently used go first. A turn whose block is gone is sent bare: the
    answer loses a little, the engine's cache of that conversation from there on. With
    a *file* they outlive the process.
    """

    def __init__(self, limit_bytes: int, file: Path | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._turns: OrderedDict[bytes, _Turn] = OrderedDict()
        self._bytes = 0
        self._journal: Journal | None = None
        if file is not None:
            journal = Journal(file, limit_bytes, self._everything)
            for line in journal.read():
                self._restore(line)
            journal.start()
            self._journal = journal

    def recall(self, link: bytes) -> Block | None:
        """Return what was injected at *link*, now the most recently used."""
        with self._lock:
            found = self._turns.get(link, _UNKNOWN).block
            if found and link != next(reversed(self._turns)):
                self._turns.move_to_end(link)
                if self._journal is not None:
                    self._journal.add(_used(link))
            return found

    def knows(self, link: bytes) -> bool:
        """Return whether there is a block at *link*, which does not count as use."""
        with self._lock:
            return self._turns.get(link, _UNKNOWN).block is not None

    def remember(self, link: bytes, block: Block) -> Block:
        """
        Keep *block* for *link* and return what to inject.

        That is the block of whoever came first: of two identical requests at a time,
        both must send the same bytes.
        """
        with self._lock:
            before = self._turns.get(link, _UNKNOWN)
            if before.block:
                return before.block
            self._put(link, replace(before, block=block))
            return block

    def swap(self, link: bytes, before: Block, after: Block | None) -> Block | None:
        """
        Keep *after* in the place of *before*, and return what to inject.

        That is another's block where another was quicker, as with `remember`.
        """
        with self._lock:
            found = self._turns.get(link, _UNKNOWN)
            if found.block and found.block != before:
                return found.block
            self._put(link, replace(found, block=after))
            return after

    def left_out(self, links: Iterable[bytes]) -> int:
        """Return how many user messages of a conversation go bare, from its first."""
        with self._lock:
            turns = [self._turns.get(link, _UNKNOWN) for link in links]
        return max((turn.left_out for turn in turns), default=0)

    def leave_out(self, link: bytes, count: int) -> None:
        """
        From *link* on, let the first *count* user messages go bare.

        What only shares an older beginning with that conversation loses nothing.
        """
        with self._lock:
            before = self._turns.get(link, _UNKNOWN)
            if before.left_out != count:
                self._put(link, replace(before, left_out=count))

    def close(self) -> None:
        """Write what is to outlive the process."""
        if self._journal is not None:
            self._journal.close()

    @property
    def held(self) -> tuple[int, int]:
        """How many turns are remembered, and about how many bytes they take."""
        with self._lock:
            return len(self._turns), self._bytes

    def _put(self, link: bytes, turn: _Turn) -> None:
        """Keep *turn*, or nothing if it says nothing; the lock is held."""
        before = self._turns.pop(link, None)
        if before:
            self._bytes -= before.size_bytes
        if self._journal is not None and turn != before:
            self._journal.add(_written(link, turn))
        if turn == _UNKNOWN:
            return
        self._turns[link] = turn
        self._bytes += turn.size_bytes
        while self._bytes > self._limit_bytes:
            _, gone = self._turns.popitem(last=False)
            self._bytes -= gone.size_bytes

    def _everything(self) -> list[bytes]:
        with self._lock:
            turns = list(self._turns.items())
        return [_written(link, turn) for link, turn in turns]

    def _restore(self, line: bytes) -> None:
        """Know again what *line* says; nothing, if another version wrote it."""
        try:
            told = json.loads(line)
            if isinstance(told, str):
                self._turns.move_to_end(bytes.fromhex(told))
                return
            block = told["block"] and Block(**told["block"])
            if block:
                block = replace(block, sources=tuple(block.sources))
            link, turn = bytes.fromhex(told["link"]), _Turn(block, told["left_out"])
        except (ValueError, TypeError, KeyError):
            return
        with self._lock:
            self._put(link, turn)


def _written(link: bytes, turn: _Turn) -> bytes:
    """Return what brings *turn* back; halves of characters stay what they were."""
    block = asdict(turn.block) if turn.block else None
    told = {"link": link.hex(), "left_out": turn.left_out, "block": block}
    # Not as ASCII: "\U0001f600" has 12 bytes there, and a turn is counted as if each
    # character had four. What fits into the memory has to fit into the file.
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _used(link: bytes) -> bytes:
    """Return what says that the turn of *link* was of use again."""
    return json.dumps(link.hex()).encode()


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


def _said(message: Message) -> bytes:
    calls = [[call.name, call.arguments] for call in message.calls]
    images = [image.url for image in message.images]
    # ASCII, so that half a surrogate pair from a client is no error here.
    said = json.dumps(
        [message.role, message.text, calls, images], sort_keys=True, default=str
    )
    return said.encode("ascii")
