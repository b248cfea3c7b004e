"""How far a build is: on a screen, in a file, and not at all when it is quick."""

import io

import pytest

from ofa.cli.steps import Steps, duration


class Screen(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self):
        """Say so."""
        return True


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self):
        """Return the time."""
        return self.now


@pytest.fixture
def clock():
    """Give a clock at zero."""
    return Clock()


def run(out, clock, seconds):
    """Embed a thousand passages, a tenth of them at each tenth of the time."""
    told = Steps(out, clock)
    for done in range(0, 1001, 100):
        clock.now = seconds * done / 1000
        told("hpc: embedding", done, 1000)
    told.close()


def test_a_file_gets_a_line_now_and_then(clock):
    """Plain lines, ten seconds apart, with pace and time left."""
    out = io.StringIO()

    run(out, clock, 50)

    assert out.getvalue().splitlines() == [
        "hpc: embedding: 200 of 1,000 (20 %), 20/s, 40 s left",
        "hpc: embedding: 400 of 1,000 (40 %), 20/s, 30 s left",
        "hpc: embedding: 600 of 1,000 (60 %), 20/s, 20 s left",
        "hpc: embedding: 800 of 1,000 (80 %), 20/s, 10 s left",
        "hpc: embedding: 1,000 of 1,000 (100 %), 20/s, took 50 s",
    ]


def test_a_screen_has_one_line_written_over(clock):
    """The same line again and again, ended when the job ends."""
    out = Screen()

    run(out, clock, 50)

    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 10
    assert "500 of 1,000 (50 %), 20/s, 25 s left" in out.getvalue()


@pytest.mark.parametrize("out", [io.StringIO(), Screen()], ids=["file", "screen"])
def test_what_is_quick_says_nothing(out, clock):
    """Under two seconds nobody waits for a line."""
    run(out, clock, 1.5)

    assert out.getvalue() == ""


def test_each_step_has_its_own_pace(clock):
    """A second step does not count the first one's time."""
    out = io.StringIO()
    told = Steps(out, clock)
    told("reading", 0, 10)
    clock.now = 100
    told("embedding", 0, 10)
    clock.now = 110
    told("embedding", 5, 10)

    assert out.getvalue() == "embedding: 5 of 10 (50 %), 0.5/s, 10 s left\n"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "1 s"), (99, "99 s"), (700, "12 min"), (12_000, "3 h 20 min")],
)
def test_times_are_for_people(seconds, told):
    """No more digits than anybody would read."""
    assert duration(seconds) == told
