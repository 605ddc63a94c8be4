"""A Java consumer and a Spark query in one group on a real broker, while orders are produced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.allocation import Averagely
from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.applications.mixed_story import Consumed, OrderlyProducer, by_queue, disorder, repeated
from tests.helpers.allocation import allocate
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.retries import rows_but_retries
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.java.push import PushConsumer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_SPARK = "mixed-spark"
_SPARK_ID = f"{os.uname().nodename}@{_SPARK}"
_KEYS = 24
_TIMEOUT_S = 240
_CALL_S = 60.0


def listener(log: DeliveryLog) -> Callable[..., ConsumeOrderlyStatus]:
    def note(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        log.note(messages)
        return ConsumeOrderlyStatus.SUCCESS

    return note


class MixedGroup:
    """The group's members, and the messages that they have consumed so far."""

    def __init__(
        self, cluster: ClusterUnderTest, java: JavaClients, client: BrokerClient, folder: Path
    ) -> None:
        self.topic = cluster.create_topic(queues=4)
        self.group = cluster.unique_name("mixed")
        self.queues = [
            MessageQueue(self.topic, name, at) for name in ("broker-a", "broker-b") for at in range(4)
        ]
        self.store = DeltaOffsetStore(folder / "offsets")
        self.log = DeliveryLog(folder / "deliveries")
        self._checkpoint = str(folder / "checkpoint")
        self._cluster = cluster
        self._java = java
        self._client = client
        self.java_names: list[str] = []
        """Names of Java members, present or gone."""

    # --- members --------------------------------------------------------------------------------------------

    def start_java(self) -> PushConsumer:
        """Have a Java member join."""
        name = f"{self.group}-java-{len(self.java_names)}"
        self.java_names.append(name)
        return PushConsumer(self._java, name, self.group, self.topic, isOrderly=True)

    def start_spark(self, spark: SparkSession) -> StreamingQuery:
        """Have the Spark member join, and return its query."""
        consumer = push_consumer.PushConsumer(
            consumer_group=self.group,
            name_servers=self._cluster.name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            instance_name=_SPARK,
        )
        consumer.subscribe(self.topic)
        consumer.register_message_listener(listener(self.log), output_schema="unused string")
        return consumer.start(
            spark, checkpoint=self._checkpoint, trigger={"processingTime": "200 milliseconds"}
        )

    # --- what to wait for -----------------------------------------------------------------------------------

    def await_shares(self, java: PushConsumer | None, *, is_spark_there: bool) -> None:
        """Wait until each member has its share by the strategy, and holds its locks."""

        def are_right() -> bool:
            members = self._members()
            if len(members) != (java is not None) + is_spark_there:
                return False
            shares = {each: set(allocate(Averagely(), each, self.queues, members)) for each in members}
            is_right = java is None or any(
                self._locked(java) == share for each, share in shares.items() if each != _SPARK_ID
            )
            return is_right and (not is_spark_there or shares[_SPARK_ID] <= self._claimed())

        wait_until(are_right, _TIMEOUT_S, reason=f"The shares of {self.group}")

    def await_consumed(self, producer: OrderlyProducer, java: PushConsumer | None) -> None:
        """Wait until the present owners have consumed two more rounds of messages in all queues."""
        rounds = producer.rounds + 2
        wait_until(lambda: producer.rounds >= rounds, _TIMEOUT_S, reason="More messages")
        self.await_consumed_to(self.ends(), java)

    def await_consumed_to(self, ends: Mapping[MessageQueue, int], java: PushConsumer | None) -> None:
        """Wait until the members have consumed each queue to its end."""
        wait_until(
            lambda: self._is_behind(ends, java) == {}, _TIMEOUT_S, reason="The consumption to the ends"
        )

    def ends(self) -> dict[MessageQueue, int]:
        """Return the present end of each queue."""
        return {
            queue: self._client.max_offset(self._cluster.broker_addresses[queue.broker_name], queue)
            for queue in self.queues
        }

    def consumed(self) -> Mapping[MessageQueue, list[Consumed]]:
        """Return all deliveries to any member."""
        story = [
            (
                MessageQueue(self.topic, delivery.broker_name, delivery.queue_id),
                Consumed(delivery.delivered_ns / 1e6, "spark", offset),
            )
            for delivery in self.log.deliveries()
            for offset in delivery.queue_offsets
        ]
        for name in self.java_names:
            for event in self._java.call("push.events", name=name, count=0, timeoutMillis=0):
                story += [
                    (
                        MessageQueue(self.topic, event["brokerName"], message["queueId"]),
                        Consumed(event["atMillis"], name, message["queueOffset"]),
                    )
                    for message in event["messages"]
                ]
        return by_queue(story)

    def _members(self) -> tuple[str, ...]:
        """Return the client ids that both brokers list; none while they differ."""
        try:
            listed = {
                tuple(sorted(self._client.consumer_list(address, self.group)))
                for address in self._cluster.broker_addresses.values()
            }
        except BrokerError:
            return ()
        return listed.pop() if len(listed) == 1 else ()

    def _locked(self, java: PushConsumer) -> set[MessageQueue]:
        assignment = self._java.call("push.assignment", name=java.name)
        return {
            MessageQueue(each["topic"], each["brokerName"], each["queueId"])
            for each in assignment
            if each["topic"] == self.topic and each["isLocked"]
        }

    def _claimed(self) -> set[MessageQueue]:
        return {
            queue
            for queue, row in rows_but_retries(self.store.read(self.group)).items()
            if row.owner_id == _SPARK_ID
        }

    def _is_behind(
        self, ends: Mapping[MessageQueue, int], java: PushConsumer | None
    ) -> dict[MessageQueue, int]:
        """Queues not consumed to ``ends``, by the store and by the Java member's offsets at the brokers."""
        if java is not None:
            java.persist()
        rows = self.store.read(self.group)
        of_spark = {queue: row.next_offset for queue, row in rows.items()}
        behind = {queue: end for queue, end in ends.items() if of_spark.get(queue, 0) < end}
        if java is None:
            return behind
        return {
            queue: end
            for queue, end in behind.items()
            if self._client.query_consumer_offset(
                self._cluster.broker_addresses[queue.broker_name], self.group, queue
            )
            < end
        }


