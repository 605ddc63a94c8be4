"""Connections that fall silent, lead to another broker, or end, at every kind of request of every client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.identity import WHO, name_in
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import BrokerError, RocketMQError, TransportError, WrongBroker
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.rows import RowKeys
from pyspark_rocketmq.publish.writer import send_rows
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.group_query import SOON_S, GroupQuery, await_consumed
from tests.helpers.relayed_cluster import RelayedCluster
from tests.helpers.stream_read import StreamUnderTest, offsets_by_queue
from tests.helpers.wait import wait_until

CLOCK = SystemClock()
TIMEOUT_S = 1.0
"""Tries of a request. A slow machine may need several, and gets them."""
GROUP = "connections"
A, B = "broker-a", "broker-b"


@pytest.fixture
def relayed(cluster: ClusterUnderTest) -> Iterator[RelayedCluster]:
    """The cluster behind relays."""
    with RelayedCluster(cluster) as relayed:
        yield relayed
        close_idle_connections()


@pytest.fixture
def topic(cluster: ClusterUnderTest, client: BrokerClient) -> str:
    """One queue at each broker, with 3 messages at broker-a and 5 at broker-b, which name their broker."""
    topic = cluster.create_topic(queues=1)
    store(cluster, client, topic, {A: 3, B: 5})
    return topic


def store(cluster: ClusterUnderTest, client: BrokerClient, topic: str, counts: Mapping[str, int]) -> None:
    """Store so many messages at each broker."""
    for name, count in counts.items():
        queue, address = MessageQueue(topic, name, 0), cluster.broker_addresses[name]
        message, settings = Message(topic=topic, body=name.encode()), SendSettings(producer_group="p")
        ends = [client.send(address, message, queue, settings).queue_offset + 1 for _ in range(count)]
        await_readable(client, address, queue, ends[-1])


@dataclass
class Calls:
    """Every kind of request, to broker-a by the address that was announced for it when this was made."""

    relayed: RelayedCluster
    topic: str
    pool: ChannelPool

    def __post_init__(self) -> None:
        self.address = self.relayed.brokers[A].address
        self.queue = MessageQueue(self.topic, A, 0)
        self.brokers = BrokerClient(self.pool, CLOCK, TIMEOUT_S)
        self.names = NameServerClient(
            (self.relayed.name_servers,), self.pool, CLOCK, TIMEOUT_S, route_max_age_s=0
        )
        self.producer = Producer(self.relayed.name_servers, "tests", send_timeout_s=TIMEOUT_S, pool=self.pool)

    def heartbeat(self) -> None:
        consumer = ConsumerData(group_name=GROUP)
        data = HeartbeatData(client_id="c", consumers=(consumer,))
        self.brokers.heartbeat(self.address, data, broker_name=A)

    def members(self) -> object:
        self.heartbeat()
        return self.brokers.consumer_list(self.address, GROUP, broker_name=A)

    def lock(self) -> object:
        return self.brokers.lock_batch(self.address, GROUP, "c", [self.queue])

    def statistics(self) -> object:
        return self.brokers.topic_stats(self.address, self.topic, broker_name=A)

    def bounds(self) -> object:
        return self.brokers.min_offset(self.address, self.queue), self.brokers.max_offset(
            self.address, self.queue
        )

    def offset(self) -> None:
        self.heartbeat()
        self.brokers.update_consumer_offset(self.address, GROUP, self.queue, 2)

    def pull(self) -> list[MessageExt]:
        request = PullRequest(consumer_group=GROUP, queue=self.queue, queue_offset=0)
        return decode_messages(self.brokers.pull(self.address, request).body, A)

    def send_back(self) -> None:
        self.heartbeat()
        message = self.pull()[0]
        self.brokers.send_message_back(self.address, message, GROUP, 1, 16)

    def produce(self) -> object:
        return self.producer.send(Message(topic=self.topic, body=b"broker-a"), queue=self.queue)

    def sink(self) -> object:
        options = WriteOptions.parse(
            {
                "nameServers": self.relayed.name_servers,
                "topic": self.topic,
                "requestTimeoutMs": "1000",
                "retryTimeoutMs": "120000",
            }
        )
        rows = pa.RecordBatch.from_pylist([{"body": b"broker-a", "brokerName": A, "queueId": 0}])
        positions = {"body": 0, "brokerName": 1, "queueId": 2}
        return send_rows(iter([rows]), options, positions, RowKeys("w", 0, 0))

    def route(self) -> object:
        return self.names.route(self.topic, Deadline.after(CLOCK, TIMEOUT_S))

    def living(self) -> object:
        return self.names.brokers(Deadline.after(CLOCK, TIMEOUT_S))


BROKER_CALLS: dict[str, Callable[[Calls], object]] = {
    "heartbeat": Calls.heartbeat,
    "members": Calls.members,
    "lock": Calls.lock,
    "statistics": Calls.statistics,
    "bounds": Calls.bounds,
    "offset": Calls.offset,
    "pull": Calls.pull,
    "send-back": Calls.send_back,
    "producer": Calls.produce,
}
CALLS = {**BROKER_CALLS, "route": Calls.route, "living": Calls.living}


@pytest.fixture
def calls(relayed: RelayedCluster, topic: str) -> Iterator[Calls]:
    """All on connections of the test's own."""
    with ChannelPool(CLOCK) as pool:
        yield Calls(relayed, topic, pool)


