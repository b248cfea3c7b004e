"""
The thread that owns all of MLX: stream, model, batch generator, caches, keys.

MLX binds arrays that are not evaluated yet to the thread that made them, and two
models at once corrupt each other on Metal. So everything is made, used and dropped
on one thread, and one model is resident at a time; others hand it rows and read their
mailboxes. It does no tokenising and no text, and nothing a request does can end it.
"""

from __future__ import annotations

import atexit
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from ...errors import ConfigError, EngineError, NotReady, OfaError, ShuttingDown
from ...heavy import loading
from .batch import Batch
from .foreign import FOREIGN, note
from .lm import Loaded, one_line
from .ready import Ready, prepare, warm_up
from .rows import Row
from .weights import Weights

# Of rows for another model than the resident one: from then on they go first.
_PATIENCE_S = 10.0
# Of requests that come at once the first is not begun before the others are here: short
# prompts are read in half the time together. Each is tokenised in some 5 ms. One that
# comes alone waits for as long as one token is read (`_alone_s`); behind a second, a
# third may follow so soon.
_COMPANY_S, _QUIET_S, _GLANCE_S = 0.1, 0.015, 0.002

log = logging.getLogger("ofa.engine.mlx")


class Scheduler:
    """
    Runs rows in one batch on its own thread, from loading to `close`.

    *rows* answers are generated at once, others wait in line. While one is generated,
    prompts are read in pieces of at most *prefill_step* tokens between its tokens. The
    first of *models* is loaded at once, unless *lazy*; after *unload_s* without work
    the resident one is dropped (0: never).
    """

    def __init__(
        self,
        models: Sequence[Weights],
        *,
        rows: int,
        prefill_step: int,
        lazy: bool = False,
        unload_s: float = 0.0,
        make_batch: Callable[..., Batch] = Batch,
    ) -> None:
        self.models = {weights.name: weights for weights in models}
        self._first = models[0]
        self._rows = rows
        self._prefill_step = prefill_step
        self._lazy = lazy
        self._unload_s = unload_s
        self._make_batch = make_batch
        self._inbox: SimpleQueue[tuple[Weights, Row | None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._last_step = time.monotonic()
        self._stepping = False
        self._faults: deque[float] = deque(maxlen=8)  # when steps failed
        self._coming: deque[float] = deque(maxlen=64)  # since when rows are expected
        self._resident: tuple[Weights, Batch] | None = None
        self.running = 0  # rows in the batch or in line for it
        self.died = False  # ended by a defect, which only a new process mends
        self._thread = threading.Thread(target=self._run, name="ofa-mlx", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # while the interpreter can still let it end

    @property
    def is_open(self) -> bool:
        """Whether rows are still taken."""
        return self._open

    def stalled_s(self) -> float:
        """Return for how long the step under way has lasted; 0 between steps."""
        return time.monotonic() - self._last_step if self._stepping else 0.0

    def faults(self, within_s: float) -> int:
        """Return how many steps failed in the last *within_s* seconds."""
        now = time.monotonic()
        return sum(now - at < within_s for at in tuple(self._faults))

    def expect(self) -> None:
        """Note that a row is about to be submitted: its prompt is being tokenised."""
        self._coming.append(time.monotonic())

    def call(self, weights: Weights) -> None:
        """Have *weights* loaded, if they are not, without a row for them."""
        self._inbox.put((weights, None))

    def submit(self, weights: Weights, row: Row) -> None:
        """Have *row* answered; its tokens, or an error, come to its mailbox."""
        if not row.warm:
            with suppress(IndexError):  # one request may bring several rows
                self._coming.popleft()
        with self._lock:
            if self._open:
                self._inbox.put((weights, row))
                return
        row.fail(weights.failure or _stopped())

    def close(self, wait_s: float = 5.0) -> None:
        """End all rows with an error and the thread with them; wait for it."""
        atexit.unregister(self.close)
        with self._lock:
            self._open = False
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)
            if not self._thread.is_alive():
                _await_gone(self._thread, wait_s)

    def _run(self) -> None:
        try:
            if not self._lazy:
                self._bring(self._first)
            while self._open:
                self._take_arrivals()
                self._choose_model()
                self._step()
        except FOREIGN as error:  # what a batch could not recover from
            self._die(error)
        finally:  # whatever happened, nobody is left waiting
            self._leave()

    def _die(self, error: BaseException) -> None:
        self.died = True
        self._first.failure = EngineError("the engine stopped; restart ofa")
        note("the engine's thread ended", error)

    def _leave(self) -> None:
        with self._lock:
            self._open = False
        if self._resident is not None:
            self._resident[1].fail_all(_stopped())
        self.running = 0
        self._turn_away(self._first.failure or _stopped())
        for weights in self.models.values():
            weights.settled.set()
            if weights.ready is not None:
                weights.ready.store.close()

    # -- which model ---------------------------------------------------------------

    def _choose_model(self) -> None:
        """Make the model resident whose rows have waited longest, if it is time."""
        batch = self._resident[1] if self._resident else None
        waiting = self._wanted()
        if not waiting or (batch is not None and batch.rows):
            return
        oldest = min(waiting, key=lambda weights: weights.waiting[0][1])
        if self._resident is None or self._resident[0] is not oldest:
            self._bring(oldest)
        self._admit_waiting(oldest)

    def _wanted(self) -> list[Weights]:
        return [weights for weights in self.models.values() if weights.is_wanted()]

    def _bring(self, weights: Weights) -> None:
        """Load *weights* in place of what is resident; tell all how it went."""
        # Speeds are measured: not beside retrieval's load, whose end is waited for.
        with weights.being_loaded(), loading():
            self._drop_resident()
            self._load(weights)

    def _load(self, weights: Weights) -> None:
        give_up = _give_up if weights.ready is None else _put_off
        try:
            loaded = weights.load()
            if weights.ready is None:
                weights.ready = prepare(loaded, weights.wish)
            self._settle(weights, weights.ready, loaded)
        except OfaError as error:
            give_up(weights, error, error.__cause__)
        except FOREIGN as error:  # a folder may be broken in any way
            message = f"the model can't be loaded: {one_line(error)}"
            give_up(weights, ConfigError(message), error)

    def _settle(self, weights: Weights, ready: Ready, loaded: Loaded) -> None:
        if not weights.speed.per_s:
            warm_up(loaded, weights.speed)
        batch = self._make_batch(
            loaded.model,
            ready,
            rows=self._rows,
            prefill_step=self._prefill_step,
            speed=weights.speed,
            faults=self._faults,
        )
        self._resident = (weights, batch)
        ready.grammars.prepare()  # holds up all other threads: better now than later
        weights.state, weights.failure = "resident", None
        weights.settled.set()
        log.info(
            "the model is ready: %s, reads %.0f tokens/s",
            ready.kind,
            weights.speed.per_s,
        )
        self._admit_waiting(weights)
        weights.arrived()

    def _drop_resident(self) -> None:
        """Free the resident model, and what is kept of its prompts in memory."""
        if self._resident is None:
            return
        import mlx.core as mx

        weights, batch = self._resident
        batch.fail_all(_stopped())
        self._resident = None
        weights.state = "unloaded"
        if weights.ready is not None:
            weights.ready.store.clear()
        del batch
        gc.collect()  # models hold cycles; their weights are what is to go
        mx.clear_cache()
        log.info("the model %s is unloaded", weights.name)

    # -- rows ----------------------------------------------------------------------

    def _step(self) -> None:
        if self._resident is None:
            return
        batch = self._resident[1]
        self.running = batch.rows
        self._last_step = time.monotonic()
        self._stepping = batch.busy
        batch.step()
        self._stepping = False
        self.running = batch.rows

    def _take_arrivals(self) -> None:
        """Sort in what came; with nothing to do, wait for it and for its company."""
        batch = self._resident[1] if self._resident else None
        began = quiet = 0.0
        wanted = bool(self._wanted())
        rest_s = batch.rest_s if batch and not wanted else 0.0
        if rest_s or not (wanted or (batch and batch.busy)):
            try:
                wait_s = rest_s or (self._unload_s if batch else 0.0)
                self._take(self._inbox.get(timeout=wait_s or None))
            except Empty:  # nothing came for so long
                if not rest_s:
                    self._drop_resident()
                return
            began = time.monotonic()
            quiet = began + self._alone_s()
        while True:
            try:
                self._take(self._inbox.get_nowait())
                quiet = time.monotonic() + _QUIET_S if began else 0.0
            except Empty:
                now = time.monotonic()
                if now > began + _COMPANY_S or not (self._expects(now) or now < quiet):
                    return
                time.sleep(_GLANCE_S)

    def _alone_s(self) -> float:
        """Return how long the first waits for a second: as long as one token is read,
        6 ms on a CPU. Less than a glance is a glance."""
        per_s = self._resident[0].speed.per_s if self._resident else 0.0
        return min(1 / per_s, _QUIET_S) if per_s else 0.0

    def _expects(self, now: float) -> bool:
        """Tell whether a row's prompt is just being tokenised."""
        with suppress(IndexError):  # none is left, or it was submitted just now
            while self._coming[0] < now - _COMPANY_S:
                self._coming.popleft()  # refused, or waiting for its turn
        return bool(self._coming)

    def _take(self, item: tuple[Weights, Row | None] | None) -> None:
        if item is not None:
            self._sort_in(*item)

    def _sort_in(self, weights: Weights, row: Row | None) -> None:
        is_here = self._resident is not None and self._resident[0] is weights
        if row is None and (is_here or weights.ready is not None):
            return
        may_join = is_here and not self._others_wait(weights)
        if row is not None and row.warm and not may_join:
            return  # no reason to load anything, now or later
        if may_join and row is not None:
            self._resident[1].admit(row)  # type: ignore[index]  # is_here says so
        else:
            weights.waiting.append((row, time.monotonic()))

    def _admit_waiting(self, weights: Weights) -> None:
        if self._resident is None or self._resident[0] is not weights:
            return
        while weights.waiting:
            row, _ = weights.waiting.popleft()
            if row is not None:
                self._resident[1].admit(row)

    def _others_wait(self, weights: Weights) -> bool:
        """Tell whether rows for another model have waited for too long by now."""
        others = (w for w in self.models.values() if w is not weights and w.waiting)
        since = min((w.waiting[0][1] for w in others), default=time.monotonic())
        return time.monotonic() - since > _PATIENCE_S

    def _turn_away(self, error: OfaError) -> None:
        try:
            while True:
                item = self._inbox.get_nowait()
                if item is not None and item[1] is not None:
                    item[1].fail(error)
        except Empty:
            pass
        for weights in self.models.values():
            weights.fail_waiting(weights.failure or error)


def _give_up(weights: Weights, failure: OfaError, cause: BaseException | None) -> None:
    """Tell everyone that *weights* can't be loaded now."""
    log.error("%s", failure)
    log.debug("the cause", exc_info=cause)
    weights.failure, weights.state = failure, "unloaded"
    weights.settled.set()
    weights.fail_waiting(failure)


def _put_off(weights: Weights, failure: OfaError, cause: BaseException | None) -> None:
    """Tell those who wait that *weights*, which were here before, can't come now.

    That is a file server's bad minute, or memory taken by somebody else, and no wrong
    configuration: the next request tries again.
    """
    log.error("%s", failure)
    log.debug("the cause", exc_info=cause)
    weights.state = "unloaded"
    weights.fail_waiting(NotReady(f"{failure}; try again in a while"))


def _await_gone(thread: threading.Thread, wait_s: float) -> None:
    """
    Wait until the operating system's thread is gone, which join() does not.

    MLX keeps compiled functions in thread-local storage. Its destructor asks for the
    interpreter's lock, and if that is shutting down meanwhile the process aborts.
    """
    task = Path(f"/proc/self/task/{thread.native_id}")
    until = time.monotonic() + wait_s
    if not task.parent.exists():  # no Linux: it takes a moment, not a second
        until = time.monotonic() + 0.1
    while time.monotonic() < until and (task.exists() or not task.parent.exists()):
        time.sleep(0.002)


def _stopped() -> ShuttingDown:
    return ShuttingDown("the engine stopped before the answer was complete")
