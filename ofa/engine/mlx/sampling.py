"""
How the next token is drawn: temperature, cuts, penalties, biases, seeds.

Differs from mlx-lm's helpers on purpose: the temperature comes before top-p, as in
vLLM and transformers; presence and frequency count generated tokens only, as OpenAI
says; a seeded row draws from its own key, so it gives the same in any company; and
nothing a client chose can raise inside a step, where it would spoil other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from ...chat import Sampling
from ...errors import BadRequest
from .foreign import FOREIGN

if TYPE_CHECKING:
    import mlx.core as mx

# What an unsaid value means: close to the documents, as answers here should be.
DEFAULTS = Sampling(temperature=0.2, top_p=0.95)
_COLDEST = 1e-3  # below it a temperature is greedy anyway, and 1/t overflows
# As much a repetition penalty may be, or 1 through it: more decides no other token, and
# logits that overflow become no number at all.
_STRONGEST = 1e3
# Top-p looks among so many of the likeliest: to sort a vocabulary of 262,144 took 37 ms
# a row and a step, to find these 2. What a model is sure enough of is not farther down.
_MOST_SORTED = 4096

Step = Callable[..., "mx.array"]


class Trap:
    """
    Calls *act* and never raises: the first failure is kept in `fault` and from then
    on *instead* answers, until the row is taken out at the next step.

    An exception inside a step would leave every row's cache one token ahead.
    """

    def __init__(self, act: Step, instead: Step) -> None:
        self._act = act
        self._instead = instead
        self.fault: BaseException | None = None

    def __call__(self, *arrays: mx.array) -> mx.array:
        """Return what *act* makes of *arrays*, or *instead*."""
        if self.fault is None:
            try:
                return self._act(*arrays)
            except FOREIGN as error:  # the row's fault, told there
                self.fault = error
        return self._instead(*arrays)


class Samplers:
    """Makes samplers for one model, the same object for the same parameters: rows
    that share a sampler are drawn in one call."""

    def __init__(self, vocabulary_size: int) -> None:
        self._size = vocabulary_size
        self._shared = lru_cache(maxsize=256)(self._make)

    def pick(self, sampling: Sampling, index: int = 0) -> Trap:
        """
        Return the sampler for *sampling*: shared, or a row's own if it is seeded.

        *index* tells the choices of one seeded request apart.
        """
        temperature = sampling.temperature or 0.0
        if temperature < _COLDEST:
            return self._shared(0.0, 0, 1.0, 0.0)
        top_k = sampling.top_k or 0
        cuts = (
            temperature,
            top_k if 0 < top_k < self._size else 0,
            1.0 if sampling.top_p is None else sampling.top_p,
            sampling.min_p or 0.0,
        )
        if sampling.seed is None:
            return self._shared(*cuts)
        return Trap(_Seeded(sampling.seed + index, _draw(*cuts)), _greedy)

    def _make(self, temperature: float, top_k: int, top_p: float, min_p: float) -> Trap:
        if not temperature:
            return Trap(_greedy, _greedy)
        return Trap(_draw(temperature, top_k, top_p, min_p), _greedy)


def _greedy(logits: mx.array) -> mx.array:
    import mlx.core as mx

    return mx.argmax(logits, axis=-1)


class _Seeded:
    """Draws with a key of its own, one split a token."""

    def __init__(self, seed: int, draw: Step) -> None:
        import mlx.core as mx

        self._split = mx.random.split
        self._key = mx.random.key(seed % 2**64)
        self._draw = draw

    def __call__(self, logits: mx.array) -> mx.array:
        self._key, now = self._split(self._key)
        return self._draw(logits, now)


def _draw(temperature: float, top_k: int, top_p: float, min_p: float) -> Step:
    """Return a function that draws one token a row from logits, normalised or not."""
    import mlx.core as mx

    def draw(logits: mx.array, key: mx.array | None = None) -> mx.array:
        # From the best one's 0 down: no temperature makes them overflow.
        best = mx.max(logits, axis=-1, keepdims=True)
        scores = (logits - best) * (1.0 / temperature)
        ids = None  # of the columns of `scores`, once they are no longer all tokens
        if min_p:
            scores = mx.where(scores < math.log(min_p), -math.inf, scores)
        if top_k:
            scores, ids = _highest(scores, ids, top_k)
        if top_p < 1.0:
            total = mx.logsumexp(scores, axis=-1, keepdims=True)
            scores, ids = _highest(scores, ids, _MOST_SORTED)
            order = mx.argsort(-scores, axis=-1)
            falling = mx.take_along_axis(scores, order, axis=-1)
            scores = _cut_tail(falling, mx.exp(falling - total), top_p)
            ids = order if ids is None else mx.take_along_axis(ids, order, axis=-1)
        drawn = mx.random.categorical(scores, axis=-1, key=key)
        if ids is None:
            return drawn
        return mx.take_along_axis(ids, drawn[..., None], axis=-1)[..., 0]

    return draw


def _highest(
    scores: mx.array, ids: mx.array | None, count: int
) -> tuple[mx.array, mx.array | None]:
    """Return the *count* highest of *scores*, in any order, and their ids."""
    import mlx.core as mx

    if count >= scores.shape[-1]:
        return scores, ids
    kept = mx.argpartition(scores, kth=-count, axis=-1)[..., -count:]
    ids = kept if ids is None else mx.take_along_axis(ids, kept, axis=-1)
    return mx.take_along_axis(scores, kept, axis=-1), ids


def _cut_tail(falling: mx.array, mass: mx.array, top_p: float) -> mx.array:
    """Keep the first of *falling* scores until *top_p* of the *mass* is reached."""
    import mlx.core as mx

    before = mx.cumsum(mass, axis=-1) - mass
    # The best token stays whatever rounding says.
    keep = (before < top_p) | (mx.arange(falling.shape[-1]) == 0)
    return mx.where(keep, falling, -math.inf)


def make_processors(sampling: Sampling, *, prompt: int, size: int) -> list[Trap]:
    """Return what changes a row's logits before drawing, in the order of the OpenAI
    and vLLM references; *prompt* is the number of tokens that were not generated."""
    steps = (
        _bias(sampling.logit_bias),
        _repetition(sampling.repetition_penalty or 1.0, size),
        _presence(
            sampling.presence_penalty or 0.0,
            sampling.frequency_penalty or 0.0,
            prompt=prompt,
            size=size,
        ),
    )
    return [Trap(step, lambda _, logits: logits) for step in steps if step]


def likeliest(
    logits: mx.array, token: int, count: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """
    Return the logprob of *token*, and the *count* likeliest tokens with theirs.

    Chosen on the device: a whole vocabulary of numbers never becomes Python's.
    """
    import mlx.core as mx

    count = min(count, logits.shape[-1])
    best = mx.argpartition(-logits, kth=max(count, 1) - 1)[:count]
    values = mx.take(logits, mx.concatenate([mx.array([token], best.dtype), best]))
    values = values - mx.logsumexp(logits)
    mx.eval(best, values)
    ids: list[int] = best.tolist()  # type: ignore[assignment]  # of one dimension
    numbers: list[float] = values.tolist()  # type: ignore[assignment]  # likewise
    own, *others = numbers
    top = zip(ids, others, strict=True)
    return own, tuple(sorted(top, key=lambda pair: -pair[1]))


def check_bias(sampling: Sampling, size: int) -> None:
    """Raise `BadRequest` for a token id outside of the vocabulary: MLX would write
    there, beyond the array's end."""
    for token, _ in sampling.logit_bias:
        if not 0 <= token < size:
            raise BadRequest(
                f"logit_bias: token id {token} is not in this model's vocabulary of "
                f"{size}",
                param="logit_bias",
            )


