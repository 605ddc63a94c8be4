"""Many queues of a broker over one connection, read while the broker does what brokers do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.model import Message, MessageQueue, QueueRange
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_queues
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.partitions import changed, partition_of

QUEUES = 4
PER_QUEUE = 300


@pytest.fixture
def ranges(cluster: ClusterUnderTest, client: BrokerClient, address: str) -> Iterator[list[QueuePartition]]:
    """The queues of a topic on broker-a, each with 300 messages of two tags."""
    topic = cluster.create_topic(queues=QUEUES, brokers=["broker-a"])
    wanted = []
    for queue_id in range(QUEUES):
        queue = MessageQueue(topic, "broker-a", queue_id)
        for begun in range(0, PER_QUEUE, 100):
            members = tuple(message(topic, number) for number in range(begun, begun + 100))
            batch = Batch(queue=queue, messages=members, properties={})
            client.send_batch(address, batch, SendSettings(producer_group="tests"))
        await_readable(client, address, queue, PER_QUEUE)
        wanted.append(partition(queue, address))
    yield wanted
    close_idle_connections()


def message(topic: str, number: int) -> Message:
    tag = "tens" if number % 10 == 0 else "others"
    return Message(topic=topic, body=f"{number:06d}".encode() * 100, properties={"TAGS": tag})


def partition(queue: MessageQueue, address: str) -> QueuePartition:
    return partition_of(
        QueueRange.between(queue, 0, PER_QUEUE),
        address,
        consumer_group="readers",
        pull_batch_size=32,
        pulls_in_flight=16,
        request_timeout_s=ANSWER_S,
        retry_timeout_s=6 * ANSWER_S,
    )


def read(ranges: list[QueuePartition]) -> dict[int, list[int]]:
    """Queue offsets by queue."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for of, batch in read_queues(ranges):
        assert set(batch.column("queueId").to_pylist()) == {of.planned.queue.queue_id}
        offsets[of.planned.queue.queue_id] += batch.column("queueOffset").to_pylist()
    return dict(offsets)


def test_all_queues_arrive_each_in_order(ranges: list[QueuePartition]) -> None:
    """D1, A4"""
    assert read(ranges) == {queue_id: list(range(PER_QUEUE)) for queue_id in range(QUEUES)}


def test_a_filter_leaves_the_matching_messages_of_each_queue(ranges: list[QueuePartition]) -> None:
    """A4: the broker scans on; only nextBeginOffset says how far."""
    filtered = [replace(each, subscription="tens") for each in ranges]

    assert read(filtered) == {queue_id: list(range(0, PER_QUEUE, 10)) for queue_id in range(QUEUES)}


def test_a_broker_that_is_started_again_in_the_middle_loses_and_doubles_nothing(
    cluster: ClusterUnderTest, ranges: list[QueuePartition]
) -> None:
    """A2"""
    reached = [0] * QUEUES
    fetched = Fetcher([changed(each, max_in_flight_bytes=256 << 10) for each in ranges]).arrivals()
    first = next(fetched)
    cluster.stop_broker("broker-a")
    cluster.start_broker("broker-a")

    for each in chain(first, *fetched):
        assert each.failure is None
        for chunk in each.chunks:
            assert chunk.start == reached[each.range_index]
            reached[each.range_index] = chunk.limit

    assert not any(each.is_last for each in first)
    assert reached == [PER_QUEUE] * QUEUES
