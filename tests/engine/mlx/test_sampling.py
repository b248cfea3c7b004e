"""Drawing tokens: the distribution that the parameters name, and no exceptions."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from ofa.chat import Sampling
from ofa.engine.mlx.sampling import Samplers, Trap, make_processors

PROBABILITIES = (0.5, 0.25, 0.125, 0.0625, 0.0625)
LOGPROBS = mx.log(mx.array([PROBABILITIES]))
SIZE = len(PROBABILITIES)


def drawn(sampling, times=400):
    """Return how often each token is drawn by *sampling*."""
    sampler = Samplers(SIZE).pick(sampling)
    mx.random.seed(5)
    tokens = sampler(mx.repeat(LOGPROBS, times, axis=0)).tolist()
    assert sampler.fault is None
    return [tokens.count(token) / times for token in range(SIZE)]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0), {0, 1, 2, 3, 4}),
        (Sampling(temperature=1.0, top_k=2), {0, 1}),
        (Sampling(temperature=1.0, top_k=5), {0, 1, 2, 3, 4}),
        (Sampling(temperature=1.0, top_k=99), {0, 1, 2, 3, 4}),
        (Sampling(temperature=1.0, top_k=-1), {0, 1, 2, 3, 4}),
        (Sampling(temperature=1.0, top_p=0.6), {0, 1}),
        (Sampling(temperature=1.0, top_p=1e-9), {0}),
        (Sampling(temperature=1.0, min_p=0.3), {0, 1}),
        (Sampling(temperature=1.0, min_p=1.0), {0}),
        # The masses are those of the three that top_k left: 4/7 and 6/7.
        (Sampling(temperature=1.0, top_k=3, top_p=0.8), {0, 1}),
        (Sampling(temperature=1.0, top_k=4, min_p=0.2, top_p=0.99), {0, 1, 2}),
        # At temperature 2 the same mass takes more tokens: it counts first.
        (Sampling(temperature=2.0, top_p=0.6), {0, 1, 2}),
        (Sampling(temperature=0.0), {0}),
        (Sampling(temperature=1e-30), {0}),
    ],
)
def test_cuts(sampling, kept):
    """Each parameter leaves just the tokens that its definition leaves."""
    found = drawn(sampling)

    assert {token for token, share in enumerate(found) if share} == kept


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_p=0.6),
        Sampling(temperature=0.01),
        Sampling(temperature=1.0, min_p=0.3),
        Sampling(temperature=1.0, top_k=3, top_p=0.8),
        Sampling(temperature=0.0),
    ],
)
def test_logits_need_not_be_normalised(sampling):
    """The same is drawn of them, in half floats too, whose largest number is 65,504."""
    pick = Samplers(SIZE).pick

    sequences = []
    for logits in (LOGPROBS, LOGPROBS + 900, (LOGPROBS + 60).astype(mx.float16)):
        mx.random.seed(6)
        sampler = pick(sampling)
        sequences.append([sampler(logits).item() for _ in range(30)])
        assert sampler.fault is None

    assert sequences[0] == sequences[1] == sequences[2]


@pytest.mark.parametrize("min_p", [0.0, 1e-4])
def test_top_p_of_a_large_vocabulary(min_p):
    """Of 20,000 tokens in any order those are drawn that make up the mass: the others'
    share of it counts, though they are never sorted."""
    size, mass = 20_000, 0.9
    shares = [1 / (rank + 1) ** 1.2 for rank in range(size)]
    if min_p:
        shares = [share for share in shares if share >= min_p]
    total, before, kept = sum(shares), 0.0, 0
    while before < mass * total:
        before += shares[kept]
        kept += 1
    places = [7 * n % size for n in range(size)]  # 7 and 20,000 have no common factor
    logits = (
        mx.zeros((size,))
        .at[mx.array(places)]
        .add(mx.array([-1.2 * math.log(rank + 1) for rank in range(size)]))
    )
    sampler = Samplers(size).pick(Sampling(temperature=1.0, top_p=mass, min_p=min_p))
    mx.random.seed(9)

    tokens = sampler(mx.repeat(logits[None], 300, axis=0)).tolist()

    assert sampler.fault is None
    assert set(tokens) <= set(places[:kept])
    rest = sum(token in places[kept // 2 : kept] for token in tokens) / 300
    expected = sum(shares[kept // 2 : kept]) / sum(shares[:kept])
    assert math.isclose(rest, expected, abs_tol=0.06)


def test_top_p_of_a_flat_vocabulary():
    """Where a model knows nothing, the likeliest 4,096 are drawn from."""
    size = 10_000
    logits = -1e-4 * mx.arange(size)[None]
    mx.random.seed(9)

    sampler = Samplers(size).pick(Sampling(temperature=1.0, top_p=0.95))
    tokens = sampler(mx.repeat(logits, 200, axis=0)).tolist()

    assert max(tokens) < 4096
    assert len(set(tokens)) > 150


def test_temperature():
    """Shares follow p to the power of 1/t, renormalised."""
    weights = [p ** (1 / 0.7) for p in PROBABILITIES]

    found = drawn(Sampling(temperature=0.7), times=8000)

    for share, weight in zip(found, weights, strict=True):
        assert math.isclose(share, weight / sum(weights), abs_tol=0.02)


def test_samplers_are_shared_by_parameters_but_not_with_a_seed():
    """Equal parameters give one object, so that a batch is drawn in one call."""
    samplers = Samplers(SIZE)
    warm = Sampling(temperature=0.7, top_k=3)
    seeded = Sampling(temperature=0.7, top_k=3, seed=1)

    assert samplers.pick(warm) is samplers.pick(Sampling(temperature=0.7, top_k=3))
    assert samplers.pick(warm) is not samplers.pick(Sampling(temperature=0.8, top_k=3))
    assert samplers.pick(seeded) is not samplers.pick(seeded)
    assert samplers.pick(Sampling()) is samplers.pick(Sampling(temperature=0.0, seed=4))


@pytest.mark.parametrize("seed", [0, 7, 2**63, 2**64 - 1])
def test_a_seed_repeats_itself(seed):
    """Two samplers with one seed draw the same sequence, which varies."""
    pair = [Samplers(SIZE).pick(Sampling(temperature=1.5, seed=seed)) for _ in range(2)]

    sequences = [[sampler(LOGPROBS).item() for _ in range(30)] for sampler in pair]

    assert sequences[0] == sequences[1]
    assert len(set(sequences[0])) > 1


def processed(sampling, prompt, generated, logits=(1.0, -1.0, 1.0, -1.0, 0.0)):
    """Return the logits after *prompt* and *generated* have been seen."""
    context = mx.array([*prompt, *generated], dtype=mx.int32)
    out = mx.array([logits])
    for step in make_processors(sampling, prompt=len(prompt), size=SIZE):
        out = step(context, out)
        assert step.fault is None
    return [round(value, 4) for value in out[0].tolist()]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [1, -1, 1, -1, 0]),
        (Sampling(presence_penalty=0.5), [1, -1, 0.5, -1.5, 0]),
        (Sampling(frequency_penalty=0.5), [1, -1, 0, -1.5, 0]),
        (
            Sampling(presence_penalty=1.0, frequency_penalty=0.5),
            [1, -1, -1, -2.5, 0],
        ),
        (Sampling(presence_penalty=-2.0), [1, -1, 3, 1, 0]),
        (Sampling(repetition_penalty=2.0), [0.5, -2, 0.5, -2, 0]),
        (Sampling(logit_bias=((4, 3.0), (0, -1.0))), [0, -1, 1, -1, 3]),
    ],
)
def test_penalties_and_biases(sampling, expected):
    """Presence and frequency count generated tokens (2, 2, 3), never the prompt's
    (0, 1); repetition weakens both kinds."""
    assert processed(sampling, (0, 1), (2, 2, 3)) == expected


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e-3, 1e3, 1e308])
@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16, mx.float16])
def test_no_penalty_makes_logits_that_are_no_numbers(penalty, kind):
    """However strong it is, what is drawn from is finite, in each numeric type."""
    sampling = Sampling(repetition_penalty=penalty)
    (step,) = make_processors(sampling, prompt=2, size=SIZE)
    logits = mx.array([(30.0, -30.0, 0.0, 5.0, -5.0)]).astype(kind)

    found = step(mx.array([0, 1, 2, 3]), logits)

    assert found.dtype == kind
    assert mx.isfinite(found).all()


def test_penalties_before_the_first_token():
    """With nothing generated there is nothing to penalise."""
    sampling = Sampling(presence_penalty=2.0, frequency_penalty=2.0)

    assert processed(sampling, (0, 0, 2), ()) == [1, -1, 1, -1, 0]


def test_a_trap_never_raises():
    """The first failure is kept; from then on the substitute answers."""
    calls = []

    def act(value):
        calls.append(value)
        raise RuntimeError("boom")

    trap = Trap(act, lambda value: value + 1)

    assert [trap(1), trap(2)] == [2, 3]
    assert calls == [1]
    assert str(trap.fault) == "boom"
