"""Rows in one batch generator: in, a step at a time, out; used on one thread only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import EngineError, OfaError
from ..line import Line
from .ahead import Ahead
from .foreign import FOREIGN, as_ours, is_out_of_memory, note
from .lm import Model
from .prefix import Kind
from .rows import LEAST_BETWEEN, Finish, Gone, Row, Sampled
from .sampling import Samplers, Trap, likeliest, make_processors
from .speed import CHUNK_S, LEAST_CHUNK, Speed, chunk_size

if TYPE_CHECKING:
    from .ready import Ready

# A request never waits for what is read ahead: only for the chunk under way.
_WARM_CHUNK, _WARM_CHUNK_S = 32, 0.25

# Chunks that short prompts may fill together: one by one they hold up others longer.
_TOGETHER = 2

_FAILED = "the engine failed in this answer; send it again"


class _Running:
    """A row in the generator, with the callables that may have failed in it."""

    def __init__(self, row: Row, traps: Sequence[Trap]) -> None:
        self.row = row
        self.read = row.cached  # tokens of its prompt that are in its caches
        self.kept = row.cached  # up to where a copy is in the store
        self.reading = True
        self.decoding = False
        self.marks = deque(row.marks_left)
        self._traps = traps

    @property
    def fault(self) -> BaseException | None:
        """What went wrong in a step on this row's account."""
        return next((trap.fault for trap in self._traps if trap.fault), None)


