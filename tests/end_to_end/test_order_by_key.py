"""A query in order of sharding keys: calls for keys of one queue overlap, and each row reaches the sink once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import pyspark_rocketmq as rmq
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message
from tests.helpers.cluster import LONG_ON_REAL, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark

_KEYS = ("a", "b", "c", None)
_PER_KEY = 30
_PATIENCE_S = 60.0


def send(cluster: ClusterUnderTest, topic: str) -> None:
    """Send messages of all keys to one queue, mixed."""
    with Producer(cluster.name_servers, "P", send_timeout_s=60.0) as producer:
        messages = [
            Message(
                topic=topic,
                body=b"x",
                properties={"KEYS": f"{key}-{number}"} | ({} if key is None else {"__SHARDINGKEY": key}),
            )
            for number in range(_PER_KEY)
            for key in _KEYS
        ]
        producer.send_batch(messages, min(producer.queues(topic)))


def steps_in(sink: Path) -> list[str]:
    """The rows of a sink, in the order of their messages."""
    if not DeltaTable.is_deltatable(str(sink)):
        return []
    steps: list[str] = DeltaTable(sink).to_pyarrow_table().sort_by("queueOffset")["step"].to_pylist()
    return steps


@LONG_ON_REAL
@pytest.mark.parametrize(
    ("trigger", "interval"),
    [({"availableNow": True}, None), ({"availableNow": True}, "50ms"), ({"realTime": "5 minutes"}, "50ms")],
)
def test_calls_for_keys_of_one_queue_overlap_and_each_row_is_there_once(
    trigger: dict[str, Any],
    interval: str | None,
    spark: SparkSession,
    cluster: ClusterUnderTest,
    tmp_path: Path,
) -> None:
    """I8, H1: one key fails now and then, one always; the others go on."""
    topic = cluster.create_topic(queues=1)
    send(cluster, topic)
    log, has_met = DeliveryLog(tmp_path / "deliveries"), tmp_path / "met"
    has_met.mkdir()

    def listener(
        messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
    ) -> rmq.ConsumeOrderlyStatus:
        log.note(messages)
        [message] = messages
        key, _, number = (message.keys or "").partition("-")
        context.suspend_current_queue_time_millis = 10
        if number == "0" and key in {"a", "c"}:
            # Ends only when the call for the other key has begun.
            (has_met / key).touch()
            gives_up_s = time.monotonic() + _PATIENCE_S
            while len(list(has_met.iterdir())) < 2:
                assert time.monotonic() < gives_up_s, "the calls for two keys do not overlap"
                time.sleep(0.01)
        if key == "b" and (number == "7" or (int(number) % 5 == 0 and not message.reconsume_times)):
            return rmq.ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        time.sleep(0.002)
        context.emit(step=message.keys)
        return rmq.ConsumeOrderlyStatus.SUCCESS

    consumer = rmq.PushConsumer(
        consumer_group=cluster.unique_name("group"),
        name_servers=cluster.name_servers,
        offset_store=rmq.DeltaOffsetStore(tmp_path / "offsets"),
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        max_reconsume_times=2,
        commit_interval=interval,
        orderly_by="sharding_key",
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(listener, output_schema="step string")
    query = consumer.start(
        spark,
        sink=rmq.DeltaSink(tmp_path / "sink"),
        checkpoint=tmp_path / "checkpoint",
        trigger=trigger,
    )
    sent = [f"{key}-{number}" for number in range(_PER_KEY) for key in _KEYS]
    wanted = [name for name in sent if name != "b-7"]
    try:
        wait_until(
            lambda: not query.isActive or ("realTime" in trigger and steps_in(tmp_path / "sink") == wanted),
            240,
            reason="All rows in the sink",
        )
        assert query.exception() is None
    finally:
        query.stop()

    assert steps_in(tmp_path / "sink") == wanted
    of_key: dict[int, list[int]] = defaultdict(list)
    for delivery in log.deliveries():
        for offset in delivery.queue_offsets:
            of_key[offset % len(_KEYS)].append(offset)
    for first, offsets in of_key.items():
        # Once a batch has ended early, those above the lowest unfinished message are delivered again.
        steps = zip([first - len(_KEYS), *offsets], offsets, strict=False)
        assert all(after <= before or after == before + len(_KEYS) for before, after in steps), offsets
