"""A real master that sends its readers to a real replica."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest, PullStatus, SendTerms
from pyspark_rocketmq.client.pull_connection import close_idle_lines
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.send import Batch
from tests.both.support import await_readable
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.real_broker.replica import REPLICA_ID, replica, suggesting_replicas

COUNT = 1000
COMMIT_LOG_FILE = 64 << 20
_IN_FLIGHT = 128 << 10
"""Bytes: so few that half of the messages cannot be on their way when the replica dies."""


@pytest.fixture
def queue(cluster: ClusterUnderTest, client: BrokerClient):
    """A queue on broker-b with a thousand messages of 1 KiB, all in the newest file of the commit log.

    A new replica gets no older file (``DefaultHAConnection.WriteSocketService``).
    """
    address = cluster.broker_addresses["broker-b"]
    filled = fill(cluster, client, address)
    if len({position // COMMIT_LOG_FILE for position in positions_of_ends(client, address, filled)}) > 1:
        filled = fill(cluster, client, address)
    yield filled
    close_idle_lines()


def fill(cluster: Any, client: Any, address: Any) -> MessageQueue:
    queue = MessageQueue(cluster.create_topic(queues=1, brokers=["broker-b"]), "broker-b", 0)
    members = [Message(topic=queue.topic, body=b"x" * 1024)] * 100
    for _ in range(COUNT // 100):
        batch = Batch(queue=queue, messages=members, properties={})
        client.send_batch(address, batch, SendTerms(producer_group="tests"))
    await_readable(client, address, queue, COUNT)
    return queue


def positions_of_ends(client: Any, address: Any, queue: Any) -> list[int]:
    """Where the first and the last message are in the commit log."""
    positions = []
    for queue_offset in (0, COUNT - 1):
        request = PullRequest(
            consumer_group="readers", queue=queue, queue_offset=queue_offset, max_msg_nums=1
        )
        found = decode_messages(client.pull(address, request).body, "broker-b")
        positions.append(found[0].commit_log_offset)
    return positions


@REAL_ONLY
def test_a_range_is_read_from_the_replica_and_from_the_master_again_when_that_dies(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue
) -> None:
    """A4: suggestWhichBrokerId of a real broker; nothing lost, nothing twice."""

    def has_all(address: str) -> bool:
        last = PullRequest(consumer_group="readers", queue=queue, queue_offset=COUNT - 1)
        try:
            return client.pull(address, last).status is PullStatus.FOUND
        except RocketMQError:
            return False

    master_address = cluster.broker_addresses["broker-b"]
    options = ReadOptions.parse({"topic": queue.topic, "nameServers": cluster.name_servers})
    with (
        replica(cluster.name_servers, "broker-b", master_address, has_all) as server,
        suggesting_replicas(master_address),
    ):
        wait_until(
            lambda: RocketMQBatchReader(options).partitions()[0].replicas,
            180.0,
            reason="The replica in the topic's route",
        )
        partitions = RocketMQBatchReader(options).partitions()
        assert partitions[0].replicas == {REPLICA_ID: server.address}
        offsets: list[int] = []
        pulled_from: list[int] = []
        fetcher = Fetcher([replace(each, max_in_flight_bytes=_IN_FLIGHT) for each in partitions])
        for fetched in chain.from_iterable(fetcher.chunks()):
            assert fetched.failure is None
            offsets += offsets_of(b"".join(chunk.body for chunk in fetched.chunks))
            pulled_from.append(fetcher.ranges[0].broker_id)
            if len(offsets) > COUNT // 2:
                server.kill()

    assert offsets == list(range(COUNT))
    assert REPLICA_ID in pulled_from
    assert pulled_from[-1] == 0


def offsets_of(body: bytes) -> list[int]:
    return [message.queue_offset for message in decode_messages(body, "broker-b")]