def succeeds(call: Callable[[], object]) -> bool:
    """Whether it did; what may pass counts as no."""
    try:
        call()
    except RocketMQError as error:
        if not error.retryable:
            raise
        return False
    return True


@pytest.mark.parametrize("name", CALLS)
def test_a_request_on_a_connection_that_fell_silent_is_the_last_one_there(calls: Calls, name: str) -> None:
    """A7 ★: whoever tries again gets a new connection, within one time-out."""
    relay = calls.relayed.name_server if name in {"route", "living"} else calls.relayed.brokers[A]
    wait_until(lambda: succeeds(lambda: CALLS[name](calls)), ANSWER_S)
    before = relay.connections
    if name in {"route", "living"}:
        calls.names.route(calls.topic, Deadline.after(CLOCK, ANSWER_S))
    relay.fall_silent()

    if name != "route":  # a known route is kept
        with pytest.raises(TransportError):
            CALLS[name](calls)
    wait_until(lambda: succeeds(lambda: CALLS[name](calls)) and relay.connections > before, ANSWER_S)


@pytest.mark.parametrize("name", CALLS)
def test_a_connection_that_ends_costs_one_request_at_most(calls: Calls, name: str) -> None:
    """A7 ★: at any kind of request."""
    relay = calls.relayed.name_server if name in {"route", "living"} else calls.relayed.brokers[A]
    wait_until(lambda: succeeds(lambda: CALLS[name](calls)), ANSWER_S)
    relay.cut()

    wait_until(lambda: succeeds(lambda: CALLS[name](calls)), ANSWER_S)


@pytest.mark.parametrize("name", BROKER_CALLS)
def test_nothing_is_asked_of_another_broker_that_answers_at_a_broker_s_address(
    cluster: ClusterUnderTest, client: BrokerClient, calls: Calls, name: str
) -> None:
    """A7 ★: brokers came back with each other's address, and the name server has not noticed."""
    wait_until(lambda: succeeds(lambda: CALLS[name](calls)), ANSWER_S)
    wrong = cluster.broker_addresses[B]
    ends = {
        queue: client.max_offset(wrong, queue)
        for queue in (MessageQueue(calls.topic, B, 0), MessageQueue(f"%RETRY%{GROUP}", B, 0))
    }
    calls.relayed.swap()

    for _ in range(2):
        with pytest.raises(WrongBroker, match="it is broker-b, and broker-a was expected there"):
            wait_until(lambda: not_cut_off(lambda: CALLS[name](calls)), ANSWER_S)
    assert ends == {queue: client.max_offset(wrong, queue) for queue in ends}
    calls.relayed.register()
    calls.address = calls.relayed.brokers[A].address
    wait_until(lambda: succeeds(lambda: CALLS[name](calls)), ANSWER_S)


