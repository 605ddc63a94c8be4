from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from tests.helpers.scripted_server import ScriptedServer
from tests.helpers.wait import PATIENCE_S


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A peer that answers every request with an empty success until a test changes that."""
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ChannelPool]:
    """The test's own connections."""
    with ChannelPool(SystemClock()) as pool:
        yield pool


@pytest.fixture
def soon() -> Deadline:
    """More time than any answer needs."""
    return Deadline.after(SystemClock(), PATIENCE_S)
