"""An engine that gives a bounded number of callers a place in front of another one."""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

from ..chat import Chat, End, Event, Waiting
from ..errors import (
    Cancelled,
    EngineError,
    NotReady,
    OfaError,
    Overloaded,
    ShuttingDown,
)
from .base import Engine, Limits, Reply, Status
from .line import Line

log = logging.getLogger("ofa.queue")


class Queued:
    """
    Run *engine* on *running* threads, with at most *waiting* more in line.

    Each thread reads one reply at a time and hands its events over, so that the
    reader of a reply is never blocked: after *tick_s* of silence it gets a `Waiting`
    and can see whether its own client is still there. Callers take turns, and people's
    questions (``chat.priority`` 0) go before editors' side requests, which never hold
    all the threads where there are several.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        running: int = 4,
        waiting: int = 16,
        tick_s: float = 0.25,
    ) -> None:
        self._engine = engine
        self._capacity = running + waiting
        self._running = running
        self._tick_s = tick_s
        self._line: Line[_Job] = Line(side_limit=max(1, running - 1))
        self._lock = threading.Lock()
        self._emptied = threading.Condition(self._lock)
        self._places: set[Place] = set()
        self._open = True
        self._lost = ""  # why the engine won't answer again in this process
        self._workers = [
            threading.Thread(target=self._work, name=f"ofa-queue-{n}", daemon=True)
            for n in range(running)
        ]
        for worker in self._workers:
            worker.start()

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
        self._line.close()
        self._engine.close()
        for worker in self._workers:
            worker.join(5)

    def _give_back(self, place: Place) -> None:
        with self._lock:
            self._places.discard(place)
            self._emptied.notify_all()

    def _work(self) -> None:
        while (job := self._line.get()) is not None:
            job.run()
            self._line.done(job)


class Place:
    """One caller's place in the line; holds at most one reply."""

    def __init__(self, queued: Queued) -> None:
        self._queued = queued
        self._job: _Job | None = None

    def reply(self, chat: Chat) -> Reply:
        """
        Let the inner engine check *chat*, then stand in line with it.

        A refusal by the inner engine is raised here. The place is still taken then:
        for another try, or to be released.
        """
        inner = self._queued._engine.reply(chat)
        line = self._queued._line
        stand_in = partial(line.put, key=chat.caller, priority=chat.priority)
        self._job = _Job(
            inner, stand_in, line.remove, self.release, tick_s=self._queued._tick_s
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


class _Job:
    """A reply on its way through a worker thread; also what its caller reads."""

    def __init__(
        self,
        inner: Reply,
        stand_in: Callable[[_Job], None],
        leave: Callable[[_Job], object],
        release: Callable[[], None],
        *,
        tick_s: float,
    ) -> None:
        self._inner = inner
        self._stand_in = stand_in
        self._leave = leave
        self._release = release
        self._tick_s = tick_s
        self._out: queue.SimpleQueue[Event | OfaError | None] = queue.SimpleQueue()
        self._closed = self._ended = False

    def run(self) -> None:
        """Read the inner reply to its end; called on a worker's thread."""
        try:
            with closing(self._inner):
                self._hand_over()
        except OfaError as exc:
            self._out.put(exc)
        except Exception as exc:  # noqa: BLE001 - told to the reader, on its thread
            self._out.put(_as_engine_error(exc))
        finally:
            self._ended = True
            self._out.put(None)
            self._release()

    def fail(self, reason: OfaError) -> None:
        """Make the reader raise *reason*, and stop the work."""
        self._out.put(reason)
        self._stop()

    @property
    def told(self) -> Mapping[str, str]:
        """What the inner reply tells."""
        return self._inner.told

    def __iter__(self) -> Iterator[Event]:
        self._stand_in(self)
        if self._closed:  # before or meanwhile: nobody else would take it out
            self._leave(self)
        while True:
            try:
                item = self._out.get(timeout=self._tick_s)
            except queue.Empty:
                yield Waiting()
                continue
            if item is None:
                return
            if isinstance(item, OfaError):
                raise item
            if isinstance(item, End) and item.last:
                self._release()  # before the client can see the end and ask again
            yield item

    def close(self) -> None:
        """Stop the work, wherever it is, and give the place back."""
        if self._closed or self._ended:
            return
        self._out.put(Cancelled("the reader left"))
        self._stop()

    def _stop(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._leave(self)
        self._inner.close()
        self._release()

    def _hand_over(self) -> None:
        if self._closed:
            return
        for event in self._inner:
            if self._closed:
                return
            self._out.put(event)


def _lost(why: str) -> NotReady:
    return NotReady(
        f"{why}; the server starts again, ask in a few seconds",
        code="engine_restarting",
    )


def _as_engine_error(exc: Exception) -> EngineError:
    # The message of a foreign exception may quote a prompt, so neither the log nor
    # the client gets it: the type and the place are enough to find the fault.
    where = "".join(traceback.format_tb(exc.__traceback__)[-3:])
    log.error("the engine raised %s\n%s", type(exc).__name__, where)
    return EngineError(f"the engine failed ({type(exc).__name__}); see the server log")
