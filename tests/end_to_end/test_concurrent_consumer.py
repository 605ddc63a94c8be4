"""A concurrent listener as a streaming query: from brokers to a table, through the retry topic,
to the dead letters.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import (
    ConsumeConcurrentlyContext,
    ConsumeMessageContext,
    ConsumeMessageHook,
)
from pyspark_rocketmq.listeners.forms import ListenerContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    dlq_topic,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from tests.end_to_end.test_orderly_consumer import INSTANCE_NAME
from tests.helpers.cluster import LONG_ON_REAL, REAL_ONLY, SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.modes import BOTH_MODES, TIMEOUT_S, Mode, all_consumed, micro_batch_only
from tests.helpers.sending import patient_producer, send_back_patiently
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SCHEMA = "key string, topic_seen string, attempt int"


class Consumption:
    """One consumer group on one topic, with a table to emit into."""

    def __init__(self, spark: SparkSession, cluster: ClusterUnderTest, folder: Path, mode: Mode) -> None:
        self.mode = mode
        self.spark = spark
        self.cluster = cluster
        self.folder = folder
        self.topic = cluster.create_topic(queues=2)
        self.group = cluster.unique_name("group")
        self.store = DeltaOffsetStore(str(folder / "offsets"))
        self.reports: list[BatchReport] = []

    def produce(self, keys: Sequence[str]) -> None:
        with patient_producer(self.cluster.name_servers) as producer:
            for key in keys:
                producer.send(Message(topic=self.topic, body=key.encode(), properties={"KEYS": key}))

    def _consumer(
        self, listener: object, hooks: Sequence[ConsumeMessageHook] = (), **settings: Any
    ) -> PushConsumer:
        consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=self.cluster.name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            instance_name=INSTANCE_NAME,
            **self.mode.settings,
            **settings,
        )
        consumer.subscribe(self.topic)
        consumer.register_message_listener(listener, orderly=False, output_schema=SCHEMA)
        for hook in hooks:
            consumer.register_consume_message_hook(hook)
        consumer.register_batch_listener(self.reports.append)
        return consumer

    @property
    def _places(self) -> dict[str, Any]:
        return {"sink": DeltaSink(self.folder / "sink"), "checkpoint": str(self.folder / "checkpoint")}

    def start(self, listener: object, **settings: Any) -> StreamingQuery:
        consumer = self._consumer(listener, **settings)
        return consumer.start(self.spark, trigger=self.mode.trigger, **self._places)

    def drain(self, listener: object, **settings: Any) -> None:
        consumer = self._consumer(listener, **settings)
        self.mode.drain(
            consumer,
            self.spark,
            all_consumed(self.cluster, self.topic, self.store, self.group),
            **self._places,
        )

    def rows(self) -> list[dict[str, Any]]:
        return list(DeltaTable(self.folder / "sink").to_pyarrow_table().to_pylist())

    def dead_letters(self) -> list[MessageExt]:
        with ChannelPool(SystemClock()) as pool:
            client = BrokerClient(pool, SystemClock(), request_timeout_s=PATIENCE_S)
            found = []
            for name, address in self.cluster.broker_addresses.items():
                queue = MessageQueue(dlq_topic(self.group), name, 0)
                if client.max_offset(address, queue):
                    pull = PullRequest(consumer_group="readers", queue=queue, queue_offset=0)
                    found += decode_messages(client.pull(address, pull).body, name)
            return found


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    send_back_patiently(monkeypatch)


@pytest.fixture
def consumption(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, mode: Mode) -> Consumption:
    return Consumption(spark, cluster, tmp_path, mode)


def emit_key(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
    """Succeeds, except as the key says: ``later-N`` fails its first N attempts."""
    for message in messages:
        context.emit(message, key=message.keys, topic_seen=message.topic, attempt=message.reconsume_times)
    kind, _, failures = str(messages[0].keys).partition("-")
    if kind == "later" and messages[0].reconsume_times < int(failures):
        context.delay_level_when_next_consume = 1
        return LATER
    return SUCCESS


class OnLoop:
    """Found by name, opened on the loop."""

    def __init__(self) -> None:
        self.lock: asyncio.Lock | None = None

    async def open(self, context: ListenerContext) -> None:
        self.lock = asyncio.Lock()

    async def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> object:
        assert self.lock is not None
        async with self.lock:
            await asyncio.sleep(0)
        return emit_key(messages, context)


class Counting:
    """A hook that leaves a file for each message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hook_name(self) -> str:
        return "counting"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        context.mq_trace_context = time.monotonic()

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert context.mq_trace_context <= time.monotonic()
        for message in context.msg_list:
            (self.folder / f"{message.keys} {context.status} {context.success}").touch()


