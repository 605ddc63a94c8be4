"""A consumer meets messages that cannot be decoded: nothing before them is held back,
and with the option nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.poison import GARBAGE, store_as_it_is
from tests.helpers.sending import patient_producer

pytestmark = pytest.mark.spark

SCHEMA = "offset long, body binary, why string"
TIMEOUT_S = 240


def emit_all(
    messages: Sequence[MessageExt], context: ConsumeOrderlyContext | ConsumeConcurrentlyContext
) -> None:
    for message in messages:
        context.emit(
            message,
            offset=message.queue_offset,
            body=message.body,
            why=message.properties.get("UNDECODABLE"),
        )


def orderly(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    emit_all(messages, context)
    return ConsumeOrderlyStatus.SUCCESS


def concurrent(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    emit_all(messages, context)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@SIM_ONLY
@pytest.mark.parametrize(
    ("listener", "engine"),
    [(orderly, "direct"), pytest.param(orderly, "state", marks=pytest.mark.long), (concurrent, "direct")],
)
def test_a_query_ends_behind_the_last_good_message_and_goes_on_with_the_option(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, listener: object, engine: str
) -> None:
    """L7: what is before it is in the sink, and committed; kept,
    it reaches listener and sink with its bytes and the reason.
    """
    topic, group = cluster.create_topic(queues=1), cluster.unique_name("group")
    broker_name, address = next(iter(cluster.broker_addresses.items()))
    queue, store = MessageQueue(topic, broker_name, 0), DeltaOffsetStore(str(tmp_path / "offsets"))
    with patient_producer(cluster.name_servers) as producer:
        for number in range(5):
            if number in {2, 3}:
                store_as_it_is(address, queue)
            else:
                producer.send(Message(topic=topic, body=b"%d" % number), queue=queue)

    def drain(**settings: Any) -> None:
        consumer = PushConsumer(
            consumer_group=group,
            name_servers=cluster.name_servers,
            offset_store=store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            orderly_engine=engine,
            instance_name="undecodable",
            **settings,
        )
        consumer.subscribe(topic)
        consumer.register_message_listener(listener, orderly=listener is orderly, output_schema=SCHEMA)
        query = consumer.start(
            spark,
            sink=DeltaSink(tmp_path / "sink"),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(TIMEOUT_S), "the query did not drain"

    def rows() -> list[dict[str, Any]]:
        table = DeltaTable(tmp_path / "sink").to_pyarrow_table(columns=["offset", "body", "why"])
        return sorted(table.to_pylist(), key=lambda row: row["offset"])

    with pytest.raises(
        StreamingQueryException, match=rf"{topic}.*offset 2 cannot be decoded: .*undecodableMessages=keep"
    ):
        drain()
    assert [row["body"] for row in rows()] == [b"0", b"1"]
    assert store.read(group)[queue].next_offset == 2

    drain(undecodable_messages="keep")
    assert [row["body"] for row in rows()] == [b"0", b"1", GARBAGE, GARBAGE, b"4"]
    assert [bool(row["why"]) for row in rows()] == [False, False, True, True, False]
    assert store.read(group)[queue].next_offset == 5
