"""Java's concurrent push consumer and a concurrent query of ours in one group,
on the same topic of a real broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.model import Message, MessageQueue, retry_topic
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.modes import Mode
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.java.conftest import REAL
from tests.java.push import PushConsumer
from tests.java.spark_run import Script, SparkConsumer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("backend", [REAL], indirect=True, scope="package"),
]

_PER_QUEUE = 20
_FAILS_ONCE = ("RECONSUME_LATER", "CONSUME_SUCCESS")


class Group:
    """The group, its two members, and the messages that each of them got."""

    def __init__(self, cluster: ClusterUnderTest, java: JavaClients, client: BrokerClient) -> None:
        self.cluster = cluster
        self.topic = cluster.create_topic(queues=2)
        self.name = cluster.unique_name("concurrent")
        self.own = [
            MessageQueue(self.topic, broker, queue_id)
            for broker in cluster.broker_addresses
            for queue_id in (0, 1)
        ]
        self.retry = [MessageQueue(retry_topic(self.name), broker, 0) for broker in cluster.broker_addresses]
        self.keys = {
            queue: [f"{queue.broker_name}-{queue.queue_id}-{at}" for at in range(_PER_QUEUE)]
            for queue in self.own
        }
        self.failing = [key for keys in self.keys.values() for key in keys[::5]]
        self.answers = dict.fromkeys(self.failing, _FAILS_ONCE)
        self._java_clients = java
        self._client = client
        self.java = PushConsumer(
            java, f"{self.name}-java", self.name, self.topic, isOrderly=False, answers=self.answers
        )

    def spark_member(self, spark: SparkSession, folder: Path, mode: Mode) -> SparkConsumer:
        """Return the Spark member, which joins when it begins to plan."""
        return SparkConsumer(
            spark,
            folder,
            Script(self.answers, str(folder)),
            name_servers=self.cluster.name_servers,
            group=self.name,
            topic=self.topic,
            mode=mode,
            orderly=False,
            instance_name=self.name,
        )

    def await_shares(self, spark: SparkConsumer) -> dict[MessageQueue, str]:
        """Wait until each member has half of the queues of the topic and of the retry topic;
        return the owners.
        """
        owner = f"{os.uname().nodename}@{self.name}"
        all_queues, shares = {*self.own, *self.retry}, dict[str, set[MessageQueue]]()

        def are_shared() -> bool:
            assignment = self._java_clients.call("push.assignment", name=self.java.name)
            shares["java"] = {
                MessageQueue(each["topic"], each["brokerName"], each["queueId"]) for each in assignment
            } & all_queues
            rows = spark.store.read(self.name)
            shares["spark"] = {queue for queue, row in rows.items() if row.owner_id == owner}
            # Each topic is shared by itself, and not at the same moment.
            are_halves = all(
                len(each.intersection(topic)) == len(topic) // 2
                for each in shares.values()
                for topic in (self.own, self.retry)
            )
            return are_halves and shares["java"] | shares["spark"] == all_queues

        wait_until(are_shared, 3 * ANSWER_S, reason="Both members with a share each")
        return {queue: member for member, queues in shares.items() for queue in queues}

    def send(self) -> None:
        """Put all messages into their queues."""
        for queue, keys in self.keys.items():
            for key in keys:
                message = Message(topic=queue.topic, body=key.encode(), properties={"KEYS": key})
                address = self.cluster.broker_addresses[queue.broker_name]
                self._client.send(address, message, queue, SendSettings(producer_group="tests"))

    def await_committed(self) -> None:
        """Wait until the brokers have the group's offsets at the ends of all queues,
        those of the retry topic too.
        """

        def is_all() -> bool:
            self.java.persist()
            return all(self._committed(queue) == self._end(queue) for queue in (*self.own, *self.retry))

        wait_until(is_all, 3 * ANSWER_S, reason="Committed offsets at the ends")

    def calls(self, spark: SparkConsumer) -> dict[str, list[Mapping[str, Any]]]:
        """Return each member's calls: one message each."""
        events = self._java_clients.call("push.events", name=self.java.name, count=0, timeoutMillis=0)
        return {"java": events, "spark": spark.script.events()}

    def _committed(self, queue: MessageQueue) -> int:
        address = self.cluster.broker_addresses[queue.broker_name]
        return self._client.query_consumer_offset(address, self.name, queue)

    def _end(self, queue: MessageQueue) -> int:
        return self._client.max_offset(self.cluster.broker_addresses[queue.broker_name], queue)


def keys_of(events: Iterable[Mapping[str, Any]], *, retried: bool) -> list[str]:
    """Return the keys of first deliveries, or of those that came again."""
    messages = [message for event in events for message in event["messages"]]
    return [message["key"] for message in messages if bool(message["reconsumeTimes"]) == retried]


@pytest.mark.parametrize("mode", [Mode.MICRO_BATCH, pytest.param(Mode.REAL_TIME, marks=pytest.mark.long)])
def test_java_and_spark_share_a_group_of_concurrent_listeners(
    spark: SparkSession,
    cluster: ClusterUnderTest,
    java: JavaClients,
    client: BrokerClient,
    tmp_path: Path,
    *,
    mode: Mode,
) -> None:
    """B1, B7, E3, E6, F1: a queue has one owner, failed messages come again at their retry queue's owner,
    and every offset ends at the queue's end.
    """
    group = Group(cluster, java, client)
    with group.spark_member(spark, tmp_path, mode) as ours:
        has = group.await_shares(ours)
        group.send()
        succeeded: set[str] = set()

        def are_consumed() -> bool:
            both = [event for events in group.calls(ours).values() for event in events]
            succeeded.update(
                message["key"]
                for event in both
                for message in event["messages"]
                if event["result"] == "CONSUME_SUCCESS"
            )
            return len(succeeded) == sum(map(len, group.keys.values()))

        wait_until(are_consumed, 3 * ANSWER_S, reason="Every message consumed by one of them")
        group.await_committed()
        calls = group.calls(ours)
        group.java.stop().result(2 * ANSWER_S)

    for member, events in calls.items():
        mine = [key for queue, keys in group.keys.items() if has[queue] == member for key in keys]
        assert sorted(keys_of(events, retried=False)) == sorted(mine), member
        # A message is given back to the broker that stores it, which has one retry queue.
        brokers = {queue.broker_name for queue in group.retry if has[queue] == member}
        again = {key for key in group.failing if any(key.startswith(broker) for broker in brokers)}
        assert set(keys_of(events, retried=True)) == again, member
