"""Consumers with Spark on clusters that behave as managed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_sim.clouds import CloudRules
from broker_sim.cluster import SimCluster
from broker_sim.layout import Host
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Message, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.wire.codes import RequestCode
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

TOPIC, GROUP = "orders", "billing"
INSTANCE = "MQ_INST_1234567890_BXxYzAbC"
ENDPOINT = f"{INSTANCE}.cn-hangzhou.mq-internet.aliyuncs.com:80"
OUT_OF_REACH = Host("127.0.0.2", 10911)
BY_PROXIES = frozenset({int(RequestCode.GET_TOPIC_STATS_INFO), int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)})


def orderly(messages: Any, context: Any) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(number=message.body.decode(), seen_topic=message.topic)
    return ConsumeOrderlyStatus.SUCCESS


def concurrent(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
    """Each fifth message fails once."""
    if messages[0].body.endswith(b"5") and messages[0].reconsume_times == 0:
        context.delay_level_when_next_consume = 1
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    orderly(messages, context)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_group_consumes_from_a_managed_cluster(
    spark: SparkSession, tmp_path: Path, version: int, is_orderly: bool
) -> None:
    """L8: in its namespace, through addresses that replace those announced, by pulls that bring little, without
    statistics; what fails comes again.
    """
    named: dict[str, Any] = {"namespace": INSTANCE} if version == 1 else {"namespace_v2": "rmq-cn-1"}
    rules = CloudRules(
        **named,
        most_pulled=32,
        unserved=BY_PROXIES,
        advertised={"broker-a": OUT_OF_REACH},
        takes_batches=False,
    )
    with SimCluster(cloud=rules) as cluster:
        stored = f"{INSTANCE}%{TOPIC}" if version == 1 else TOPIC
        cluster.create_topic(stored, queues=2)
        for number in range(100):
            queue = MessageQueue(stored, "broker-a", number % 2)
            cluster.put(queue, [Message(topic=stored, body=b"%d" % number)])
        reach = {str(OUT_OF_REACH): cluster.broker_addresses["broker-a"], ENDPOINT: cluster.name_servers}
        options = {"brokerAddresses": json.dumps(reach), "requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}"}
        if version == 2:
            options["namespaceV2"] = "rmq-cn-1"
        consumer = PushConsumer(
            consumer_group=GROUP,
            name_servers=f"http://{ENDPOINT}" if version == 1 else f"http://{cluster.name_servers}",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
            options=options,
        )
        consumer.subscribe(TOPIC)
        listener = orderly if is_orderly else concurrent
        consumer.register_message_listener(
            listener, orderly=is_orderly, output_schema="number string, seen_topic string"
        )
        query = consumer.start(
            spark,
            sink=DeltaSink(str(tmp_path / "rows")),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"processingTime": "100 milliseconds"},
        )
        try:
            # A message that fails comes again a second later.
            wait_until(lambda: numbers_in(tmp_path / "rows") == list(range(100)) or not query.isActive, 240)
        finally:
            consumer.stop(query)

    assert numbers_in(tmp_path / "rows") == list(range(100))
    seen = DeltaTable(str(tmp_path / "rows")).to_pyarrow_table().column("seen_topic").to_pylist()
    assert set(seen) == {TOPIC}


def numbers_in(table: Path) -> list[int]:
    rows = DeltaTable(str(table)).to_pyarrow_table()
    return sorted(map(int, rows.column("number").to_pylist()))
