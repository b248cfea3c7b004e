"""For every test: no thread is left behind, none holds the run; and servers to open."""

import os
import sys
import threading
import time

import pytest

from .web_fakes import Site

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