class Batch:
    """
    Answers rows with *model*; one that fails takes no other with it.

    One prompt is read at a time, beside the answers being written, or a few that fit
    into one chunk together: callers take turns, people before editors. What is read is
    kept in the store of *ready*. *speed* and *faults* get each prefill's reading and
    each failed step's time.
    """

    def __init__(
        self,
        model: Model,
        ready: Ready,
        *,
        rows: int,
        prefill_step: int,
        speed: Speed,
        faults: deque[float],
    ) -> None:
        import mlx.core as mx

        from .lm_batch import make_generator

        self._ready = ready
        self._store = ready.store
        self._rows = rows
        self._prefill_step = prefill_step
        self._speed = speed
        self._faults = faults
        self._samplers = Samplers(ready.logits)
        stream = mx.new_thread_local_stream(mx.default_device())
        self._make = partial(
            make_generator,
            model,
            ends=ready.ends,
            rows=rows,
            stream=stream,
            tell=self._hand_over,
        )
        self._generator = self._make()
        self._line: Line[Row] = Line()
        self._held: Row | None = None  # first in line, and there is no room for it yet
        self._ahead = Ahead()
        self._running: dict[int, _Running] = {}

    @property
    def rows(self) -> int:
        """How many rows with a reader are in the batch or in line for it."""
        return (
            sum(not run.row.warm for run in self._running.values())
            + len(self._line)
            + (self._held is not None)
        )

    @property
    def busy(self) -> bool:
        """Whether a step would do anything, reading ahead included."""
        return bool(self.rows or self._running or self._ahead)

    @property
    def rest_s(self) -> float:
        """For how long there is nothing to do yet but to wait for the next request."""
        return 0.0 if self.rows or self._running else self._ahead.rest_s

    def admit(self, row: Row) -> None:
        """Put *row* in line."""
        if row.warm:
            self._ahead.put(row)
        else:
            self._line.put(row, key=row.owner, priority=row.priority)
            self._ahead.note_request()

    def step(self) -> None:
        """Let each running row have one token, and prompts be read a bit further."""
        try:
            self._drop([uid for uid, run in self._running.items() if run.row.cancelled])
            self._start_next()
            if self._running:
                self._next()
                self._fail_faulty()
        except FOREIGN as error:
            self._recover(error)

    def fail_all(self, error: OfaError) -> None:
        """End every row with *error*, also those in line."""
        self._fail_running(error)
        while (row := self._take_next()) is not None:
            row.fail(error)
        self._ahead.clear()

    # -- who is next ---------------------------------------------------------------

    def _start_next(self) -> None:
        if any(run.reading and not run.row.warm for run in self._running.values()):
            return
        group: list[Row] = []
        while sum(not run.row.warm for run in self._running.values()) < self._rows:
            row = self._take_next()
            if row is None:
                self._start_ahead()
                return
            if not self._start_in(group, row):
                return

    def _start_ahead(self) -> None:
        """Read something ahead, if nothing else is to do."""
        ahead = None if self._running else self._ahead.take()
        if ahead and self._make_room(ahead):  # what is kept gives way for it as well
            self._start(ahead)

    def _start_in(self, group: list[Row], row: Row) -> bool:
        """Start *row* as one more of *group*; return whether others may follow."""
        try:
            self._pause_warm()
            # Room first: what gives way may be what the row was to begin with.
            fits = self._make_room(row) and (
                not group or self._is_read_with(group, row)
            )
        except FOREIGN as error:  # it is in no line just now: nobody else would tell
            row.fail(as_ours(error, _FAILED))
            raise
        if fits:
            if self._start(row):
                group.append(row)
            return True
        if self._running:
            self._held = row
        else:  # the context is no larger than what fits, so this is a defect
            row.fail(EngineError("there is no memory for this request; send less"))
        return False

    def _is_read_with(self, group: Sequence[Row], row: Row) -> bool:
        """
        Tell whether what *group* and *row* have left to read is little enough.

        Short prompts of many callers cost little more together than one alone. Nothing
        is read twice: what *row* shares with another is read and kept there first.
        """
        kept = self._store.match(row.ids, row.owner).tokens
        longest = max(len(row.ids) - kept, *(len(r.ids) - r.cached for r in group))
        decoding = any(run.decoding for run in self._running.values())
        # Memory is counted for a chunk of the room's, whoever's tokens are in it.
        most = min(_TOGETHER * self._chunk(decoding), self._ready.room.chunk)
        if longest * (len(group) + 1) > most:
            return False
        begins = row.ids[: kept + LEAST_BETWEEN]
        return all(other.ids[: len(begins)] != begins for other in group)

    def _take_next(self) -> Row | None:
        """Return the next row that somebody still waits for."""
        row, self._held = self._held, None
        row = row or self._line.get_nowait()
        while row is not None and row.cancelled:
            row = self._line.get_nowait()
        return row

    def _make_room(self, row: Row) -> bool:
        """Return whether *row* fits beside the others; what is kept gives way."""
        lengths = [run.row.length for run in self._running.values()]
        left = self._ready.room.left_for_kept([*lengths, row.length])
        if left < 0:
            return False
        self._store.limit_bytes = left
        return True

    def _pause_warm(self) -> None:
        """Stop reading ahead, without losing what was read."""
        for uid, run in tuple(self._running.items()):
            if run.row.warm:
                self._drop([uid])
                self._ahead.put_back(run.row)

    def _start(self, row: Row) -> bool:
        """Put *row* into the generator and return True, or tell it why not."""
        try:
            sampler = self._samplers.pick(row.sampling, row.index)
            processors = make_processors(
                row.sampling, prompt=len(row.ids), size=self._ready.logits
            )
            if row.mask is not None:  # last: nothing may allow what it forbids
                processors.append(Trap(row.mask, lambda _, logits: logits))
            layers = self._recall(row)
            (uid,) = self._generator.insert_segments(
                [row.segments],
                [row.max_tokens],
                [layers],
                [list(row.ids[: row.cached])],
                [sampler],
                [processors],
            )
        except FOREIGN as error:  # this row's values, no other's
            self._fail(row, "the engine could not start this request", error)
            return False
        self._running[uid] = _Running(row, (sampler, *processors))
        return True

    # -- a step --------------------------------------------------------------------

    def _next(self) -> None:
        decoding = any(run.decoding for run in self._running.values())
        self._generator.prefill_step_size = self._chunk(decoding)
        start = time.perf_counter()
        # Not next_generated(): that would go on until a token comes, and a cancelled
        # prefill with it.
        prompts, answers = self._generator.next()
        wall_s = time.perf_counter() - start
        tokens = sum(self._advance(part) for part in prompts)
        if not answers and not any(run.row.warm for run in self._running.values()):
            self._speed.add(tokens, wall_s)
        for answer in answers:
            self._see_off(answer)
        for part in prompts:
            self._keep_mark(part.uid)

    def _chunk(self, decoding: bool) -> int:
        if any(run.row.warm for run in self._running.values()):
            return chunk_size(self._speed.per_s * _WARM_CHUNK_S, _WARM_CHUNK)
        chunk = min(chunk_size(self._speed.per_s * CHUNK_S), self._ready.room.chunk)
        return min(chunk, self._prefill_step) if decoding else chunk

    def _advance(self, part: Any) -> int:  # noqa: ANN401 - mlx-lm's Response
        """Note how much of a prompt is read by now; return what is new of it."""
        run = self._running[part.uid]
        if part.end_of_prompt:
            run.reading = False
            return 0
        read = run.row.cached + int(part.progress[0])
        new, run.read = read - run.read, read
        return new

    def _hand_over(self, answer: Any) -> None:  # noqa: ANN401 - mlx-lm's Response
        """Tell a token, before its step reads prompts and anything is kept."""
        run = self._running[answer.uid]
        run.decoding, run.reading = True, False
        row = run.row
        finish: Finish = answer.finish_reason or ""
        if run.fault is not None:
            self._samplers = Samplers(self._ready.logits)  # it must not come again
            if not finish:
                return
            # What failed is the token after it, which is drawn ahead of its turn.
        told: tuple[Any, ...] = ()
        if row.logprobs is not None:  # mlx-lm's word: they are logits (`lm_batch`)
            told = likeliest(answer.logprobs, answer.token, row.logprobs)
        row.mailbox.put(Sampled(row.index, answer.token, finish, *told))

    def _see_off(self, answer: Any) -> None:  # noqa: ANN401 - mlx-lm's Response
        """Keep what an answer that has ended leaves behind, and let its row go."""
        if not answer.finish_reason:
            return
        # Keeping waits for the step that the generator has begun already: the
        # last token's text does not, only what is told of the answer's end.
        row = self._running[answer.uid].row
        if not row.cancelled and not row.priority:
            self._keep(answer.all_tokens, row, answer.prompt_cache, "answer")
        row.mailbox.put(Gone(row.index))
        del self._running[answer.uid]
        self._ahead.note_request()

    def _fail_faulty(self) -> None:
        """Take out the rows whose own sampler or processors failed in this step."""
        faults = [(uid, run.fault) for uid, run in self._running.items() if run.fault]
        for uid, fault in faults:
            message = "the engine could not sample for this request"
            if isinstance(fault, OfaError):
                message = str(fault)
            self._fail(self._running[uid].row, message, fault)
            self._drop([uid])
            self._samplers = Samplers(self._ready.logits)  # it must not come again

    def _drop(self, uids: list[int]) -> None:
        """Take rows out; what was read of their prompts is not lost."""
        for uid in uids:
            run = self._running.pop(uid)
            new = run.read - run.kept
            if run.reading and not run.row.priority and new >= LEAST_CHUNK // 4:
                caches = self._generator.remove([uid], return_prompt_caches=True)
                self._keep(run.row.ids[: run.read], run.row, caches[uid][0], "prompt")
            else:
                self._generator.remove([uid])

    # -- what is kept --------------------------------------------------------------

    def _recall(self, row: Row) -> list[object] | None:
        """Return caches that hold a beginning of *row*, and note how much of it."""
        row.cached = 0
        try:
            hit = self._store.take(row.ids, row.owner)
        except FOREIGN as error:  # then it is read anew
            self._note("a kept beginning could not be used", error)
            return None
        if hit is None:
            return None
        row.cached = hit.tokens
        return hit.layers

    def _keep_mark(self, uid: int) -> None:
        """Keep a copy of a prompt's caches if they stand at a mark just now."""
        run = self._running.get(uid)
        if run is None or not run.marks or run.marks[0][0] != run.read:
            return
        at, kind = run.marks.popleft()
        caches = self._generator.extract_cache([uid])
        self._keep(run.row.ids[:at], run.row, caches[uid][0], kind)
        run.kept = at
        if run.row.warm and not run.marks:
            self._drop([uid])

    def _keep(
        self, ids: Sequence[int], row: Row, layers: list[object], kind: Kind
    ) -> None:
        saved_s = len(ids) / (self._speed.per_s or 1.0)
        try:
            self._store.put(ids, row.owner, layers, kind=kind, saved_s=saved_s)
        except FOREIGN as error:  # the answer is good without
            self._note("a beginning could not be kept", error)

    # -- failure -------------------------------------------------------------------

    def _fail_running(self, error: OfaError) -> None:
        for run in self._running.values():
            run.row.fail(error)
        self._running.clear()

    def _fail(self, row: Row, message: str, cause: BaseException) -> None:
        """End *row* alone."""
        row.fail(as_ours(cause, message))
        self._note(message, cause)

    def _note(self, message: str, error: BaseException) -> None:
        """Log what went wrong; if it was for want of memory, give back what is kept."""
        note(message, error)
        if is_out_of_memory(error):
            self._store.clear()

    def _recover(self, error: BaseException) -> None:
        """End everything in flight with an error and start on a new generator.

        After an exception inside a step some caches are a token ahead: none of them
        can be trusted any more. What was kept before is whole.
        """
        import mlx.core as mx

        self._faults.append(time.monotonic())
        self._fail_running(as_ours(error, _FAILED))
        self._note("a step failed; the batch is started afresh", error)
        self._generator = self._make()
        mx.clear_cache()
