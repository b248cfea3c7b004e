"""Rows in one batch generator: in, a step at a time, out; used on one thread only."""

from __future__ import annotations

import logging
import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from ...errors import EngineError, OfaError
from .lm import Generator, Model, make_generator
from .rows import Row
from .sampling import Samplers, Trap, make_processors

if TYPE_CHECKING:
    from collections.abc import Iterable

_WHOLE_CHUNK = 2048  # tokens prefilled in one go where nobody waits for the next
# Below it the products are too small: on two slow cores 38 tokens/s in chunks of 64, 47
# of 128, 57 in one piece. A cancelled prefill ends after its chunk, which is a second
# where 128 tokens are read in one, and more on a slower machine.
_LEAST_CHUNK = 128
_CHUNK_S = 1.0

log = logging.getLogger("ofa.engine.mlx")


class _Running:
    """A row in the batch, with the callables that may have failed in it."""

    def __init__(self, row: Row, sampler: Trap, processors: list[Trap]) -> None:
        self.row = row
        self.read = 0  # tokens of its prompt
        self.decoding = False
        self._traps = (sampler, *processors)

    @property
    def fault(self) -> Exception | None:
        """What went wrong in a step on this row's account."""
        return next((trap.fault for trap in self._traps if trap.fault), None)


class Speed:
    """How fast prompts are read: the median of the last few readings, so that
    neither a busy moment nor a short prompt decides."""

    def __init__(self) -> None:
        self._readings: deque[float] = deque(maxlen=9)

    def add(self, tokens: int, wall_s: float) -> None:
        """Take a reading, unless it is too short to tell anything."""
        if tokens >= _LEAST_CHUNK // 4:
            self._readings.append(tokens / max(wall_s, 1e-6))

    @property
    def per_s(self) -> float:
        """Prompt tokens a second; 0 before the first reading."""
        return median(tuple(self._readings) or (0.0,))


class Batch:
    """
    Answers rows with *model*; one that fails takes no other with it.

    *logits* is the number of ids the model tells apart; *speed* and *faults* get each
    prefill's reading and each failed step's time.
    """

    def __init__(  # noqa: PLR0913 - what was measured and what was configured
        self,
        model: Model,
        *,
        ends: Iterable[int],
        logits: int,
        rows: int,
        prefill_step: int,
        speed: Speed,
        faults: deque[float],
    ) -> None:
        import mlx.core as mx

        self._model = model
        self._ends = frozenset(ends)
        self._logits = logits
        self._rows = rows
        self._faults = faults
        self._samplers = Samplers(logits)
        self._stream = mx.new_thread_local_stream(mx.default_device())
        self._generator = self._make_generator()
        self._running: dict[int, _Running] = {}
        self._prefill_step = prefill_step
        self._speed = speed

    def __len__(self) -> int:
        return len(self._running)

    def admit(self, row: Row) -> None:
        """Put *row* in line, unless its reader has left already."""
        if row.cancelled:
            return
        try:
            sampler = self._samplers.pick(row.sampling)
            processors = make_processors(
                row.sampling, prompt=len(row.ids), size=self._logits
            )
            (uid,) = self._generator.insert(
                [list(row.ids)],
                [row.max_tokens],
                samplers=[sampler],
                logits_processors=[processors],
            )
        except Exception as error:  # noqa: BLE001 - this row's values, no other's
            _fail(row, "the engine could not start this request", error)
            return
        self._running[uid] = _Running(row, sampler, processors)

    def step(self) -> None:
        """Let each running row have one token, and one prompt be read a bit further."""
        try:
            self._drop([uid for uid, run in self._running.items() if run.row.cancelled])
            if self._running:
                self._next()
                self._fail_faulty()
        except Exception as error:  # noqa: BLE001 - the thread outlives any step
            self._recover(error)

    def fail_all(self, error: OfaError) -> None:
        """End every row with *error*."""
        for run in self._running.values():
            run.row.fail(error)
        self._running.clear()

    def _make_generator(self) -> Generator:
        return make_generator(
            self._model, ends=self._ends, rows=self._rows, stream=self._stream
        )

    def _next(self) -> None:
        decoding = any(run.decoding for run in self._running.values())
        chunk = chunk_size(self._speed.per_s * _CHUNK_S)
        self._generator.prefill_step_size = (
            min(chunk, self._prefill_step) if decoding else chunk
        )
        start = time.perf_counter()
        # Not next_generated(): that would go on until a token comes, and a cancelled
        # prefill with it.
        prompts, answers = self._generator.next()
        tokens = sum(self._advance(part.uid, part.progress[0]) for part in prompts)
        if not answers:  # nothing but reading
            self._speed.add(tokens, time.perf_counter() - start)
        for answer in answers:
            run = self._running[answer.uid]
            run.decoding = True
            if run.fault is None:
                run.row.put(answer.token, answer.finish_reason or "")
                if answer.finish_reason:
                    del self._running[answer.uid]

    def _advance(self, uid: int, read: int) -> int:
        """Note how much of a prompt is *read* by now; return what is new of it."""
        run = self._running[uid]
        new, run.read = read - run.read, read
        return new

    def _fail_faulty(self) -> None:
        """Take out the rows whose own sampler or processors failed in this step."""
        faulty = {uid: run for uid, run in self._running.items() if run.fault}
        if not faulty:
            return
        for run in faulty.values():
            _fail(run.row, "the engine could not sample for this request", run.fault)
        self._drop(list(faulty))
        self._samplers = Samplers(self._logits)  # a failed one must not come again

    def _drop(self, uids: list[int]) -> None:
        for uid in uids:
            del self._running[uid]
        if uids:
            self._generator.remove(uids)

    def _recover(self, error: Exception) -> None:
        """End everything in flight with an error and start on a new generator.

        After an exception inside a step some caches are a token ahead: none of them
        can be trusted any more.
        """
        import mlx.core as mx

        log.error("a step failed; the batch is started afresh", exc_info=error)
        self._faults.append(time.monotonic())
        self.fail_all(EngineError("the engine failed in this answer; send it again"))
        self._generator = self._make_generator()
        mx.clear_cache()


def _fail(row: Row, message: str, cause: Exception | None) -> None:
    log.error("%s", message, exc_info=cause)
    row.fail(EngineError(message))


def chunk_size(tokens: float) -> int:
    """Return the largest power of two up to *tokens*, within the useful range."""
    size = _LEAST_CHUNK
    while size * 2 <= min(tokens, _WHOLE_CHUNK):
        size *= 2
    return size
