"""Fixtures every suite may use: clusters to talk to and a clock to move by hand."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.helpers import stacks
from tests.helpers.backend_counts import BackendCounts
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.each_value import leave_to_long
from tests.helpers.fake_clock import FakeClock
from tests.helpers.running import running
from tests.helpers.taken_files import PART, REAL_CLUSTER, TAKEN_FOLDER, Part, Taken, TakenFiles
from tests.object_stores.server import AzureServer, Bucket, GoogleServer, S3Server
from tests.real_broker.harness import RealCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BROKERS = 2

_EXAMPLES = int(os.environ.get("EXAMPLES", "25"))
"""Inputs that a property test tries, if it does not say how many;
`make fuzz` tries as many as there is time for.
"""

# A busy machine must not fail a property test; pytest-timeout bounds it.
hypothesis.settings.register_profile(
    "shared-machine",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
    max_examples=_EXAMPLES,
)
hypothesis.settings.load_profile("shared-machine")


def pytest_configure(config: pytest.Config) -> None:
    # Asked to end, the run ends as by Ctrl-C: fixtures stop the processes they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stacks.print_when_asked()
    is_part = TAKEN_FOLDER in os.environ
    if is_part:
        config.pluginmanager.register(
            TakenFiles(Taken(Path(os.environ[TAKEN_FOLDER])), Part.parse(os.environ.get(PART, "")))
        )
    # Of a part, tests.at_once judges.
    is_strict = not is_part and os.environ.get("CI", "").lower() == "true"
    config.pluginmanager.register(BackendCounts(is_strict=is_strict))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Before pytest chooses by marks.
    leave_to_long(items)


def pytest_collection_finish() -> None:
    # Ten thousand tests are not garbage: looking through them again takes half a second each time.
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test advances it."""
    return FakeClock()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for the whole run; tests that use it carry the marker ``spark``."""
    from tests.helpers.spark_session import make_session

    session = make_session(tmp_path_factory.mktemp("spark"))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sim_cluster() -> Iterator[Backend]:
    """The simulator with two brokers, on system time."""
    from broker_sim.cluster import SimCluster
    from broker_sim.settings import BrokerSettings

    # Transactions are asked for as soon as by the real one of the tests.
    settings = BrokerSettings(transaction_timeout_s=1.0, transaction_check_interval_s=1.0)
    with SimCluster(brokers=_BROKERS, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(pytestconfig: pytest.Config) -> Iterator[RealCluster]:
    """The real RocketMQ with two brokers; tests that use it carry the marker ``real``."""
    for cluster in running(RealCluster(brokers=_BROKERS)):
        pytestconfig.stash[REAL_CLUSTER] = cluster
        yield cluster


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 on the loopback interface."""
    yield from running(S3Server())


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """An Azure Blob Storage on the loopback interface."""
    yield from running(AzureServer())


@pytest.fixture(scope="session")
def google_server() -> Iterator[GoogleServer]:
    """A Google Cloud Storage on the loopback interface."""
    yield from running(GoogleServer())


@pytest.fixture
def s3(s3_server: S3Server) -> Bucket:
    """An empty bucket."""
    return Bucket(s3_server)


@pytest.fixture(
    params=[pytest.param("sim", marks=pytest.mark.sim), pytest.param("real", marks=pytest.mark.real)]
)
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    """A cluster of two brokers: the test runs once on the simulator and once on the real RocketMQ."""
    backend: Backend = request.getfixturevalue(f"{request.param}_cluster")
    under_test = ClusterUnderTest(backend, request.param)
    yield under_test
    under_test.restore()
