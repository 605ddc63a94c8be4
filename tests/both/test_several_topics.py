"""A group with several topics, its retry topic among them: membership, plans and what is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import ConsumerNotOnline, OptionError, TopicNotFound
from pyspark_rocketmq.model import Message, MessageQueue, QueueState, retry_topic
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.ranges import offset_to_plan
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import await_readable
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.group_query import SOON_S, GroupQuery, await_consumed
from tests.helpers.retries import but_retries
from tests.helpers.wait import wait_until

Start = Callable[..., GroupQuery]


@pytest.fixture
def topics(cluster: ClusterUnderTest) -> tuple[str, str]:
    """Two topics with a queue on each of two brokers."""
    return cluster.create_topic(queues=1), cluster.create_topic(queues=1)


@pytest.fixture
def start(
    cluster: ClusterUnderTest, pool: ChannelPool, topics: tuple[str, str], group: str
) -> Iterator[Start]:
    """Starts a query of the group; all have left when the test ends."""
    store = MemoryOffsetStore(group, clock=SystemClock())
    started: list[GroupQuery] = []

    def start(name: str, **options: str) -> GroupQuery:
        given = {
            "nameServers": cluster.name_servers,
            "topics": ",".join(topics),
            "consumerGroup": group,
            "offsetStore": store.spec,
            "startingOffsets": "earliest",
        }
        if "subscriptions" in options:
            del given["topics"]
        started.append(GroupQuery(name, ReadOptions.parse(given | options), store, pool))
        return started[-1]

    yield start
    for query in started:
        query.member.stop(SOON_S)


@pytest.fixture
def send(client: BrokerClient, cluster: ClusterUnderTest) -> Callable[..., None]:
    """Stores a message in a topic's first queue on a broker; it can be pulled when this returns."""

    def send(topic: str, body: bytes, broker_name: str = "broker-a", **properties: str) -> None:
        address, queue = cluster.broker_addresses[broker_name], MessageQueue(topic, broker_name, 0)
        message = Message(topic=topic, body=body, properties=properties)
        end = client.send(address, message, queue, SendSettings(producer_group="tests")).queue_offset + 1
        await_readable(client, address, queue, end)

    return send


def queues_of(cluster: ClusterUnderTest, *topics: str) -> set[MessageQueue]:
    return {MessageQueue(topic, name, 0) for topic in topics for name in cluster.broker_addresses}


def plannable(query: GroupQuery) -> set[MessageQueue]:
    queues = set(query.member.begin_plan())
    query.member.planned({})
    return queues


def test_every_topic_is_read_with_its_own_tags(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start, send: Callable[..., None]
) -> None:
    """A3, A4: and committed by topic, broker and queue."""
    one, two = topics
    for topic in topics:
        for tag in ("paid", "created"):
            send(topic, f"{topic}:{tag}".encode(), TAGS=tag)

    query = start("me", subscriptions=f'{{"{one}": "paid", "{two}": "*"}}')

    seen = await_consumed(query, 3)
    assert sorted(message.body.decode() for _, message in seen) == sorted(
        [f"{one}:paid", f"{two}:paid", f"{two}:created"]
    )
    assert all(message.topic == queue.topic for queue, message in seen)
    rows = query.store.read(query.group)
    assert {queue: rows[queue].next_offset for queue in queues_of(cluster, one, two)} == {
        queue: 2 if queue.broker_name == "broker-a" else 0 for queue in queues_of(cluster, one, two)
    }


def test_the_first_plan_of_a_new_group_has_its_retry_queues(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start, group: str
) -> None:
    """E3: in real time the next plan would have to end the first batch, with its deliveries under way."""
    query = start("one", realTime="5 minutes", handOverRanges="true")

    planned = offset_to_plan(query.planner.latest(query.offset))[1]

    assert {each.queue for each in planned} == queues_of(cluster, *topics, retry_topic(group))


