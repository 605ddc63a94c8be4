"""A connection to either kind of cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from tests.helpers.cluster import ClusterUnderTest

ANSWER_S = 10.0
"""More than any answer needs, so that a slow machine never fails a test."""


@pytest.fixture
def soon() -> Deadline:
    """The time budget of one test's requests."""
    return Deadline.after(SystemClock(), 3 * ANSWER_S)


@pytest.fixture
def pool() -> Iterator[ChannelPool]:
    """This test's own connections."""
    with ChannelPool(SystemClock()) as pool:
        yield pool


@pytest.fixture
def broker(cluster: ClusterUnderTest, pool: ChannelPool, soon: Deadline) -> Channel:
    """A channel to broker-a."""
    return pool.get(cluster.broker_addresses["broker-a"], soon)


@pytest.fixture
def name_server(cluster: ClusterUnderTest, pool: ChannelPool, soon: Deadline) -> Channel:
    """A channel to the name server."""
    return pool.get(cluster.name_servers, soon)
