"""Broadcasting: every instance plans every queue, keeps its own progress,
and does not touch the broker's offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, OffsetError, OffsetNotFound
from pyspark_rocketmq.group.join import client_id, join_group, offset_key
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.positions import LATEST
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source import queue_claims
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.planner import MicroBatchPlanner
from pyspark_rocketmq.source.progress import GroupProgress
from pyspark_rocketmq.source.queue_claims import await_sole_owner, living_members
from pyspark_rocketmq.source.ranges import Offset
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from pyspark_rocketmq.source.start_positions import OptionPositions
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.orders import produce_orders
from tests.helpers.wait import wait_until

QUEUES = 2
"""On each of two brokers."""


class Instance:
    """One query of a broadcasting group, as its planner sees the world."""

    def __init__(self, options: ReadOptions, store: MemoryOffsetStore, pool: ChannelPool) -> None:
        self.name = offset_key(options)
        self.client_id = client_id(options)
        self.store = store
        self.member: RunningMember = join_group(options, self.client_id, store, SystemClock())
        view = ClusterView(options, pool, SystemClock())
        progress = GroupProgress(
            consumer_group=self.name,
            client_id=self.client_id,
            store=store,
            ownership=self.member,
            starts=OptionPositions.of(options, pool, SystemClock(), LATEST).starts,
            clock=SystemClock(),
        )
        self.planner = MicroBatchPlanner(options, view, progress, SystemClock(), lambda _: None)
        self.member.start()
        self.offset: Offset = self.planner.initial()

    def plan(self) -> list[QueueRange]:
        """What the next micro-batch reads; it is consumed and committed at once."""
        following = self.planner.latest(self.offset)
        if following == self.offset:
            return []
        self.offset = following
        planned = list(self.planner.runnable(following))
        commits = [
            QueueCommit(queue=one.queue, state=QueueState(one.end, one.state.epoch)) for one in planned
        ]
        assert not self.store.commit(
            self.name, commits, query_id=self.name, batch_id=following["seq"]
        ).refused
        return planned

    def messages(self, wanted: int) -> int:
        """Of as many micro-batches as it takes: a real broker shows a stored message a moment later."""
        seen = 0

        def has_enough() -> bool:
            nonlocal seen
            seen += sum(one.count for one in self.plan())
            return seen >= wanted

        wait_until(has_enough, ANSWER_S, reason=f"{wanted} messages")
        return seen


Start = Callable[[str], Instance]
Given = Callable[[str], ReadOptions]


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    return cluster.create_topic(queues=QUEUES)


@pytest.fixture
def store() -> MemoryOffsetStore:
    return MemoryOffsetStore("broadcasting", clock=SystemClock())


@pytest.fixture
def options(cluster: ClusterUnderTest, topic: str, group: str, store: MemoryOffsetStore) -> Given:
    """Of a query under an instance name."""

    def options_of(instance_name: str) -> ReadOptions:
        return ReadOptions.parse(
            {
                "nameServers": cluster.name_servers, "topic": topic, "consumerGroup": group,
                "offsetStore": store.spec, "messageModel": "BROADCASTING", "instanceName": instance_name,
                "startingOffsets": "earliest",
            }
        )  # fmt: skip

    return options_of


@pytest.fixture
def start(options: Given, store: MemoryOffsetStore, pool: ChannelPool) -> Iterator[Start]:
    """Start a query under an instance name; all share one offset store."""
    instances: list[Instance] = []

    def start_as(instance_name: str) -> Instance:
        instances.append(Instance(options(instance_name), store, pool))
        return instances[-1]

    yield start_as
    for instance in instances:
        instance.member.stop(ANSWER_S)


def test_every_instance_gets_every_message_and_goes_on_where_it_was(
    cluster: ClusterUnderTest, topic: str, start: Start
) -> None:
    """B3, D9: two queries of one group; one is stopped, misses nothing, and disturbs nobody."""
    produce_orders(cluster.name_servers, topic, 20)
    one, two = start("one"), start("two")
    assert (one.messages(100), two.messages(100)) == (100, 100)

    one.member.stop(ANSWER_S)
    produce_orders(cluster.name_servers, topic, 10, first=20)
    assert two.messages(50) == 50
    again = start("one")

    assert again.messages(50) == 50
    assert again.plan() == two.plan() == []
    assert {row.owner_id for row in again.store.read(again.name).values()} == {again.client_id}
    assert len(two.store.read(two.name)) == 2 * QUEUES


def test_broadcasting_neither_locks_queues_nor_stores_offsets_at_the_broker(
    cluster: ClusterUnderTest, topic: str, group: str, start: Start, client: BrokerClient
) -> None:
    """B3, D9: the instances are seen as members all the same."""
    produce_orders(cluster.name_servers, topic, 4)
    instances = [start("one"), start("two")]
    assert [instance.messages(20) for instance in instances] == [20, 20]

    for broker_name, address in cluster.broker_addresses.items():
        queues = [MessageQueue(topic, broker_name, number) for number in range(QUEUES)]
        assert client.lock_batch(address, group, "somebody else", queues) == frozenset(queues)
        for queue in queues:
            with pytest.raises(OffsetNotFound):
                client.query_consumer_offset(address, group, queue, set_zero_if_not_found=False)
        wait_until(
            lambda: members(client, address, group) == {instance.client_id for instance in instances},  # noqa: B023
            ANSWER_S,
            reason="both instances are listed",
        )


def test_a_second_query_of_one_instance_is_refused_while_the_first_lives(
    options: Given, start: Start, pool: ChannelPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H8, B3: brokers show that it lives, whatever connection asks;
    it is free as soon as the first has left.
    """
    monkeypatch.setattr(queue_claims, "_STOP_S", 0.0)
    one = start("one")
    wait_until(
        lambda: living_members(options("one"), pool, SystemClock()) == frozenset({one.client_id}),
        ANSWER_S,
        reason="listed",
    )

    with pytest.raises(OffsetError, match=f"member {one.client_id} is alive"):
        RocketMQStreamReader(options("one")).initialOffset()

    one.member.stop(ANSWER_S)
    monkeypatch.undo()
    await_sole_owner(
        "one",
        {one.client_id},
        lambda: living_members(options("one"), pool, SystemClock()),
        SystemClock(),
        time.sleep,
    )


def members(client: BrokerClient, address: str, group: str) -> set[str]:
    try:
        return set(client.consumer_list(address, group))
    except BrokerError:
        return set()