@LONG_ON_REAL
@BOTH_MODES
@pytest.mark.parametrize(
    "listener",
    [pytest.param(emit_key, marks=pytest.mark.every_spark), f"{__name__}:OnLoop"],
    ids=["threads", "loop"],
)
def test_every_message_reaches_the_table_once(consumption: Consumption, listener: object) -> None:
    """D10, E1, E6, F1, H1: many calls at a time, with hooks around them;
    the offsets are those of all messages.
    """
    keys = [f"key-{number}" for number in range(200)]
    consumption.produce(keys)
    seen = consumption.folder / "seen"
    seen.mkdir()

    consumption.drain(listener, hooks=[Counting(seen)], consume_thread_max=50)
    if consumption.mode is Mode.MICRO_BATCH:
        consumption.drain(listener)

    assert sorted(row["key"] for row in consumption.rows()) == sorted(keys)
    assert {row["queueOffset"] for row in consumption.rows()} <= set(range(200))
    assert sum(row.next_offset for row in consumption.store.read(consumption.group).values()) == 200
    assert {file.name for file in seen.iterdir()} == {f"{key} CONSUME_SUCCESS True" for key in keys}


@micro_batch_only("a query that drains ends by itself, and another one starts")
@REAL_ONLY
def test_the_brokers_may_keep_the_offsets(consumption: Consumption, tmp_path: Path) -> None:
    """F1, H2: a query that starts again goes on from there, as Java's members would; without a sink."""
    log = DeliveryLog(tmp_path / "deliveries")

    def note(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        log.note(messages)
        return SUCCESS

    for run in range(2):
        consumption.produce([f"key-{run}-{number}" for number in range(20)])
        consumer = PushConsumer(
            consumer_group=consumption.group,
            name_servers=consumption.cluster.name_servers,
            offset_store="broker:",
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            instance_name=INSTANCE_NAME,
        )
        consumer.subscribe(consumption.topic)
        consumer.register_message_listener(note, orderly=False, output_schema=SCHEMA)
        query = consumer.start(
            consumption.spark, checkpoint=str(tmp_path / f"checkpoint-{run}"), trigger={"availableNow": True}
        )
        assert query.awaitTermination(TIMEOUT_S), "the query did not drain"

        assert log.times_delivered().total() == len(log.times_delivered()) == 20 * (run + 1)


@LONG_ON_REAL
@BOTH_MODES
def test_failed_messages_come_again_until_they_pass_or_become_dead_letters(consumption: Consumption) -> None:
    """E3, E8: by the query's own subscription to the retry topic, under the topic it was sent to,
    each time with one attempt more; after max_reconsume_times in %DLQ%.
    """
    consumption.produce(["later-1", "key-1", "later-2", "later-99", "key-2"])
    wanted = {("key-1", 0), ("key-2", 0), ("later-1", 1), ("later-2", 2)}
    query = consumption.start(emit_key, max_reconsume_times=2)
    try:
        wait_until(lambda: len(consumption.dead_letters()) > 0, TIMEOUT_S, reason="The dead letter")
        wait_until(
            lambda: {(row["key"], row["attempt"]) for row in consumption.rows()} >= wanted,
            TIMEOUT_S,
            reason="What passed at last",
        )
        wait_until(
            lambda: sum(ack.sent_back for report in consumption.reports for ack in report.acks) >= 6,
            TIMEOUT_S,
            reason="The batch that made the dead letter",
        )
    finally:
        query.stop()

    rows = consumption.rows()
    assert Counter((row["key"], row["attempt"]) for row in rows) == Counter(wanted)
    assert {row["topic_seen"] for row in rows} == {consumption.topic}
    assert {row["topic"] for row in rows} == {consumption.topic, f"%RETRY%{consumption.group}"}
    (dead,) = consumption.dead_letters()
    assert (dead.keys, dead.reconsume_times) == ("later-99", 3)
    assert dead.properties["RETRY_TOPIC"] == consumption.topic
    assert sum(ack.sent_back for report in consumption.reports for ack in report.acks) == 6


@SIM_ONLY
@BOTH_MODES
def test_while_no_broker_takes_a_failed_message_the_offset_stays_and_no_row_is_there_twice(
    consumption: Consumption,
) -> None:
    """E4, E6, H1: rows above the held message leave with the run that passes it."""
    assert isinstance(consumption.cluster.backend, SimCluster)
    faults = consumption.cluster.backend.faults
    keys = [f"key-{number}" for number in range(40)]
    consumption.produce([*keys[:20], "later-2", *keys[20:]])
    # The listener fails twice, and neither the request to the storing broker nor three sends to any is taken.
    faults.add("answer-code", on=RequestCode.CONSUMER_SEND_MSG_BACK, response_code=1, times=2)
    faults.add("answer-code", on=RequestCode.SEND_MESSAGE_V2, response_code=1, times=6)
    started_s = time.monotonic()
    try:
        consumption.drain(emit_key)
        # In real time another plan, as for the first queue of the retry topic, ends the first pause of 5 s.
        pauses_s = 10.0 if consumption.mode is Mode.MICRO_BATCH else 5.0
        assert time.monotonic() - started_s > pauses_s, (
            "a queue that keeps messages waits before it tries again"
        )
        assert faults.pending == 0
    finally:
        faults.clear()

    acks = [ack for report in consumption.reports for ack in report.acks]
    assert [ack.state.reconsume_times for ack in acks if ack.finished == "SUSPENDED"] == [2]
    assert [row["attempt"] for row in consumption.rows() if row["key"] == "later-2"] == [2]
    assert sorted(row["key"] for row in consumption.rows()) == sorted([*keys, "later-2"])
    assert sum(row.next_offset for row in consumption.store.read(consumption.group).values()) == 41
