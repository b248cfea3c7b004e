"""A server on loopback for tests of the upstream engine."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from .upstream_servers import Upstream


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """Yield a server that says hello."""
    with closing(Upstream()) as server:
        yield server
