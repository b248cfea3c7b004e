"""
The batch generator: mlx-lm's, with less between a token and its reader.

mlx-lm begins the next token before it tells the last one. On a GPU that keeps the
device busy; on a CPU, where a step is done as it is begun, a reader waits for most of
the next token. There it is begun only once the last one is told. Everywhere:

* tokens are told before prompts are read on beside them, which takes longer;
* logits are not normalised, which takes exp() of the whole vocabulary for each row:
  who draws from them or tells of them sees to it (`sampling`);
* prompts that are done together become answers without a copy of their caches.

Knows mlx-lm's insides, and so belongs to `lm`. Import it after the BLAS.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch

from .lm import Generator, Model
from .memory import on_cpu

Tell = Callable[[Any], None]  # of mlx-lm's Response, which is one row's token


def make_generator(
    model: Model,
    *,
    ends: Iterable[int],
    rows: int,
    stream: mx.ThreadLocalStream,
    tell: Tell | None = None,
) -> Generator:
    """
    Return a batch generator over *model* for *rows* answers at once.

    *tell* gets each token that `next` is to return as soon as it is there.
    """
    generator = BatchGenerator(
        model,
        stop_tokens=[[token] for token in sorted(ends)],
        completion_batch_size=rows,
        # Those in line are read together, and wait for the longest of them: who puts
        # them in line sees to it that they are as short.
        prefill_batch_size=rows,
        stream=stream,
    )
    # The constructor wires as much memory as the device recommends, which has
    # frozen Macs that run other models too; close() does nothing but undo that.
    generator.close()
    how = generator.model, generator.sampler
    generator._prompt_batch = Reading.empty(
        *how, prefill_step_size=generator.prefill_step_size
    )
    generator._generation_batch = Answering.empty(*how)
    generator._generation_batch.tell = tell
    made: Generator = generator
    return made


class Answering(GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows being written; each `next` tells one more token of each."""

    _next_tokens: mx.array
    _next_logprobs: list[mx.array]
    _begun: Sequence[mx.array] = ()  # beside them, what the next call has to evaluate
    tell: Tell | None = None

    def next(self) -> list[Any]:
        """Return one token a row; each was told before."""
        answers: list[Any] = super().next()
        if self.tell is not None:
            for answer in answers:
                self.tell(answer)
        return answers

    def _step(self) -> tuple[list[int], list[mx.array]]:
        """
        Return the tokens drawn by the step before, and the logits they were drawn from.

        After it the caches hold these tokens, and those that follow them are drawn:
        evaluated at once on a GPU, and by the next call on a CPU.
        """
        cpu = on_cpu()
        inputs, told = self._next_tokens, self._next_logprobs
        if cpu:  # while the next step is put together
            mx.async_eval(inputs, *self._begun)  # type: ignore[no-untyped-call]
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        logits, contexts = self._processed(logits, inputs)
        drawn = self._drawn(logits)
        self._next_tokens, self._next_logprobs = drawn, list(logits)
        self._begun = contexts
        if not cpu:
            mx.async_eval(drawn, *contexts)  # type: ignore[no-untyped-call]
        tokens: list[int] = inputs.tolist()  # type: ignore[assignment]  # one dimension
        for row, token in zip(self.tokens, tokens, strict=True):
            row.append(token)
        return tokens, told

    def _processed(
        self, logits: mx.array, inputs: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        """Return *logits* as the rows' processors leave them, and what they read."""
        if not any(self.logits_processors):
            return logits, []
        made, contexts = [], []
        for row, processors in enumerate(self.logits_processors):
            own = logits[row : row + 1]
            if processors:
                seen = self._token_context[row].update_and_fetch(inputs[row : row + 1])
                contexts.append(seen)
            for process in processors:
                own = process(seen, own)
            made.append(own)
        return mx.concatenate(made, axis=0), contexts

    def _drawn(self, logits: mx.array) -> mx.array:
        """Return one token a row; rows that share a sampler are drawn in one call."""
        first, *others = self.samplers
        if all(sampler is first for sampler in others):
            drawn: mx.array = first(logits)
            return drawn
        rows = enumerate(self.samplers)
        return mx.concatenate([draw(logits[n : n + 1]) for n, draw in rows], axis=0)


class Reading(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Prompts being read."""

    def split(self, indices: list[int]) -> Reading:
        """Take the rows *indices* out, and return them as a batch of their own."""
        if len(indices) < len(self.uids):
            part: Reading = super().split(indices)
            return part
        whole = copy.copy(self)
        self._empty()
        return whole

    def generate(self, tokens: list[list[int]]) -> Answering:
        """Turn all rows, whose prompts end with *tokens*, into answers; return them."""
        if any(len(row) > 1 for row in tokens):
            self.prompt([row[:-1] for row in tokens])
        made = Answering(
            self.model,
            self.uids,
            mx.array([row[-1] for row in tokens]),
            self.prompt_cache,
            self.tokens,
            self.samplers,
            self.fallback_sampler,
            self.logits_processors,
            self.stop_sequences,
            self.max_tokens,
        )
        self._empty()
        return made

    def _empty(self) -> None:
        """Let go of the lists of rows, which another batch has now."""
        for name in _LISTS:
            setattr(self, name, [])


_LISTS = (
    "uids",
    "prompt_cache",
    "tokens",
    "samplers",
    "logits_processors",
    "stop_sequences",
    "max_tokens",
)