@pytest.fixture
def java(cluster: ClusterUnderTest, tmp_path: Path) -> Iterator[JavaClients]:
    """Yield a JVM with Java's clients, which look at their group every two seconds."""
    with JavaClients(cluster.name_servers, tmp_path, rebalance_interval_ms=2000) as clients:
        yield clients


@pytest.fixture
def client() -> Iterator[BrokerClient]:
    """Our own calls, to look at brokers."""
    with ChannelPool(SystemClock()) as pool:
        yield BrokerClient(pool, SystemClock(), request_timeout_s=_CALL_S)


@pytest.mark.long
@REAL_ONLY
def test_java_and_spark_members_share_a_group_and_hand_its_queues_over(
    spark: SparkSession, cluster: ClusterUnderTest, java: JavaClients, client: BrokerClient, tmp_path: Path
) -> None:
    """B1, B5, B7, C3: joined and left while messages come; all consumed, each queue in order,
    no message passed over.
    """
    group = MixedGroup(cluster, java, client, tmp_path)
    with OrderlyProducer(cluster.name_servers, group.topic, _KEYS) as producer:
        first = group.start_java()
        group.await_shares(first, is_spark_there=False)
        group.await_consumed(producer, first)

        query = group.start_spark(spark)
        try:
            group.await_shares(first, is_spark_there=True)
            group.await_consumed(producer, first)

            # Its last report may come late.
            first.persist()
            first.stop().result(_TIMEOUT_S)
            group.await_shares(None, is_spark_there=True)
            group.await_consumed(producer, None)

            second = group.start_java()
            group.await_shares(second, is_spark_there=True)
            group.await_consumed(producer, second)
        finally:
            query.stop()
        # The Spark member has left, and the Java member continues without it.
        group.await_shares(second, is_spark_there=False)
        sent = producer.end()
        ends = group.ends()
        group.await_consumed_to(ends, second)
        second.stop().result(_TIMEOUT_S)

    assert sum(ends.values()) == sent
    assert all(ends.values())
    story = group.consumed()
    assert {queue: {one.queue_offset for one in each} for queue, each in story.items()} == {
        queue: set(range(end)) for queue, end in ends.items()
    }
    assert [problem for queue, each in story.items() for problem in disorder(queue, each)] == []
    members = {one.member for each in story.values() for one in each}
    assert members == {"spark", *group.java_names}
    # A handover in good order repeats nothing, unless the last report to the broker comes late.
    assert sum(map(repeated, story.values())) <= sent // 20
