"""An engine that gives a bounded number of callers a place in front of another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..chat import Chat
from ..errors import NotReady, OfaError, Overloaded, ShuttingDown
from .base import SILENCE_S, Engine, Limits, Reply, Status
from .jobs import Job, Turns


class Queued:
    """
    Let *running* replies of *engine* run, with at most *waiting* more in line.

    The reader of a reply is never blocked: after *tick_s* of silence it gets a
    `Waiting` and can see whether its own client is still there. Patient replies say
    so themselves and run on their reader's thread; each other one is read by a thread
    of ours, which hands its events over. Callers take turns, and people's questions
    (``chat.priority`` 0) go before editors' side requests, which never hold all the
    turns where there are several.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        running: int = 4,
        waiting: int = 16,
        tick_s: float = SILENCE_S,
    ) -> None:
        self._engine = engine
        self._capacity = running + waiting
        self._running = running
        self._tick_s = tick_s
        self._turns = Turns(running)
        self._lock = threading.Lock()
        self._emptied = threading.Condition(self._lock)
        self._places: set[Place] = set()
        self._open = True
        self._lost = ""  # why the engine won't answer again in this process

    def reserve(self) -> Place:
        """
        Take a place now, before any work is done for the request.

        Raises `Overloaded` if all are taken, `ShuttingDown` while draining. The place
        goes back when its reply ends or is closed, or by `Place.release`.
        """
        with self._lock:
            if self._lost:
                raise _lost(self._lost)
            if not self._open:
                raise ShuttingDown("the server is stopping; ask again in a minute")
            if len(self._places) >= self._capacity:
                raise Overloaded(
                    f"all {self._capacity} places are taken; try again in a few seconds"
                )
            place = Place(self)
            self._places.add(place)
            return place

    def reply(self, chat: Chat) -> Reply:
        """Take a place and return the reply of the inner engine through it."""
        place = self.reserve()
        try:
            return place.reply(chat)
        except BaseException:
            place.release()
            raise

    def limits(self, weights: str = "") -> Limits:
        """Return the inner engine's."""
        return self._engine.limits(weights)

    def status(self) -> Status:
        """Return the inner engine's, or that the queue is draining."""
        if self._open or self._lost:
            return self._engine.status()
        return Status(False, "shutting down")

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Pass *beginnings* on to the inner engine: they take no place."""
        self._engine.warm(beginnings)

    def count_tokens(self, text: str) -> int:
        """Return the inner engine's count."""
        return self._engine.count_tokens(text)

    def depth(self) -> tuple[int, int]:
        """Return how many requests are running and how many are waiting."""
        with self._lock:
            taken = len(self._places)
        return min(taken, self._running), max(0, taken - self._running)

    def drain(self, grace_s: float) -> bool:
        """
        Admit nobody more, let running replies end, cut what is left after *grace_s*.

        A reply that is cut raises `ShuttingDown` to its reader. Returns whether all
        ended by themselves.
        """
        until = time.monotonic() + grace_s
        with self._lock:
            self._open = False
            while self._places and (left := until - time.monotonic()) > 0:
                self._emptied.wait(left)
            leftover = tuple(self._places)
        for place in leftover:
            place.cut(ShuttingDown("the server stopped before the answer was complete"))
        return not leftover

    def give_up(self, why: str) -> None:
        """Admit nobody more and end every reply with *why* the engine is lost."""
        with self._lock:
            self._lost = why
            self._open = False
            leftover = tuple(self._places)
        for place in leftover:
            place.cut(_lost(why))

    def close(self) -> None:
        """Drain at once, end the threads, close the inner engine."""
        self.drain(0)
        self._turns.close()
        self._engine.close()
        self._turns.join(5)

    def _give_back(self, place: Place) -> None:
        with self._lock:
            self._places.discard(place)
            self._emptied.notify_all()


class Place:
    """One caller's place in the line; holds at most one reply."""

    def __init__(self, queued: Queued) -> None:
        self._queued = queued
        self._job: Job | None = None

    def reply(self, chat: Chat) -> Reply:
        """
        Let the inner engine check *chat*, then stand in line with it.

        A refusal by the inner engine is raised here. The place is still taken then:
        for another try, or to be released.
        """
        queued = self._queued
        inner = queued._engine.reply(chat)
        self._job = queued._turns.job(
            inner,
            key=chat.caller,
            priority=chat.priority,
            release=self.release,
            tick_s=queued._tick_s,
        )
        return self._job

    def release(self) -> None:
        """Give the place back; safe to call twice."""
        self._queued._give_back(self)

    def cut(self, reason: OfaError) -> None:
        """End the reply, if one runs, with *reason*."""
        if self._job is not None:
            self._job.fail(reason)
        self.release()


def _lost(why: str) -> NotReady:
    return NotReady(
        f"{why}; the server starts again, ask in a few seconds",
        code="engine_restarting",
    )
