"""A real master that sends its readers to a real replica, and one that is down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullStatus
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings
from tests.both.support import await_readable
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.group_query import SOON_S, GroupQuery, await_consumed
from tests.helpers.partitions import changed
from tests.helpers.wait import wait_until
from tests.real_broker.replica import ACTING, REPLICA_ID, acting_masters, replica, suggesting_replicas
from tests.real_broker.server import Server

COUNT = 1000
COMMIT_LOG_FILE = 64 << 20
_IN_FLIGHT = 128 << 10
"""Bytes: so few that half of the messages cannot be on their way when the replica dies."""


def partitions_of(options: ReadOptions) -> list[QueuePartition]:
    partitions = RocketMQBatchReader(options).partitions()
    return [partition for partition in partitions if isinstance(partition, QueuePartition)]


@pytest.fixture
def queue(cluster: ClusterUnderTest, client: BrokerClient) -> Iterator[MessageQueue]:
    """A queue on broker-b with a thousand messages of 1 KiB, all in the newest file of the commit log.

    A new replica gets no older file (``DefaultHAConnection.WriteSocketService``).
    """
    address = cluster.broker_addresses["broker-b"]
    filled = fill(cluster, client, address)
    if len({position // COMMIT_LOG_FILE for position in positions_of_ends(client, address, filled)}) > 1:
        filled = fill(cluster, client, address)
    yield filled
    close_idle_connections()


def fill(cluster: ClusterUnderTest, client: BrokerClient, address: str) -> MessageQueue:
    queue = MessageQueue(cluster.create_topic(queues=1, brokers=["broker-b"]), "broker-b", 0)
    send(client, address, queue, COUNT)
    await_readable(client, address, queue, COUNT)
    return queue


def send(client: BrokerClient, address: str, queue: MessageQueue, count: int) -> None:
    for first in range(0, count, 100):
        members = [Message(topic=queue.topic, body=b"x" * 1024)] * min(100, count - first)
        batch = Batch(queue=queue, messages=members, properties={})
        client.send_batch(address, batch, SendSettings(producer_group="tests"))


def positions_of_ends(client: BrokerClient, address: str, queue: MessageQueue) -> list[int]:
    """Where the first and the last message are in the commit log."""
    positions = []
    for queue_offset in (0, COUNT - 1):
        request = PullRequest(
            consumer_group="readers", queue=queue, queue_offset=queue_offset, max_msg_nums=1
        )
        found = decode_messages(client.pull(address, request).body, "broker-b")
        positions.append(found[0].commit_log_offset)
    return positions


def has_all(client: BrokerClient, queue: MessageQueue) -> Callable[[str], bool]:
    """Whether the server at an address has the queue's last message."""
    last = PullRequest(consumer_group="readers", queue=queue, queue_offset=COUNT - 1)

    def is_there(address: str) -> bool:
        try:
            return client.pull(address, last).status is PullStatus.FOUND
        except RocketMQError:
            return False

    return is_there


@REAL_ONLY
def test_a_range_is_read_from_the_replica_and_from_the_master_again_when_that_dies(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue
) -> None:
    """A4: suggestWhichBrokerId of a real broker; nothing lost, nothing twice."""
    master_address = cluster.broker_addresses["broker-b"]
    options = ReadOptions.parse({"topic": queue.topic, "nameServers": cluster.name_servers})
    with (
        replica(cluster.name_servers, "broker-b", master_address, has_all(client, queue)) as server,
        suggesting_replicas(master_address),
    ):
        wait_until(
            lambda: partitions_of(options)[0].replicas,
            180.0,
            reason="The replica in the topic's route",
        )
        partitions = partitions_of(options)
        assert partitions[0].replicas == {REPLICA_ID: server.address}
        offsets: list[int] = []
        pulled_from: list[int] = []
        fetcher = Fetcher([changed(each, max_in_flight_bytes=_IN_FLIGHT) for each in partitions])
        for fetched in chain.from_iterable(fetcher.arrivals()):
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


TAIL = 2000
"""So many messages of 1 KiB do not fit into the sockets between a master and a replica that reads nothing."""