def _bias(pairs: tuple[tuple[int, float], ...]) -> Step | None:
    if not pairs:
        return None
    import mlx.core as mx

    ids = mx.array([token for token, _ in pairs])
    values = mx.array([float(value) for _, value in pairs])

    def add(_: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, ids].add(values.astype(logits.dtype))

    return add


def _repetition(penalty: float, size: int) -> Step | None:
    """Weaken what stands in the prompt or the answer, as transformers does."""
    if penalty == 1.0:
        return None
    penalty = min(max(penalty, 1 / _STRONGEST), _STRONGEST)
    import mlx.core as mx

    def weaken(context: mx.array, logits: mx.array) -> mx.array:
        seen = _counts(context, size) > 0
        weaker = mx.where(logits < 0, logits * penalty, logits / penalty)
        return mx.where(seen, weaker, logits)

    return weaken


def _presence(
    presence: float, frequency: float, *, prompt: int, size: int
) -> Step | None:
    if not presence and not frequency:
        return None

    def subtract(context: mx.array, logits: mx.array) -> mx.array:
        if context.shape[0] <= prompt:
            return logits
        counts = _counts(context[prompt:], size)
        off = presence * (counts > 0) + frequency * counts
        return logits - off.astype(logits.dtype)

    return subtract


def _counts(tokens: mx.array, size: int) -> mx.array:
    import mlx.core as mx

    return mx.zeros((size,)).at[tokens].add(1.0)
