"""For every test: no thread is left behind, none holds the run; and servers to open."""

import os
import sys
import threading
import time

import pytest

from .web_fakes import Site

# Files that take a minute and more, the longest first: begun last, one of them would
# keep one process busy while the others have nothing left to do.
LONGEST = (
    "test_starter_answers.py",
    "test_fuzz.py",
    "test_real_engine.py",
    "test_real_models.py",
    "test_engine_soak.py",
    "test_supervisor.py",
    "test_offline.py",
    "test_snapshot.py",
)

GRACE_S = 10.0  # for a thread that is on its way out


def lasting() -> list[threading.Thread]:
    """Return the threads that would keep the interpreter from leaving."""
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon
    ]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    """
    Fail a test that ends with more lasting threads than it began with.

    A module's own server is made before this, and so is none of the test's.
    """
    before = set(lasting())
    yield
    until = time.monotonic() + GRACE_S
    while (left := set(lasting()) - before) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"threads left behind: {sorted(t.name for t in left)}"


@pytest.hookimpl(trylast=True)  # after the order has been made random
def pytest_collection_modifyitems(items):
    """Begin with the longest files."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture
def open_site():
    """Make servers that are closed after the test."""
    opened = []

    def make(*args, **kw):
        opened.append(Site(*args, **kw))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


_status: list[int] = []


def pytest_sessionfinish(session, exitstatus):
    """Keep how it went."""
    _status.append(int(exitstatus))


def pytest_unconfigure(config):
    """Leave, whatever still runs: a thread that spins would hold CI to its limit."""
    if _status and lasting():
        names = sorted(thread.name for thread in lasting())
        sys.stderr.write(f"leaving in spite of threads: {names}\n")
        sys.stdout.flush()
        os._exit(_status[0])