def not_cut_off(call: Callable[[], object]) -> bool:
    """Make a call, again if it met the end of the connection; WrongBroker is raised."""
    try:
        call()
    except WrongBroker:
        raise
    except TransportError:
        return False
    raise AssertionError("It was made at the wrong broker.")


@pytest.mark.parametrize("fault", ["fall_silent", "cut", "swap"])
def test_rows_reach_their_queue_whatever_happens_to_connections(
    cluster: ClusterUnderTest, client: BrokerClient, calls: Calls, fault: str
) -> None:
    """A7, G5 ★: a task of the sink; the queue's broker is where the name server says, then where it is."""
    calls.sink()
    ends = {name: client.max_offset(cluster.broker_addresses[name], at(calls, name)) for name in (A, B)}
    if fault == "swap":
        calls.relayed.swap()
        calls.relayed.register()
    else:
        getattr(calls.relayed.brokers[A], fault)()
        getattr(calls.relayed.name_server, fault)()

    calls.sink()

    wait_until(lambda: client.max_offset(cluster.broker_addresses[A], at(calls, A)) > ends[A], ANSWER_S)
    assert client.max_offset(cluster.broker_addresses[B], at(calls, B)) == ends[B]


def at(calls: Calls, name: str) -> MessageQueue:
    return MessageQueue(calls.topic, name, 0)


class StreamBehindRelays:
    """A stream of the topic, and the offsets of all that it has read."""

    def __init__(self, relayed: RelayedCluster, topic: str, **options: str) -> None:
        self.stream = StreamUnderTest(
            nameServers=relayed.name_servers,
            topic=topic,
            startingOffsets="earliest",
            requestTimeoutMs="2000",
            retryTimeoutMs="2000",
            **options,
        )
        self._topic = topic
        self._read: dict[MessageQueue, list[int]] = {}

    def take(self, rows: pa.Table | None) -> None:
        """Add what was read; each body names the broker where it was stored."""
        if rows is not None:
            for queue, offsets in offsets_by_queue(rows).items():
                self._read.setdefault(queue, []).extend(offsets)
            bodies = zip(rows["brokerName"].to_pylist(), rows["body"].to_pylist(), strict=True)
            assert all(name.encode() == body for name, body in bodies)

    def await_all(self, counts: Mapping[str, int]) -> None:
        """Read on until it has had each of so many messages of each broker, once and in order."""
        wanted = {MessageQueue(self._topic, name, 0): [*range(count)] for name, count in counts.items()}

        def has_all() -> bool:
            self.take(self.stream.next())
            return self._read == wanted

        wait_until(has_all, 2 * ANSWER_S)


@pytest.mark.parametrize("when", ["before the plan", "between plan and task"])
def test_a_stream_reads_each_message_once_while_brokers_swap_addresses(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    relayed: RelayedCluster,
    topic: str,
    when: str,
) -> None:
    """A7, A2 ★: the route is up to 30 s old, and the task has the plan's addresses."""
    reading = StreamBehindRelays(relayed, topic)
    reading.await_all({A: 3, B: 5})
    stream = reading.stream
    store(cluster, client, topic, {A: 4, B: 2})
    if when == "before the plan":
        relayed.swap()
        stream.plan()
        relayed.register()
    else:
        assert stream.plan()
        close_idle_connections()
        relayed.swap()
        with pytest.raises(WrongBroker):
            stream.run()
        relayed.register()
        stream.restart()
        reading.take(stream.run())

    reading.await_all({A: 7, B: 7})