def test_a_heartbeat_has_every_subscription(
    cluster: ClusterUnderTest, pool: ChannelPool, topics: tuple[str, str], start: Start, group: str
) -> None:
    """A3: it replaces the group's whole table, at the brokers of every topic."""
    query = start("me", subscriptions=f'{{"{topics[0]}": "paid", "{topics[1]}": "*"}}')
    assert query.member.await_settled(SOON_S)
    admin = BrokerClient(pool, SystemClock(), SOON_S)

    wanted = {topics[0]: "paid", topics[1]: "*", retry_topic(group): "*"}

    def told(address: str) -> dict[str, str]:
        # A broker that was slow to answer a heartbeat hears the next one.
        with suppress(ConsumerNotOnline):
            subscriptions = admin.consumer_connection(address, group).subscriptions
            return {topic: one.sub_string for topic, one in subscriptions.items()}
        return {}

    for address in cluster.broker_addresses.values():
        wait_until(partial(lambda at: told(at) == wanted, address), SOON_S, reason=f"{wanted} at {address}")


def test_members_share_each_topic_by_itself(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start
) -> None:
    """B1, C1: ``RebalanceImpl.rebalanceByTopic``; with one queue of each topic for either member."""
    one, two = start("one"), start("two")
    everything = queues_of(cluster, *topics)

    def is_shared() -> bool:
        shares = [but_retries(plannable(query)) for query in (one, two)]
        return sorted(chain(*shares)) == sorted(everything) and all(
            sorted(queue.topic for queue in share) == sorted(topics) for share in shares
        )

    wait_until(is_shared, SOON_S, reason="a queue of each topic for each member")


def test_a_group_reads_its_retry_topic_as_soon_as_brokers_have_made_it(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start, group: str
) -> None:
    """E3, A3: at the group's first heartbeat; its queues are locked and allocated like all others."""
    query = start("me")

    wait_until(
        lambda: plannable(query) == queues_of(cluster, *topics, retry_topic(group)),
        SOON_S,
        reason="the retry queues of both brokers",
    )


def test_a_message_that_was_given_back_comes_again_under_its_own_topic(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start, send: Callable[..., None], group: str
) -> None:
    """E3: ``resetRetryAndNamespace``; its queue, and so its offset, is that of the retry topic."""
    query = start("me")
    send(topics[1], b"once more", KEYS="k")
    ((queue, message),) = await_consumed(query, 1)

    back = SendBack(SendBackSettings(name_servers=(cluster.name_servers,), consumer_group=group))
    back.send(message, delay_level=1, max_reconsume_times=16)

    ((retried_in, retried),) = await_consumed(query, 1)
    assert retried_in == MessageQueue(retry_topic(group), queue.broker_name, 0) == retried.message_queue
    assert (retried.topic, retried.body, retried.keys) == (topics[1], b"once more", "k")
    assert retried.reconsume_times == 1
    rows = query.store.read(group)
    assert (rows[retried_in].next_offset, rows[queue].next_offset) == (1, 1)

    back.send(retried, delay_level=1, max_reconsume_times=16)
    ((_, third),) = await_consumed(query, 1)
    assert (third.topic, third.queue_offset, third.reconsume_times) == (topics[1], 1, 2)


@SIM_ONLY  # a real broker without a timer wheel cannot delete a topic: golden fact 26
def test_a_topic_that_is_deleted_does_not_touch_the_others(
    cluster: ClusterUnderTest,
    pool: ChannelPool,
    topics: tuple[str, str],
    start: Start,
    send: Callable[..., None],
) -> None:
    """A2: a warning, as when all its brokers are away; a restarted query would refuse to start."""
    query = start("me")
    wait_until(lambda: plannable(query) >= queues_of(cluster, *topics), SOON_S)
    admin = Administrator(pool, SystemClock(), SOON_S)
    for address in cluster.broker_addresses.values():
        admin.delete_topic(address, topics[0])
    wait_until(lambda: not cluster.routed_brokers(topics[0]), SOON_S, reason="the route being gone")

    send(topics[1], b"goes on")

    ((queue, _),) = await_consumed(query, 1)
    assert queue.topic == topics[1]
    with pytest.raises(TopicNotFound, match=topics[0]):
        start("another")