@pytest.mark.long
@REAL_ONLY
def test_a_slave_is_read_while_its_master_is_down_and_the_tail_when_that_is_back(
    cluster: ClusterUnderTest, client: BrokerClient, pool: ChannelPool, queue: MessageQueue, group: str
) -> None:
    """L3: a batch and a concurrent group; nothing lost, nothing twice, and no tail counted as read."""
    master_address = cluster.broker_addresses["broker-b"]

    def slave_in_route() -> bool:
        found = partitions_of(options)
        return bool(found) and (found[0].is_slave or bool(found[0].replicas))

    plain = {"topic": queue.topic, "nameServers": cluster.name_servers, "retryTimeoutMs": "1000"}
    options = ReadOptions.parse(plain)
    store = MemoryOffsetStore(group, clock=SystemClock())
    of_group = {
        "consumerGroup": group,
        "offsetStore": store.spec,
        "consumeOrderly": "false",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "300",
        "routeRefreshMs": "1",
    }
    with replica(cluster.name_servers, "broker-b", master_address, has_all(client, queue)) as server:
        wait_until(slave_in_route, 180.0, reason="The replica in the topic's route")
        query = GroupQuery("one", ReadOptions.parse(plain | of_group), store, pool)
        try:
            consumed = [message.queue_offset for _, message in await_consumed(query, 300)]
            cluster.stop_broker("broker-b")
            wait_until(lambda: read_offsets(options) == list(range(COUNT)), 60.0, reason="a batch")
            consumed += [message.queue_offset for _, message in await_consumed(query, COUNT - 300)]

            cluster.start_broker("broker-b")
            send(client, master_address, queue, 1)
            await_readable(client, server.address, queue, COUNT + 1)
            with standing_still(server):
                send(client, master_address, queue, TAIL)
                await_readable(client, master_address, queue, COUNT + 1 + TAIL)
                cluster.stop_broker("broker-b")
            consumed += all_that_the_slave_has(query, options, len(consumed))

            assert COUNT < len(consumed) < COUNT + 1 + TAIL
            assert consumed == list(range(len(consumed)))

            cluster.start_broker("broker-b")
            left = COUNT + 1 + TAIL - len(consumed)
            consumed += [message.queue_offset for _, message in await_consumed(query, left)]
            assert consumed == list(range(COUNT + 1 + TAIL))
            assert read_offsets(options) == consumed
        finally:
            query.member.stop(SOON_S)


@pytest.mark.long
@REAL_ONLY
def test_a_replica_that_acts_as_master_proves_no_loss(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    pool: ChannelPool,
    queue: MessageQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F4, L3: an orderly group, which goes on with what the replica has and waits for what it lacks."""
    master_address = cluster.broker_addresses["broker-b"]
    group = cluster.unique_name("group")
    store = MemoryOffsetStore(group, clock=SystemClock())
    options = {
        "topic": queue.topic,
        "nameServers": cluster.name_servers,
        "retryTimeoutMs": "1000",
        "consumerGroup": group,
        "offsetStore": store.spec,
        "startingOffsets": "earliest",
        "routeRefreshMs": "1",
        "failOnDataLoss": "false",
    }
    with (
        acting_masters(cluster.name_servers, master_address),
        replica(
            cluster.name_servers, "broker-b", master_address, has_all(client, queue), more=ACTING
        ) as server,
    ):
        query = GroupQuery("one", ReadOptions.parse(options), store, pool)
        try:
            consumed = [message.queue_offset for _, message in await_consumed(query, COUNT)]
            with standing_still(server):
                send(client, master_address, queue, TAIL)
                consumed += [message.queue_offset for _, message in await_consumed(query, TAIL)]
                cluster.stop_broker("broker-b")
            seen = f"for the master broker=broker-b slave={server.address}"
            wait_until(
                lambda: query.consumed() == {} and seen in caplog.text, reason="A plan from the replica"
            )
            [row] = [each for each in store.read(group).values() if each.queue == queue]
            assert (row.next_offset, row.generation) == (COUNT + TAIL, 0)

            cluster.start_broker("broker-b")
            send(client, master_address, queue, 1)
            consumed += [message.queue_offset for _, message in await_consumed(query, 1)]
            assert consumed == list(range(COUNT + TAIL + 1))
        finally:
            query.member.stop(SOON_S)


@contextmanager
def standing_still(server: Server) -> Iterator[None]:
    """A server that lives and does nothing."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


def all_that_the_slave_has(query: GroupQuery, options: ReadOptions, before: int) -> list[int]:
    """Offsets consumed until a batch reads no more than that; what is on its way to the slave may still come."""
    consumed: list[int] = []

    def is_everything() -> bool:
        consumed.extend(message.queue_offset for each in query.consumed().values() for message in each)
        return bool(consumed) and read_offsets(options) == list(range(before + len(consumed)))

    wait_until(is_everything, reason="A group that has consumed what a batch reads of the slave")
    return consumed


def read_offsets(options: ReadOptions) -> list[int]:
    """What a batch reads of the only queue, by what its tasks pull; empty while it cannot be planned."""
    try:
        partitions = partitions_of(options)
    except RocketMQError:
        return []
    fetched = list(chain.from_iterable(Fetcher(partitions).arrivals()))
    assert [each.failure for each in fetched if each.failure is not None] == []
    return [offset for each in fetched for chunk in each.chunks for offset in offsets_of(bytes(chunk.body))]
