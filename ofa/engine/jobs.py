"""
Replies that take turns: so many run at once, the others stand in line.

A job is what a caller reads in place of an engine's reply. Its reader is never blocked:
in a silence it gets a `Waiting` and can see whether its own client is still there.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from queue import Empty, SimpleQueue

from ..chat import End, Event, Waiting
from ..errors import Cancelled, EngineError, OfaError
from .base import Reply
from .line import Line

log = logging.getLogger("ofa.queue")


class Turns:
    """Gives *count* turns to jobs by their keys and priorities; see `Line`."""

    def __init__(self, count: int) -> None:
        self._line: Line[Job] = Line(side_limit=max(1, count - 1))
        self._lock = threading.Lock()
        self._free = count
        self._begun: SimpleQueue[_Read | None] = SimpleQueue()
        self._workers = [
            threading.Thread(target=self._work, name=f"ofa-queue-{n}", daemon=True)
            for n in range(count)
        ]
        for worker in self._workers:
            worker.start()

    def __len__(self) -> int:
        """Return how many are in line."""
        return len(self._line)

    def job(
        self,
        inner: Reply,
        *,
        key: str,
        priority: int,
        release: Callable[[], None],
        tick_s: float,
    ) -> Job:
        """
        Return what is to be read in place of *inner*; it stands in line once it is.

        Patient replies are read by their own reader's thread, which saves handing over;
        others by one of ours. *release* is called when it is over, or more often.
        """
        kind = _Patient if inner.patient else _Read
        return kind(self, inner, (key, priority), release, tick_s)

    def put(self, job: Job, key: str, priority: int) -> None:
        """Put *job* in line; `ShuttingDown` once closed."""
        self._line.put(job, key=key, priority=priority)
        self._advance()

    def remove(self, job: Job) -> None:
        """Take *job* out of the line, if it is there."""
        self._line.remove(job)

    def end(self, job: Job) -> None:
        """Take back the turn that *job* has."""
        self._line.done(job)
        with self._lock:
            self._free += 1
        self._advance()

    def give(self, job: _Read) -> None:
        """Have *job* read by a thread of ours; it has a turn, so one is free."""
        self._begun.put(job)

    def close(self) -> None:
        """Let nobody stand in line any more, and the threads end."""
        self._line.close()
        for _ in self._workers:
            self._begun.put(None)

    def join(self, wait_s: float) -> None:
        """Wait for the threads, for each as long."""
        for worker in self._workers:
            worker.join(wait_s)

    def _advance(self) -> None:
        """Give the turns that are free to those who are next."""
        while True:
            with self._lock:
                job = self._line.get_nowait() if self._free else None
                if job is None:
                    return
                self._free -= 1
            job.begin()

    def _work(self) -> None:
        while (job := self._begun.get()) is not None:
            job.run()


class Job:
    """A reply on its way through a turn; also what its caller reads."""

    def __init__(
        self,
        turns: Turns,
        inner: Reply,
        place: tuple[str, int],
        release: Callable[[], None],
        tick_s: float,
    ) -> None:
        self._turns = turns
        self._inner = inner
        self._place = place  # in line: key and priority
        self._release = release
        self._tick_s = tick_s
        # Events, and errors that end the reading; None for what each kind says.
        self._out: SimpleQueue[Event | OfaError | None] = SimpleQueue()
        self._reason: OfaError | None = None  # why it was stopped
        self._closed = self._ended = False
        self._lock = threading.Lock()  # of the two below
        self._has_turn = False
        self._is_over = False  # no turn is wanted any more

    @property
    def told(self) -> Mapping[str, str]:
        """What the inner reply tells."""
        return self._inner.told

    @property
    def patient(self) -> bool:
        """That it is."""
        return True

    def __iter__(self) -> Iterator[Event]:
        """Yield the inner reply's events once it is this one's turn."""
        raise NotImplementedError

    def begin(self) -> None:
        """Take the turn that is given, or give it back; called on any thread."""
        with self._lock:
            wanted = self._has_turn = not self._is_over
        if wanted:
            self._start()
        else:
            self._turns.end(self)

    def fail(self, reason: OfaError) -> None:
        """Make the reader raise *reason*, and stop the work."""
        self._reason = self._reason or reason
        self._out.put(reason)
        self._stop()

    def close(self) -> None:
        """Stop the work, wherever it is, and give the place back."""
        if not (self._closed or self._ended):
            self.fail(Cancelled("the reader left"))

    def _start(self) -> None:
        raise NotImplementedError

    def _heard(self) -> Iterator[Event | None]:
        """Yield what comes, and `Waiting` where nothing does; raise an error."""
        while True:
            try:
                item = self._out.get(timeout=self._tick_s)
            except Empty:
                item = Waiting()
            if isinstance(item, OfaError):
                raise item
            yield item

    def _stand_in(self) -> None:
        self._turns.put(self, *self._place)
        if self._closed:  # before or meanwhile: nobody else would take it out
            self._turns.remove(self)

    def _stop(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._turns.remove(self)
        self._inner.close()
        self._release()

    def _end_turn(self) -> None:
        with self._lock:
            self._is_over = True
            had, self._has_turn = self._has_turn, False
        if had:
            self._turns.end(self)


class _Read(Job):
    """One whose inner reply may block: a thread of the turns' reads and hands over."""

    def __iter__(self) -> Iterator[Event]:
        """Yield what is handed over."""
        self._stand_in()
        for item in self._heard():
            if item is None:
                return
            if isinstance(item, End) and item.last:
                self._release()  # before the client can see the end and ask again
            yield item

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
            self._end_turn()

    def _start(self) -> None:
        self._turns.give(self)

    def _hand_over(self) -> None:
        if self._closed:
            return
        for event in self._inner:
            if self._closed:
                return
            self._out.put(event)


class _Patient(Job):
    """One whose inner reply never keeps its reader waiting: it is read right there."""

    def __iter__(self) -> Iterator[Event]:
        """Yield `Waiting` until it is this one's turn, then the inner's events."""
        try:
            self._stand_in()
            for waiting in self._heard():
                if waiting is None:
                    break
                yield waiting
            for event in self._inner:
                if self._reason is not None:
                    raise self._reason
                if isinstance(event, End) and event.last:
                    # Before the client can see the end and ask again.
                    self._release()
                    self._end_turn()
                yield event
        except OfaError as exc:
            raise self._reason or exc from None
        except Exception as exc:  # noqa: BLE001 - told without its text
            raise _as_engine_error(exc) from None
        finally:
            self._inner.close()
            self._ended = True
            self._release()
            self._end_turn()

    def _start(self) -> None:
        self._out.put(None)


def _as_engine_error(exc: Exception) -> EngineError:
    # The message of a foreign exception may quote a prompt, so neither the log nor
    # the client gets it: the type and the place are enough to find the fault.
    where = "".join(traceback.format_tb(exc.__traceback__)[-3:])
    log.error("the engine raised %s\n%s", type(exc).__name__, where)
    return EngineError(f"the engine failed ({type(exc).__name__}); see the server log")