def test_a_topic_that_does_not_exist_is_an_error_at_the_first_look(
    topics: tuple[str, str], start: Start
) -> None:
    """A typing error must not end in a query that waits for ever."""
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        start("me", topics=f"{topics[0]},no-such-topic")


def test_of_two_concurrent_members_with_the_same_queue_only_the_later_one_commits(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start, send: Callable[..., None], group: str
) -> None:
    """E1, C5, B5: nothing locks a queue; the claim in the offset store fences the one before off."""
    send(topics[0], b"stays with the first member")
    send(topics[1], b"goes to the second", "broker-b")
    one = start("one", consumeOrderly="false")
    wait_until(lambda: plannable(one) >= queues_of(cluster, *topics), SOON_S)
    first = one.planner.latest(one.offset)
    planned = {range_.queue: range_ for range_ in one.planner.runnable(first)}

    two = start("two", consumeOrderly="false")
    ((moved, _),) = await_consumed(two, 1)

    commits = [
        QueueCommit(queue=each.queue, state=QueueState(each.end, each.state.epoch))
        for each in planned.values()
    ]
    result = one.store.commit(group, commits, query_id="q", batch_id=1)
    assert [commit.queue for commit in result.refused] == [moved]
    assert [commit.queue for commit in result.accepted] == sorted(planned.keys() - {moved})


def test_a_queue_gives_a_micro_batch_no_more_messages_and_bytes_than_it_may(
    cluster: ClusterUnderTest, topics: tuple[str, str], start: Start, send: Callable[..., None]
) -> None:
    """D13: the rest comes with the next ones, in order and once; other queues are not bounded by it."""
    sizes = {topics[0]: [1, 1, 1, 1, 1], topics[1]: [600 << 10] * 3}
    for topic in topics:
        for number, size in enumerate(sizes[topic]):
            send(topic, str(number).encode().ljust(size, b"."))

    query = start("me", pullThresholdForQueue="3", pullThresholdSizeForQueue="1")
    wait_until(lambda: plannable(query) >= queues_of(cluster, *topics), SOON_S)

    batches = [query.consumed() for _ in range(3)]
    by_topic = {
        topic: [
            [int(message.body.rstrip(b".")) for message in messages]
            for batch in batches
            for queue, messages in batch.items()
            if queue.topic == topic
        ]
        for topic in topics
    }
    assert by_topic == {topics[0]: [[0, 1, 2], [3, 4]], topics[1]: [[0, 1], [2]]}


def test_a_batch_begins_in_each_topic_where_its_json_says(
    cluster: ClusterUnderTest, topics: tuple[str, str], send: Callable[..., None]
) -> None:
    """F2, H3: queues that are not named begin at their earliest offset."""
    for topic in topics:
        for body in (b"0", b"1", b"2"):
            send(topic, body)
    starts = f'{{"{topics[0]}": {{"broker-a": {{"0": 1}}}}, "{topics[1]}": {{"broker-b": {{"0": -1}}}}}}'
    given = {"nameServers": cluster.name_servers, "topics": ",".join(topics), "startingOffsets": starts}

    partitions = RocketMQBatchReader(ReadOptions.parse(given)).partitions()

    ranges = [partition.planned for partition in partitions]  # type: ignore[attr-defined]
    assert {(planned.queue.topic, planned.start, planned.end) for planned in ranges} == {
        (topics[0], 1, 3),
        (topics[1], 0, 3),
    }
    wrong = given | {"startingOffsets": f'{{"{topics[1]}": {{"broker-c": {{"0": 1}}}}}}'}
    with pytest.raises(OptionError, match=f"topic={topics[1]} broker=broker-c queue=0, which does not exist"):
        RocketMQBatchReader(ReadOptions.parse(wrong)).partitions()
