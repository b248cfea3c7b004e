"""One request inside the engine: what its reader and the engine's thread share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

from ...chat import Sampling
from ...errors import Cancelled, OfaError
from ..base import SILENCE_S
from .prefix import Kind
from .template import Prompt

if TYPE_CHECKING:
    from .sampling import Step

Finish = Literal["", "stop", "length"]

# Beginnings that differ by less are not worth a copy each.
LEAST_BETWEEN = 32


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that was drawn for a row; *finish* is set with the row's last."""

    index: int
    token: int
    finish: Finish
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # likeliest (token, logprob), best first


@dataclass(frozen=True, slots=True)
class Gone:
    """Said behind a row's last token once what it leaves behind is in the store."""

    index: int


class Mailbox:
    """Where the tokens of a request's rows arrive; anyone may cancel it."""

    def __init__(self) -> None:
        self.cancelled = False
        self._items: SimpleQueue[Sampled | Gone | OfaError] = SimpleQueue()

    def put(self, item: Sampled | Gone | OfaError) -> None:
        """Hand *item* to the reader."""
        self._items.put(item)

    def cancel(self) -> None:
        """Have the rows taken out at the engine's next step, their reader at once."""
        self.cancelled = True
        self._items.put(Cancelled("the request was cancelled"))

    def read(self) -> Iterator[Sampled | Gone | None]:
        """Yield what arrives, without an end, and None after each `SILENCE_S`
        without anything; raise what ends the request early."""
        while True:
            try:
                item = self._items.get(timeout=SILENCE_S)
            except Empty:
                yield None
                continue
            if self.cancelled:
                raise Cancelled("the request was cancelled")
            if isinstance(item, OfaError):
                raise item
            yield item


@dataclass(eq=False)
class Row:
    """
    A prompt on its way through a batch; one of those that a request has.

    *marks* are the places in *ids* where a copy of the caches is worth keeping.
    A *warm* row has no reader: it is read up to its last mark and then gone.
    """

    ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    marks: tuple[tuple[int, Kind], ...] = ()
    owner: str = ""
    priority: int = 0
    index: int = 0
    logprobs: int | None = None  # how many alternatives are told; None: nothing
    mask: Step | None = None  # what holds the answer to a grammar
    warm: bool = False
    mailbox: Mailbox = field(default_factory=Mailbox)
    cached: int = 0  # of *ids*, taken from an earlier request
    over: bool = False  # its reader has found a stop string

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.over or self.mailbox.cancelled

    @property
    def marks_left(self) -> tuple[tuple[int, Kind], ...]:
        """The marks behind what is cached, none just behind it: each costs a copy, and
        mostly a pass over the weights, which a few tokens save no more. A row without
        anything cached, or without a reader, is read for the sake of its last one."""
        if self.priority:  # an editor's side request: it is asked but once
            return ()
        near = self.cached + LEAST_BETWEEN
        last = self.marks[-1:] if self.warm or not self.cached else ()
        return tuple(
            mark
            for mark in self.marks
            if mark[0] > self.cached and (mark[0] >= near or mark in last)
        )

    @property
    def segments(self) -> list[list[int]]:
        """What is left to read, cut at its marks."""
        cuts = [at for at, _ in self.marks_left]
        edges = [self.cached, *cuts, len(self.ids)]
        return [list(self.ids[a:b]) for a, b in pairwise(edges)]

    @property
    def kind(self) -> Kind | None:
        """What its last mark is the end of."""
        return self.marks[-1][1] if self.marks else None

    @property
    def length(self) -> int:
        """The most tokens it can have, prompt and answer."""
        return len(self.ids) + self.max_tokens

    def fail(self, error: OfaError) -> None:
        """End the row, and the request with it."""
        self.mailbox.put(error)


def marks_of(prompt: Prompt, *, rewinds: bool) -> tuple[tuple[int, Kind], ...]:
    """
    Return where later prompts may part from *prompt*, and what stands before.

    At least one token stays behind the last one: an engine has to read something.
    Where caches can be cut back at any place (*rewinds*), one copy serves for all.
    """
    last = min(prompt.stable, len(prompt.ids) - 1)
    wanted: list[tuple[int, Kind]] = [(last, "prompt")]
    if not rewinds:
        if prompt.system + LEAST_BETWEEN <= prompt.history < last:
            wanted.insert(0, (prompt.history, "history"))
        if 0 < prompt.system < last:
            wanted.insert(0, (prompt.system, "system"))
    return tuple((at, kind) for at, kind in wanted if at > 0)


def warm_row(ids: Sequence[int], owner: str, kind: Kind) -> Row:
    """Return a row that has *ids* read and kept, and nothing answered."""
    return Row(
        (*ids, ids[-1]),
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        marks=((len(ids), kind),),
        owner=owner,
        warm=True,
    )
