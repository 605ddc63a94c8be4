"""A Java member joins a group whose Spark query has a batch under way,
or minutes to wait for its next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, Message, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.java.push import PushConsumer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_PATIENCE_S = 240.0
_CALL_S = 0.5
_EACH = 60
"""Messages of a queue: with two tasks at a time, a batch of four queues takes a minute, three times as long as
a Java member waits before it balances; calls are short once it has its share.
"""


class Group:
    """A Spark query with a trigger of five minutes, a slow listener and a sink; and Java members."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: ClusterUnderTest,
        java: JavaClients,
        folder: Path,
        commit_interval: str | None,
    ) -> None:
        self.topic = cluster.create_topic(queues=4)
        self.queues = [
            MessageQueue(self.topic, name, number) for name in cluster.broker_addresses for number in range(4)
        ]
        self.log = DeliveryLog(folder / "deliveries")
        self.sink = str(folder / "sink")
        self.reports: list[BatchReport] = []
        self.store = DeltaOffsetStore(folder / "offsets")
        self._group = cluster.unique_name("handover")
        self._cluster = cluster
        self._java = java
        self._names: list[str] = []
        self.send(_EACH)
        consumer = push_consumer.PushConsumer(
            consumer_group=self._group,
            name_servers=cluster.name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            commit_interval=commit_interval,
        )
        consumer.subscribe(self.topic)
        log = self.log
        self._is_shared = is_shared = folder / "shared"

        def note(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            log.note(messages)
            if not is_shared.exists():
                time.sleep(_CALL_S)
            context.emit(body=messages[0].body.decode())
            return ConsumeOrderlyStatus.SUCCESS

        consumer.register_message_listener(note, output_schema="body string")
        consumer.register_batch_listener(self.reports.append)
        self.query = consumer.start(
            spark,
            sink=DeltaSink(self.sink),
            checkpoint=folder / "checkpoint",
            trigger={"processingTime": "5 minutes"},
        )

    def send(self, each: int) -> None:
        with Producer(self._cluster.name_servers, "P", send_timeout_s=60.0) as producer:
            for queue in self.queues:
                producer.send_batch([Message(topic=self.topic, body=b"x") for _ in range(each)], queue)

    def hurry(self) -> None:
        """Make the calls that follow short."""
        self._is_shared.touch()

    def join(self) -> PushConsumer:
        name = f"{self._group}-java-{len(self._names)}"
        self._names.append(name)
        return PushConsumer(self._java, name, self._group, self.topic, isOrderly=True)

    def locked(self, member: PushConsumer) -> set[MessageQueue]:
        assignment = self._java.call("push.assignment", name=member.name)
        return {
            MessageQueue(each["topic"], each["brokerName"], each["queueId"])
            for each in assignment
            if each["topic"] == self.topic and each["isLocked"]
        }

    def await_share(self, member: PushConsumer, what: str) -> set[MessageQueue]:
        """Wait until a member that has just joined has half of the queues; print how long that took."""
        began_s = time.monotonic()
        wait_until(
            lambda: len(self.locked(member)) == len(self.queues) // 2,
            _PATIENCE_S,
            reason=f"Its share of {what}",
        )
        print(f"  a Java member had its queues after {time.monotonic() - began_s:.2f} s, {what}")  # noqa: T201 - a figure
        return self.locked(member)

    def by_java(self) -> dict[MessageQueue, list[tuple[float, int]]]:
        """Times and offsets that a Java member consumed, in the order of the calls."""
        found: dict[MessageQueue, list[tuple[float, int]]] = {}
        for name in self._names:
            for event in self._java.call("push.events", name=name, count=0, timeoutMillis=0):
                for message in event["messages"]:
                    queue = MessageQueue(self.topic, event["brokerName"], message["queueId"])
                    found.setdefault(queue, []).append((event["atMillis"] / 1e3, message["queueOffset"]))
        return found

    def by_spark(self) -> dict[MessageQueue, list[tuple[float, int]]]:
        """Times and offsets of the query's listener, in the order of the calls."""
        found: dict[MessageQueue, list[tuple[float, int]]] = {}
        for delivery in self.log.deliveries():
            queue = MessageQueue(self.topic, delivery.broker_name, delivery.queue_id)
            found.setdefault(queue, []).extend(
                (delivery.delivered_ns / 1e9, at) for at in delivery.queue_offsets
            )
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the positions of the sink's rows."""
        columns = ["brokerName", "queueId", "queueOffset"]
        table = DeltaTable(self.sink).to_pyarrow_table(columns=columns)
        return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


@pytest.fixture
def java(cluster: ClusterUnderTest, tmp_path: Path) -> Iterator[JavaClients]:
    with JavaClients(cluster.name_servers, tmp_path, rebalance_interval_ms=20_000) as clients:
        yield clients


@pytest.fixture(params=[None, "200ms"], ids=["one-commit", "with-commits"])
def group(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cluster: ClusterUnderTest,
    java: JavaClients,
    tmp_path: Path,
) -> Iterator[Group]:
    running = Group(spark, cluster, java, tmp_path, request.param)
    yield running
    running.query.stop()


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param("sim", marks=[pytest.mark.sim, pytest.mark.long]),
        pytest.param("real", marks=pytest.mark.real),
    ],
    indirect=True,
)
def test_a_java_member_has_its_queues_within_the_call_in_hand_whatever_the_trigger(group: Group) -> None:
    """B5 ★, D7 ★: while the batch is under way, and between two of them; in order,
    and nothing twice in the sink.
    """
    wait_until(group.log.deliveries, _PATIENCE_S, reason="A batch under way")
    member = group.join()
    share = group.await_share(member, f"with a batch under way and calls of {_CALL_S} s")
    now_s = time.time()
    assert not group.query.recentProgress or not any(
        each["numInputRows"] for each in group.query.recentProgress
    )
    group.hurry()

    # What was handed over comes to its end at the Java member, the rest in the batch.
    total = len(group.queues) * _EACH

    def is_consumed() -> bool:
        return sum(map(len, group.by_java().values())) + len(group.rows()) >= total

    wait_until(is_consumed, _PATIENCE_S, reason=f"{total} messages consumed")
    spark, of_java = group.by_spark(), group.by_java()
    assert max(at for queue in set(group.queues) - share for at, _ in spark[queue]) > now_s
    assert set(of_java) <= share
    for queue in group.queues:
        story = sorted(spark.get(queue, []) + of_java.get(queue, []))
        assert [offset for _, offset in story] == list(range(_EACH)), queue
    rows = group.rows()
    assert len(rows) == len(set(rows)) == total - sum(map(len, of_java.values()))

    # The next batch is minutes away. The Java member leaves, its queues are Spark's again; another one joins.
    member.stop().result(_PATIENCE_S)
    another = group.join()
    share = group.await_share(another, "between two batches")
    group.send(1)
    wait_until(
        lambda: (
            {queue for queue, story in group.by_java().items() if len(story) and story[-1][1] == _EACH}
            >= share
        ),
        _PATIENCE_S,
        reason="The new messages of its queues",
    )
    assert len(group.rows()) == len(rows)