def test_a_stream_reads_on_when_all_its_connections_fell_silent(
    cluster: ClusterUnderTest, client: BrokerClient, relayed: RelayedCluster, topic: str
) -> None:
    """A7 ★: those of the planner, and those that tasks keep for the next micro-batch."""
    reading = StreamBehindRelays(relayed, topic, routeRefreshMs="1")
    reading.await_all({A: 3, B: 5})
    before = {name: relay.connections for name, relay in relayed.brokers.items()}
    for relay in (relayed.name_server, *relayed.brokers.values()):
        relay.fall_silent()
    store(cluster, client, topic, {A: 2, B: 1})

    reading.await_all({A: 5, B: 6})
    assert all(relay.connections > before[name] for name, relay in relayed.brokers.items())


def group_query(relayed: RelayedCluster, group: str, topic: str, pool: ChannelPool) -> GroupQuery:
    """A query of the group, which reaches everything through relays."""
    offsets = MemoryOffsetStore(group, clock=CLOCK)
    options = {
        "nameServers": relayed.name_servers,
        "topic": topic,
        "consumerGroup": group,
        "offsetStore": offsets.spec,
        "startingOffsets": "earliest",
        "requestTimeoutMs": "2000",
        "routeRefreshMs": "1",
    }
    return GroupQuery("one", ReadOptions.parse(options), offsets, pool)


def test_a_group_finds_brokers_whose_old_addresses_never_answer(
    cluster: ClusterUnderTest, client: BrokerClient, relayed: RelayedCluster, topic: str, pool: ChannelPool
) -> None:
    """A2 ★, B1: its member always has something to ask again at the old ones, and finds the new ones."""
    query = group_query(relayed, cluster.unique_name("group"), topic, pool)
    try:
        await_consumed(query, 8)
        old = [relayed.swallow(A), relayed.swallow(B)]
        before = [relay.connections for relay in old]
        # The member closes a connection without an answer: by then it has asked in vain several times.
        wait_until(
            lambda: all(now.connections > was + 3 for now, was in zip(old, before, strict=True)), ANSWER_S
        )
        relayed.move(A)
        relayed.move(B)
        store(cluster, client, topic, {A: 2, B: 1})

        consumed = await_consumed(query, 3)

        def is_listed() -> bool:
            try:
                return bool(client.consumer_list(cluster.broker_addresses[A], query.group))
            except BrokerError:
                return False

        wait_until(is_listed, ANSWER_S)
    finally:
        query.member.stop(SOON_S)

    assert len(consumed) == 3


def test_a_group_has_all_its_queues_while_brokers_still_list_a_silent_connection(
    cluster: ClusterUnderTest, client: BrokerClient, relayed: RelayedCluster, topic: str, pool: ChannelPool
) -> None:
    """A7 ★, B1 ★: the member has a new connection, and counts twice until brokers miss the old one."""
    query = group_query(relayed, cluster.unique_name("group"), topic, pool)
    try:
        await_consumed(query, 8)
        for relay in relayed.brokers.values():
            relay.fall_silent()

        def counts_twice() -> bool:
            listed = client.consumer_list(cluster.broker_addresses[A], query.group)
            return list(listed) == ["one", "one"]

        wait_until(counts_twice, ANSWER_S)
        store(cluster, client, topic, {A: 2, B: 1})

        consumed = await_consumed(query, 3)
    finally:
        query.member.stop(SOON_S)

    assert sorted((queue.broker_name, message.queue_offset) for queue, message in consumed) == [
        (A, 3), (A, 4), (B, 5),
    ]  # fmt: skip


def test_a_broker_says_its_name_to_every_user(
    cluster: ClusterUnderTest, pool: ChannelPool, soon: Deadline
) -> None:
    """A7 ★: the simulator as 5.3.3."""
    for name, address in cluster.broker_addresses.items():
        assert name_in(pool.get(address, soon).request(WHO, soon), address) == name
    front = cluster.name_servers
    assert name_in(pool.get(front, soon).request(WHO, soon), front) == ""
