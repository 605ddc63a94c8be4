"""Processes of a query and servers it talks to go away while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.end_to_end.test_orderly_consumer import Consumption
from tests.guarantees.running_query import RunningQuery
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import check_sink, produce_orders
from tests.helpers.relay import Relay

pytestmark = pytest.mark.spark


@pytest.fixture
def consumption(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> Consumption:
    return Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), "direct")


@SIM_ONLY
def test_a_planner_that_is_killed_ends_the_query_and_a_restart_loses_and_doubles_nothing(
    consumption: Consumption,
) -> None:
    """H1, H5: under its instance name the next one has the locks of the killed one."""
    expected = dict(produce_orders(consumption.cluster.name_servers, consumption.topic, 20))
    with RunningQuery(consumption) as query:
        query.await_consumed(100)
        query.kill_planner()
        expected |= produce_orders(consumption.cluster.name_servers, consumption.topic, 20, first=20)
        assert query.await_failure()

    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 200


@LONG_ON_REAL
def test_a_query_goes_on_while_no_name_server_answers(consumption: Consumption) -> None:
    """A2: it knows its brokers, and finds new routes when a name server is back."""
    cluster = consumption.cluster
    expected = dict(produce_orders(cluster.name_servers, consumption.topic, 20))
    with Relay(cluster.name_servers) as relay, RunningQuery(consumption, name_servers=relay.address) as query:
        query.await_consumed(100)
        relay.close()
        expected |= produce_orders(cluster.name_servers, consumption.topic, 20, first=20)
        query.await_consumed(200)
        relay.open()
        expected |= produce_orders(cluster.name_servers, consumption.topic, 20, first=40)
        query.await_consumed(300)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 300
