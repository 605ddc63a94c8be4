from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.end_to_end.test_orderly_consumer import INSTANCE_NAME
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import produce_orders
from tests.helpers.retries import rows_but_retries

pytestmark = pytest.mark.spark


def emit_tag(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    context.emit(step=messages[0].tags)
    return ConsumeOrderlyStatus.SUCCESS


class DyingSink(DeltaSink):
    """Fails before its first data commit, so that a plan stays behind in Spark's log."""

    is_armed = True

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Any:
        if self.is_armed:
            self.is_armed = False
            raise ConnectionError("the driver died here")
        return super().begin(consumer_group, queues)


def drain(
    spark: SparkSession, cluster: ClusterUnderTest, folder: Path, topic: str, sink: DeltaSink
) -> list[BatchReport]:
    reports: list[BatchReport] = []
    consumer = PushConsumer(
        consumer_group="moved",
        name_servers=cluster.name_servers,
        offset_store=DeltaOffsetStore(str(folder / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        instance_name=INSTANCE_NAME,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(emit_tag, output_schema="step string")
    consumer.register_batch_listener(reports.append)
    query = consumer.start(
        spark, sink=sink, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    assert query.awaitTermination(240)
    return reports


@SIM_ONLY
def test_a_plan_left_behind_does_not_bring_the_sink_past_a_reset(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, F5: Spark runs its logged plan again after a restart,
    although an operator has moved the group since.
    """
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    produce_orders(cluster.name_servers, topic, 10)
    with pytest.raises(StreamingQueryException, match="the driver died here"):
        drain(spark, cluster, tmp_path, topic, DyingSink(tmp_path / "sink"))
    store = DeltaOffsetStore(str(tmp_path / "offsets"))
    (queue,) = rows_but_retries(store.read("moved"))

    store.reset("moved", {queue: 30})
    reports = drain(spark, cluster, tmp_path, topic, DeltaSink(tmp_path / "sink"))

    assert [(ack.start, ack.state.next_offset) for report in reports for ack in report.acks] == [(30, 50)]
    rows = spark.read.format("delta").load(str(tmp_path / "sink"))
    assert sorted(row.queueOffset for row in rows.collect()) == list(range(30, 50))
