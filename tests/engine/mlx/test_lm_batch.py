"""The generator with batches of our own draws what mlx-lm's does, and holds no more."""

import io

import mlx.core as mx
import pytest

from ofa.engine.mlx import lm_batch

ROWS = 4


def generators(model):
    """Return mlx-lm's generator as it comes, and ours."""
    from mlx_lm.generate import BatchGenerator

    stream = mx.new_thread_local_stream(mx.default_device())
    plain = BatchGenerator(
        model,
        stop_tokens=[[1]],
        completion_batch_size=ROWS,
        prefill_batch_size=ROWS,
        stream=stream,
    )
    return plain, lm_batch.make_generator(model, ends=[1], rows=ROWS, stream=stream)


def greedy(logits):
    """Draw the likeliest."""
    return mx.argmax(logits, axis=-1)


def biased(context, logits):
    """Prefer what has not been said, as a penalty does; it reads the context."""
    seen = mx.zeros((logits.shape[-1],)).at[context].add(1.0)
    return logits - seen


def put(generator, prompt, most, processors=()):
    """Put *prompt* in line, its last token a segment of its own; return its uid."""
    segments = [prompt[:-1], prompt[-1:]]
    (uid,) = generator.insert_segments(
        [segments], [most], [None], [[]], [greedy], [list(processors)]
    )
    return uid


def play(generator):
    """Return what becomes of prompts that come by and by, one of them taken out."""
    told: dict[int, list] = {}
    waiting = [
        ([7, 8, 9, 10], 12, ()),
        ([7, 8, 11], 5, (biased,)),
        ([12, 13, 14, 15, 16, 17], 9, ()),
        ([20, 21], 30, (biased,)),
        ([30, 31, 32], 7, ()),
    ]
    gone = None
    for count in range(60):
        if waiting and count in (0, 1, 4, 5, 9):
            uid = put(generator, *waiting.pop(0))
            gone = uid if len(waiting) == 1 else gone
        _, answers = generator.next()
        for answer in answers:
            told.setdefault(answer.uid, []).append(answer)
        if count == 12:
            generator.remove([gone])
    return told


def normal(logits):
    """Return log-probabilities."""
    return logits - mx.logsumexp(logits)


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llama"])
def test_answers_are_those_of_mlx_lm(models, name):
    """Token for token, also of rows that join, end or are taken out meanwhile; with
    the probabilities they had, and caches that hold what is said they hold."""
    plain, ours = (play(one) for one in generators(models[name]))

    assert ours.keys() == plain.keys()
    assert len(ours) == 5
    for uid, wanted in plain.items():
        found = ours[uid]
        assert [one.token for one in found] == [one.token for one in wanted]
        assert [one.finish_reason for one in found] == [
            one.finish_reason for one in wanted
        ]
        for one, other in zip(found, wanted, strict=True):
            assert mx.allclose(normal(one.logprobs), other.logprobs, atol=1e-4)
        assert found[-1].all_tokens == wanted[-1].all_tokens
        for one, other in zip(
            found[-1].prompt_cache or (), wanted[-1].prompt_cache or (), strict=True
        ):
            assert mx.allclose(one.state[0], other.state[0], atol=1e-4)


def test_rows_that_start_together_take_their_caches_with_them(models):
    """Nothing of theirs is left behind, or copied, where no other prompt is read."""
    _, ours = generators(models["gemma3"])
    reading = ours._prompt_batch
    assert isinstance(reading, lm_batch.Reading)
    for first in (40, 50):
        put(ours, [first, 41, 42, 43], 3)
    ours.next()  # reads all but the last token of each
    caches = ours._prompt_batch.prompt_cache

    ours.next()

    assert ours._generation_batch.prompt_cache is caches
    assert not ours._prompt_batch.uids
    assert not ours._prompt_batch.prompt_cache


def test_what_nobody_reads_does_not_pile_up(models):
    """A processor that looks at no context leaves no chain of them to be evaluated."""
    _, ours = generators(models["gemma3"])
    seen = []

    def careless(context, logits):
        seen.append(context)
        return logits * 1.0

    put(ours, [60, 61, 62], 60, [careless])
    while len(seen) < 40:
        ours.next()

    graph = io.StringIO()
    mx.export_to_dot(graph, seen[-1])
    assert graph.getvalue().count("label") < 20  # a step or two are not evaluated yet


def test_a_token_is_told_before_a_prompt_beside_it_is_read(models):
    """Who waits for it does not wait for somebody else's prompt, too."""
    model = models["gemma3"]
    told: list = []
    stream = mx.new_thread_local_stream(mx.default_device())
    ours = lm_batch.make_generator(
        model,
        ends=[1],
        rows=ROWS,
        stream=stream,
        tell=lambda answer: told.append((answer, len(ours._unprocessed_sequences))),
    )
    first = put(ours, [7, 8, 9, 10], 4)
    while not told:
        ours.next()
    second = put(ours, [12, 13, 14, 15, 16], 4)

    prompts, answers = ours.next()

    assert [one.uid for one in answers] == [first]
    assert [part.uid for part in prompts] == [second]  # it was read in this call
    assert told[-1] == (answers[0], 1)  # and stood in line when the token was told
