"""Where a prompt is cut, and what of it is worth a copy; who waits for company."""

from types import SimpleNamespace

import pytest

from ofa.chat import Sampling
from ofa.engine.mlx.rows import LEAST_BETWEEN, Row
from ofa.engine.mlx.scheduler import Scheduler

IDS = tuple(range(100))
HISTORY, PROMPT = (40, "history"), (99, "prompt")


def row(cached=0, ids=IDS, marks=(HISTORY, PROMPT), **more):
    """Return a row of which *cached* tokens are at hand."""
    return Row(ids, 1, Sampling(), marks=marks, cached=cached, **more)


def test_a_prompt_that_was_never_seen_is_kept_at_every_mark():
    """However short it is."""
    assert row().marks_left == (HISTORY, PROMPT)
    assert row().segments == [list(IDS[:40]), list(IDS[40:99]), [99]]
    assert row(ids=IDS[:9], marks=((8, "prompt"),)).marks_left == ((8, "prompt"),)


def test_nothing_is_kept_a_few_tokens_behind_what_is_kept_already():
    """A copy costs as much as reading them; at 32 tokens it is worth it."""
    near = 99 - LEAST_BETWEEN + 1

    assert row(40).marks_left == (PROMPT,)
    assert row(near - 1).marks_left == (PROMPT,)
    assert row(near).marks_left == ()
    assert row(near).segments == [list(IDS[near:])]


def test_what_is_read_ahead_is_kept_whatever_is_cached():
    """It is read for nothing else; a row without a mark would go on to an answer."""
    assert row(98, warm=True).marks_left == (PROMPT,)


def test_a_side_request_is_not_kept():
    """It is asked but once."""
    assert row(priority=1).marks_left == ()


@pytest.mark.parametrize(
    ("per_s", "wanted_s"), [(0.0, 0.0), (200.0, 0.005), (20.0, 0.015), (5e3, 0.0002)]
)
def test_the_first_waits_for_company_as_long_as_a_token_takes(per_s, wanted_s):
    """Little beside its prompt's time, never long; nothing where nothing is known."""
    weights = SimpleNamespace(speed=SimpleNamespace(per_s=per_s))

    assert Scheduler._alone_s(SimpleNamespace(_resident=(weights, None))) == wanted_s
    assert Scheduler._alone_s(SimpleNamespace(_resident=None)) == 0.0
