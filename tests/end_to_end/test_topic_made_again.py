"""F4: a topic is deleted and made again under a group with a sink,
which has other messages at the same positions.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.wire.codes import RequestCode
from tests.end_to_end.test_orderly_consumer import Consumption
from tests.guarantees.running_query import RunningQuery
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import STEPS, Orders, produce_orders
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

pytestmark = pytest.mark.spark

BROKER: Final = "broker-a"
QUEUES: Final = 2
OPTIONS: Final = {"failOnDataLoss": "false", "routeRefreshMs": "100"}
PATIENCE_S: Final = 240.0


@pytest.fixture
def consumption(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> Consumption:
    topic = cluster.create_topic(queues=QUEUES, brokers=[BROKER])
    return Consumption(spark, cluster, tmp_path, topic, "direct")


def make_again(consumption: Consumption) -> None:
    cluster = consumption.cluster
    for server, code in (
        (cluster.broker_addresses[BROKER], RequestCode.DELETE_TOPIC_IN_BROKER),
        (cluster.name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV),
    ):
        assert plain_remoting.call(server, code, {"topic": consumption.topic}).code == 0
    cluster.create_topic(consumption.topic, queues=QUEUES, brokers=[BROKER])


def produce(consumption: Consumption, orders: int, *, first: int = 0) -> Orders:
    return produce_orders(consumption.cluster.name_servers, consumption.topic, orders, first=first)


def check_has_each_once(consumption: Consumption, *sent: Orders) -> None:
    rows = DeltaTable(consumption.sink).to_pyarrow_table().to_pylist()
    expected = [(order_id, step) for orders in sent for order_id, steps in orders.items() for step in steps]
    assert Counter((row["order_id"], row["step"]) for row in rows) == Counter(expected)


@pytest.mark.parametrize(
    "orders", [pytest.param(4, marks=pytest.mark.long), 20], ids=["fewer messages than before", "more"]
)
@SIM_ONLY
def test_every_message_of_a_topic_made_again_while_the_query_was_stopped_is_in_the_sink_once(
    consumption: Consumption, orders: int
) -> None:
    """F4, H1: whether the new offsets are below the old ones or hide them."""
    before = produce(consumption, 10)
    consumption.drain(options=OPTIONS)
    make_again(consumption)
    after = produce(consumption, orders, first=100)

    consumption.drain(options=OPTIONS)

    check_has_each_once(consumption, before, after)


@SIM_ONLY
def test_every_message_of_a_topic_made_again_under_a_running_query_is_in_the_sink_once(
    consumption: Consumption,
) -> None:
    """F4, H1: a generation begins once the group has seen the empty topic."""
    before = produce(consumption, 10)
    with RunningQuery(consumption, options=OPTIONS) as query:
        query.await_consumed(10 * len(STEPS))
        make_again(consumption)
        wait_until(
            lambda: set(consumption.next_offsets().values()) == {0},
            PATIENCE_S,
            reason="The group at the beginning of the new topic",
        )
        after = produce(consumption, 20, first=100)
        query.await_consumed(30 * len(STEPS))

    check_has_each_once(consumption, before, after)
