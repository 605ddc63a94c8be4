"""Consumers whose schema registry goes away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import BadRecord
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeFromWhere, Message, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.schemas.decoding import BodyDecoder
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.sending import patient_producer
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.schemas.fake_registry import FakeRegistry, answers

pytestmark = pytest.mark.spark

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
COLUMNS = "id string, badRecord binary, badReason string"
BAD = b"\0\0\0\0\x63\x04xx"


def body_of(number: int) -> bytes:
    """A body of schema 7 or 8; every tenth names a schema that no registry has."""
    if number % 10 == 9:
        return BAD
    return bytes([0, 0, 0, 0, 7 + number % 2, 2 * len(str(number))]) + str(number).encode()


class Rows:
    """A listener that gets messages."""

    def __init__(self, decode: BodyDecoder) -> None:
        self.decode = decode

    def __call__(self, messages: Sequence[MessageExt], context: Any) -> str:
        for message in messages:
            try:
                context.emit(message, id=self.decode(message)["id"])
            except BadRecord as bad:
                context.emit(message, badRecord=message.body, badReason=str(bad))
        return str(ConsumeConcurrentlyStatus.CONSUME_SUCCESS) if hasattr(context, "ack_index") else "SUCCESS"


def arrow_rows(decode: BodyDecoder) -> ArrowListener:
    def on_orders(messages: pa.RecordBatch, _: Any) -> tuple[str, pa.RecordBatch]:
        return "SUCCESS", decode.columns(messages, pa.schema([("id", pa.string())]))

    return ArrowListener(on_orders)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        running.add(7, ORDER)
        running.add(8, json.dumps(ORDER))
        yield running


@SIM_ONLY
@pytest.mark.parametrize(
    "case",
    [
        (Rows, True, {}),
        (Rows, False, {}),
        (arrow_rows, True, {"consume_message_batch_max_size": 7}),
    ],
    ids=["orderly", "concurrent", "arrow"],
)
def test_nothing_is_lost_while_the_registry_is_away(
    spark: SparkSession,
    cluster: ClusterUnderTest,
    tmp_path: Path,
    registry: FakeRegistry,
    case: tuple[Callable[[BodyDecoder], object], bool, dict[str, Any]],
) -> None:
    """K4, H1: each message is one row, though none may be tried twice; unknown ids are bad records."""
    topic = cluster.create_topic(queues=2)
    with patient_producer(cluster.name_servers) as producer:
        for number in range(40):
            producer.send(Message(topic=topic, body=body_of(number)), sharding_key=str(number))
    listener, orderly, settings = case
    consumer = PushConsumer(
        consumer_group=cluster.unique_name("group"),
        name_servers=cluster.name_servers,
        offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        suspend_current_queue_time_millis=100,
        max_reconsume_times=0,
        **settings,
    )
    consumer.subscribe(topic)
    reports: list[BatchReport] = []
    consumer.register_batch_listener(reports.append)
    decode = registry.client(wait_s=0.2).decoder()
    consumer.register_message_listener(listener(decode), orderly=orderly, output_schema=COLUMNS)
    registry.reaction = answers(503, {})
    query = consumer.start(
        spark,
        sink=DeltaSink(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"processingTime": "100 milliseconds"},
    )

    def rows() -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(str(tmp_path / "table")):
            return []
        return list(DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist())

    try:
        # Several deliveries of each queue's first message.
        wait_until(lambda: len(reports) >= 3 and len(registry.requests) >= 6, 2 * PATIENCE_S)
        assert rows() == []
        registry.reaction = None
        # A look at the table takes longer than a batch.
        wait_until(lambda: sum(each.rows or 0 for each in reports) >= 40, 2 * PATIENCE_S)
    finally:
        consumer.stop(query)
    found = rows()
    assert sorted(int(row["id"]) for row in found if row["id"] is not None) == [
        number for number in range(40) if number % 10 != 9
    ]
    bad = [row for row in found if row["id"] is None]
    assert [row["badRecord"] for row in bad] == [BAD] * 4
    assert {row["badReason"].partition(" has no schema ")[2].partition(".")[0] for row in bad} == {"id 99"}
