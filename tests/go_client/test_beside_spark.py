"""Apache's Go client beside this package: what it sends is read,
and it consumes beside Spark in one group.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.go_client.program import GoMessage, go_consumer, produced_by_go
from tests.helpers.batch_read import read_batch
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_TIMEOUT_S = 240
_EXPRESSION = "created || paid"
_SPARK = "beside-go"


def bodies_by_queue(messages: Sequence[GoMessage]) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for one in messages:
        found[one.broker, one.queue].append(one.body)
    return dict(found)


def test_what_go_sends_is_read_as_it_was_sent(cluster: ClusterUnderTest) -> None:
    """A1, A4, G1: places, tags, keys and the order of each key."""
    topic = cluster.create_topic(queues=3)
    sent = produced_by_go(cluster.name_servers, topic, 60, "created,paid,packed")

    def read() -> list[GoMessage]:
        rows = read_batch(nameServers=cluster.name_servers, topic=topic, subscription=_EXPRESSION).to_pylist()
        return [
            GoMessage(
                row["brokerName"], row["queueId"], row["queueOffset"], row["tags"], row["body"].decode()
            )
            for row in rows
        ]

    wanted = [one for one in sent if one.tag != "packed"]
    wait_until(lambda: len(read()) == len(wanted), _TIMEOUT_S, reason="What Go has sent")
    assert sorted(read()) == sorted(wanted)


def test_a_go_member_that_subscribes_by_tags_consumes_them_and_can_be_asked(
    cluster: ClusterUnderTest,
) -> None:
    """A3, A4: its heartbeat has the tags' hash codes as texts; so has its answer to an administrator."""
    topic, group = cluster.create_topic(queues=2), cluster.unique_name("go")
    sent = produced_by_go(cluster.name_servers, topic, 30, "created,paid,packed")
    wanted = [one for one in sent if one.tag != "packed"]

    with go_consumer(cluster.name_servers, topic, _EXPRESSION, group, "tagged") as member:
        wait_until(lambda: len(set(member.messages())) == len(wanted), _TIMEOUT_S, reason="Go's messages")
        with ChannelPool(SystemClock()) as pool:
            admin = BrokerClient(pool, SystemClock(), PATIENCE_S)
            address = cluster.broker_addresses["broker-a"]
            connection = admin.consumer_connection(address, group)
            [client] = connection.connections
            info = admin.running_info(address, group, client.client_id)
        consumed = member.leave()

    assert bodies_by_queue(consumed) == bodies_by_queue(wanted)
    for subscription in (
        connection.subscriptions[topic],
        *(one for one in info.subscriptions if one.topic == topic),
    ):
        assert subscription.tags_set == {"created", "paid"}
        assert len(subscription.code_set) == 2


def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(body=message.body.decode(), tag=message.tags, delivered_ns=time.time_ns())
    return ConsumeOrderlyStatus.SUCCESS


def rows_of(sink: Path) -> list[GoMessage]:
    """The rows in the order in which the listener got their messages; none before there is a table."""
    if not (sink / "_delta_log").is_dir():
        return []
    table = (
        QueryBuilder()
        .register("sink", DeltaTable(str(sink)))
        .execute(
            'SELECT "brokerName", "queueId", "queueOffset", tag, body FROM sink ORDER BY delivered_ns, '
            '"queueOffset"'
        )
        .read_all()
    )
    columns = (table.column(index).to_pylist() for index in range(table.num_columns))
    return [GoMessage(*row) for row in zip(*columns, strict=True)]


def is_in_order(messages: Sequence[GoMessage]) -> bool:
    """Whether those of each queue came in the order of their offsets."""
    by_queue: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in messages:
        by_queue[one.broker, one.queue].append(one.offset)
    return all(offsets == sorted(offsets) for offsets in by_queue.values())


@pytest.mark.spark
def test_go_and_spark_share_a_group(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """B1, B5, A4: each has a share, nothing is lost when Go joins and leaves,
    and Spark has each row once, in order.
    """
    topic, group = cluster.create_topic(queues=4), cluster.unique_name("mixed-go")
    store, sink = DeltaOffsetStore(str(tmp_path / "offsets")), DeltaSink(tmp_path / "sink")

    consumer = PushConsumer(
        consumer_group=group,
        name_servers=cluster.name_servers,
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        instance_name=_SPARK,
    )
    consumer.subscribe(topic, _EXPRESSION)
    consumer.register_message_listener(listener, output_schema="body string, tag string, delivered_ns bigint")
    query = consumer.start(
        spark,
        sink=sink,
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"processingTime": "200 milliseconds"},
    )

    sent: list[GoMessage] = []

    def send() -> None:
        sent.extend(
            one
            for one in produced_by_go(cluster.name_servers, topic, 90, "created,paid,packed")
            if one.tag != "packed"
        )

    def missing(by_go: Sequence[GoMessage]) -> set[GoMessage]:
        return set(sent) - set(rows_of(tmp_path / "sink")) - set(by_go)

    try:
        send()
        wait_until(lambda: not missing([]), _TIMEOUT_S, reason="Spark alone")
        with go_consumer(cluster.name_servers, topic, _EXPRESSION, group, "go") as member:

            def both_consume() -> bool:
                send()
                return len({(one.broker, one.queue) for one in member.messages()}) == 4

            wait_until(both_consume, _TIMEOUT_S, reason="Go's share of the queues")
            wait_until(lambda: not missing(member.messages()), _TIMEOUT_S, reason="Both together")
            by_go = member.leave()
        send()
        wait_until(lambda: not missing(by_go), _TIMEOUT_S, reason="Spark alone again")
    finally:
        consumer.stop(query)

    rows = rows_of(tmp_path / "sink")
    assert len(rows) == len(set(rows))
    assert set(rows) | set(by_go) == set(sent)
    assert is_in_order(rows)
    assert is_in_order(list(dict.fromkeys(by_go)))
