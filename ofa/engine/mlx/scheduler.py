"""
The thread that owns all of MLX: stream, model, batch generator, caches, keys.

MLX binds arrays that are not evaluated yet to the thread that made them, and two
models at once corrupt each other on Metal. So everything is made, used and dropped
on one thread; others hand it rows and read their mailboxes. It does no tokenising and
no text, and nothing a request does can end it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from ...errors import ConfigError, EngineError, OfaError, ShuttingDown
from ..text import Markers
from .batch import Batch, Speed
from .lm import Loaded, Loader, context_of, count_logits, one_line, read_prompt
from .rows import Row
from .template import Prompts
from .vocabulary import Vocabulary

_WARM_UP_S = 2.0

log = logging.getLogger("ofa.engine.mlx")


@dataclass(frozen=True)
class Ready:
    """What is known of a loaded model and usable from every thread."""

    prompts: Prompts
    vocabulary: Vocabulary
    thinking: Markers | None  # where the model has tokens for them
    silent: frozenset[int]  # control tokens that no reader of the text has a use for
    ends: frozenset[int]
    context_tokens: int
    logits: int  # how many token ids the model tells apart
    kind: str  # the model's type and numbers, for people


class Scheduler:
    """
    Runs rows in one batch on its own thread, from loading to `close`.

    *rows* answers are generated at once, others wait in line. While one is generated,
    prompts are read in pieces of at most *prefill_step* tokens between its tokens.
    """

    def __init__(self, load: Loader, *, rows: int, prefill_step: int) -> None:
        self._load = load
        self._rows = rows
        self._prefill_step = prefill_step
        self._inbox: SimpleQueue[Row | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._last_step = time.monotonic()
        self._faults: deque[float] = deque(maxlen=8)  # when steps failed
        self.speed = Speed()
        self.running = 0  # rows in the batch or in line for it
        self.settled = threading.Event()  # loaded, or known not to load
        self.ready: Ready | None = None
        self.failure: OfaError | None = None
        self._thread = threading.Thread(target=self._run, name="ofa-mlx", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # while the interpreter can still let it end

    @property
    def is_open(self) -> bool:
        """Whether rows are still taken."""
        return self._open

    def stalled_s(self) -> float:
        """Return for how long the step under way has lasted; 0 when idle."""
        return time.monotonic() - self._last_step if self.running else 0.0

    def faults(self, within_s: float) -> int:
        """Return how many steps failed in the last *within_s* seconds."""
        now = time.monotonic()
        return sum(now - at < within_s for at in tuple(self._faults))

    def submit(self, row: Row) -> None:
        """Have *row* answered; its tokens, or an error, come to its mailbox."""
        with self._lock:
            if self._open:
                self._inbox.put(row)
                return
        row.fail(self.failure or _stopped())

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
            loaded = self._settle()
            if loaded is not None and self.ready is not None:
                self._serve(self._make_batch(loaded, self.ready))
        except Exception as error:  # noqa: BLE001 - the thread's outermost handler
            self._fail(EngineError("the engine stopped; restart ofa"), error)
        finally:  # whatever happened, nobody is left waiting
            self._turn_away()

    def _settle(self) -> Loaded | None:
        """Load the model and tell everyone how that went."""
        try:
            loaded = self._load()
            ready = _prepare(loaded)
            _warm_up(loaded, self.speed)
            self.ready = ready
            log.info(
                "the model is ready: %s, reads %.0f tokens/s",
                ready.kind,
                self.speed.per_s,
            )
            return loaded
        except OfaError as error:
            self._fail(error, error.__cause__)
        except Exception as error:  # noqa: BLE001 - a folder may be broken in any way
            message = f"the model can't be loaded: {one_line(error)}"
            self._fail(ConfigError(message), error)
        finally:
            self.settled.set()
        return None

    def _fail(self, failure: OfaError, cause: BaseException | None) -> None:
        self.failure = failure
        log.error("%s", failure)
        log.debug("the cause", exc_info=cause)

    def _make_batch(self, loaded: Loaded, ready: Ready) -> Batch:
        return Batch(
            loaded.model,
            ends=ready.ends,
            logits=ready.logits,
            rows=self._rows,
            prefill_step=self._prefill_step,
            speed=self.speed,
            faults=self._faults,
        )

    def _serve(self, batch: Batch) -> None:
        try:
            while self._open:
                for row in self._arrivals(wait=not batch):
                    batch.admit(row)
                self.running = len(batch)
                self._last_step = time.monotonic()
                batch.step()
                self.running = len(batch)
        finally:
            self.running = 0
            batch.fail_all(_stopped())

    def _arrivals(self, *, wait: bool) -> list[Row]:
        """Return the rows that came in; with *wait*, once there is one or it closes."""
        rows: list[Row] = []
        try:
            while True:
                row = self._inbox.get(block=wait)
                wait = False
                if row is not None:
                    rows.append(row)
        except Empty:
            return rows

    def _turn_away(self) -> None:
        with self._lock:
            self._open = False
        for row in self._arrivals(wait=False):
            row.fail(self.failure or _stopped())


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


def _prepare(loaded: Loaded) -> Ready:
    vocabulary = Vocabulary(loaded.tokenizer)
    prompts = Prompts(loaded.tokenizer, vocabulary)
    family, ids = prompts.family, vocabulary.ids
    marks = family.thinking
    return Ready(
        prompts=prompts,
        vocabulary=vocabulary,
        # "<think>" in plain letters is no thought of a model that has no such token.
        thinking=marks if marks and {marks.open, marks.close} <= ids.keys() else None,
        silent=frozenset(
            number
            for token, number in vocabulary.control.items()
            if token not in family.shown
        ),
        ends=loaded.ends | {ids[token] for token in family.ends},
        context_tokens=context_of(loaded.config),
        logits=count_logits(loaded.model),
        kind=f"{loaded.config.get('model_type', 'unknown type')}, {loaded.numbers}",
    )


def _warm_up(loaded: Loaded, speed: Speed) -> None:
    """
    Read growing prompts for about two seconds, to know how fast that goes.

    The first ones pay for kernels and buffers and are too short to count.
    """
    until = time.monotonic() + _WARM_UP_S
    for tokens in (16, 32, 64, 128, 256, 512):
        speed.add(tokens, read_prompt(loaded.model, tokens))
        if speed.per_s and time.monotonic() > until:
            return
