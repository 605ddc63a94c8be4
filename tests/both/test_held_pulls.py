"""Ranges without an end on a broker: it holds their pulls, and a message ends that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.model import OPEN_END, Message, MessageQueue, QueueRange
from pyspark_rocketmq.source.range_arrivals import RangeArrivals
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.schema import Arrival
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.partitions import partition_of

QUEUES = 2
BEFORE = 40


@pytest.fixture
def queues(cluster: ClusterUnderTest, client: BrokerClient, address: str) -> Iterator[list[MessageQueue]]:
    """The queues of a topic on broker-a, each with 40 messages."""
    topic = cluster.create_topic(queues=QUEUES, brokers=["broker-a"])
    made = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(QUEUES)]
    for queue in made:
        send(client, address, queue, range(BEFORE))
        await_readable(client, address, queue, BEFORE)
    yield made
    close_idle_connections()


def send(client: BrokerClient, address: str, queue: MessageQueue, numbers: range) -> None:
    members = tuple(
        Message(topic=queue.topic, body=b"%d" % number, properties={"TAGS": "odd" if number % 2 else "even"})
        for number in numbers
    )
    batch = Batch(queue=queue, messages=members, properties={})
    client.send_batch(address, batch, SendSettings(producer_group="tests"))


def open_range(queue: MessageQueue, address: str, start: int = 0) -> QueuePartition:
    return partition_of(
        QueueRange.between(queue, start, OPEN_END),
        address,
        consumer_group="readers",
        is_group_read=True,
        pull_batch_size=32,
        request_timeout_s=ANSWER_S,
    )


class Reader:
    """Reads the ranges and keeps the offsets of what arrives, by queue id."""

    def __init__(self, queues: list[QueuePartition]) -> None:
        self.found: dict[int, list[int]] = {queue_id: [] for queue_id in range(len(queues))}
        self._ranges = RangeArrivals(queues)
        self._arrivals = self._ranges.arrivals(within_s=0.1)

    def read_until(self, expected: dict[int, list[int]]) -> None:
        deadline_s = time.monotonic() + 4 * ANSWER_S
        while self.found != expected:
            assert time.monotonic() < deadline_s, self.found
            for each in next(self._arrivals):
                assert each.end is None
                self.found[each.queue.queue_id] += offsets_of(each)

    def read_to_ends(self) -> dict[int, int]:
        """Return where the ranges ended, by queue id."""
        ends: dict[int, int] = {}
        for arrivals in self._arrivals:
            for each in arrivals:
                self.found[each.queue.queue_id] += offsets_of(each)
                if each.end is not None:
                    ends[each.queue.queue_id] = each.end.planned.end
        return ends

    def close(self) -> None:
        self._ranges.end()
        assert all(each.end is not None for arrivals in self._arrivals for each in arrivals)


def offsets_of(arrival: Arrival) -> list[int]:
    offsets: list[int] = []
    for messages in arrival.messages:
        if isinstance(messages, list):
            offsets += [message.queue_offset for message in messages]
        else:
            offsets += messages.column("queueOffset").to_pylist()
    return offsets


def test_messages_arrive_while_pulls_are_held(
    client: BrokerClient, address: str, queues: list[MessageQueue]
) -> None:
    """D1, A4: one after the other and many together."""
    reader = Reader([open_range(queue, address) for queue in queues])
    expected = {queue_id: list(range(BEFORE)) for queue_id in range(QUEUES)}
    reader.read_until(expected)

    for end in (BEFORE + 1, BEFORE + 2, BEFORE + 3):
        send(client, address, queues[0], range(1))
        expected[0] = list(range(end))
        reader.read_until(expected)
    send(client, address, queues[1], range(100))
    expected[1] = list(range(BEFORE + 100))
    reader.read_until(expected)
    reader.close()


def test_a_filter_ends_the_wait_only_for_its_messages(
    client: BrokerClient, address: str, queues: list[MessageQueue]
) -> None:
    """A4"""
    reader = Reader([replace(open_range(queues[0], address), subscription="odd")])
    expected = {0: list(range(1, BEFORE, 2))}
    reader.read_until(expected)
    send(client, address, queues[0], range(1))
    send(client, address, queues[0], range(1, 2))

    expected[0].append(BEFORE + 1)
    reader.read_until(expected)
    reader.close()


def test_a_broker_that_is_started_again_ends_the_ranges_and_the_next_ones_have_the_rest(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queues: list[MessageQueue]
) -> None:
    """F4: nothing is lost or doubled, and the next ranges begin with a comparison of the logs."""
    reader = Reader([open_range(queue, address) for queue in queues])
    expected = {queue_id: list(range(BEFORE)) for queue_id in range(QUEUES)}
    reader.read_until(expected)
    cluster.stop_broker("broker-a")
    cluster.start_broker("broker-a")
    await_readable(client, address, queues[0], BEFORE)
    for queue in queues:
        send(client, address, queue, range(3))

    assert reader.read_to_ends() == dict.fromkeys(range(QUEUES), BEFORE)
    assert reader.found == expected
    again = Reader([open_range(queue, address, BEFORE) for queue in queues])
    again.read_until({queue_id: list(range(BEFORE, BEFORE + 3)) for queue_id in range(QUEUES)})
    again.close()
