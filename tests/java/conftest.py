"""Java's clients on either kind of cluster: one JVM each for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from tests.both.support import ANSWER_S
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.java.clients import JavaClients
from tests.java.stage import Stage, new_stage

_REBALANCE_INTERVAL_MS = 2000

SIM = pytest.param("sim", marks=[pytest.mark.sim, pytest.mark.java])
REAL = pytest.param("real", marks=[pytest.mark.real, pytest.mark.long])
"""Java's clients with a real broker: only the tests themselves can break it, no code of this project."""


@pytest.fixture(scope="package")
def sim_like_the_real_one() -> Iterator[Backend]:
    """Yield a simulator configured as the harness configures the real brokers."""
    settings = BrokerSettings(delay_levels_s=(1.0,) * 18, enable_property_filter=True)
    with SimCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="package", params=[SIM, REAL])
def backend(request: pytest.FixtureRequest) -> tuple[str, Backend]:
    """``sim`` or ``real``, and the cluster of that kind."""
    kind = str(request.param)
    return kind, request.getfixturevalue("sim_like_the_real_one" if kind == "sim" else "real_cluster")


@pytest.fixture
def cluster(backend: tuple[str, Backend]) -> ClusterUnderTest:
    """Return the cluster the Java clients work with."""
    kind, running = backend
    return ClusterUnderTest(running, kind)


@pytest.fixture(scope="package")
def java(backend: tuple[str, Backend], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """RocketMQ's own clients; members look at their groups every two seconds."""
    kind, running = backend
    home = tmp_path_factory.mktemp(f"java-{kind}")
    with JavaClients(running.name_servers, home, rebalance_interval_ms=_REBALANCE_INTERVAL_MS) as clients:
        yield clients


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Return the stage on which one recorded scenario follows the other."""
    with new_stage(tmp_path_factory.mktemp("sequences")) as stage:
        yield stage


@pytest.fixture
def client() -> Iterator[BrokerClient]:
    """Return our own client, to look at the effects of the Java clients."""
    with ChannelPool(SystemClock()) as pool:
        yield BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
