"""Groups whose offsets begin again, or are moved at their brokers while nobody of the group is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from broker_sim.bodies import SubscriptionGroupConfig
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import DataLoss, OffsetsBeganAgain
from pyspark_rocketmq.model import BrokerAddress, Message, MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.message_lookup import Found, MessageLookup
from pyspark_rocketmq.source.ranges import offset_to_plan
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.properties import TAGS
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import await_readable
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.group_query import SOON_S, GroupQuery, await_consumed
from tests.helpers.poison import store_as_it_is
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

Put = Callable[..., None]


class Stays:
    """A group that is there and away by turns; its progress is in one store."""

    def __init__(self, cluster: ClusterUnderTest, pool: ChannelPool, queue: MessageQueue, group: str) -> None:
        self.store = MemoryOffsetStore(group, clock=SystemClock())
        self._pool = pool
        self.queue = queue
        self.address = cluster.broker_addresses[queue.broker_name]
        self.group = group
        self._options = {
            "nameServers": cluster.name_servers,
            "topic": queue.topic,
            "consumerGroup": group,
            "offsetStore": self.store.spec,
            "startingOffsets": "earliest",
            "routeRefreshMs": "1",
        }
        self._query: GroupQuery | None = None

    def come(self, **options: str) -> GroupQuery:
        self._query = GroupQuery("one", ReadOptions.parse(self._options | options), self.store, self._pool)
        return self._query

    def go(self) -> None:
        if self._query is not None:
            self._query.member.stop(SOON_S)
            self._query = None

    def offsets(self, query: GroupQuery, count: int) -> list[int]:
        """Consume so many messages; where they were."""
        return [message.queue_offset for _, message in await_consumed(query, count)]

    @property
    def generation(self) -> int:
        return self.store.read(self.group)[self.queue].generation

    def show(self, client: BrokerClient, address: str, next_offset: int) -> None:
        """As the mirror does it after a batch."""
        client.update_consumer_offset(address, self.group, self.queue, next_offset)
        self.store.note_arrivals(self.group, {self.queue: next_offset})

    def watch(self) -> MessageLookup:
        return MessageLookup(ReadOptions.parse(self._options), self._pool, SystemClock())


@pytest.fixture
def stays(cluster: ClusterUnderTest, pool: ChannelPool, queue: MessageQueue, group: str) -> Iterator[Stays]:
    """Away at the beginning."""
    stays = Stays(cluster, pool, queue, group)
    yield stays
    stays.go()


@pytest.fixture
def make_again(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queue: MessageQueue
) -> Callable[[int], None]:
    """Deletes the topic and makes it again, with so many messages."""

    def make_again(count: int) -> None:
        for server, code in (
            (address, RequestCode.DELETE_TOPIC_IN_BROKER),
            (cluster.name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        ):
            plain_remoting.call(server, code, {"topic": queue.topic})
        cluster.create_topic(queue.topic, queues=1, brokers=["broker-a"])

        def is_sent() -> bool:
            return (
                client.send(
                    address, Message(topic=queue.topic, body=b"new"), queue, SendSettings(producer_group="t")
                )
                is not None
            )

        for _ in range(count):
            wait_until(is_sent, SOON_S)
        await_readable(client, address, queue, count)

    return make_again


@pytest.mark.parametrize("count", [2, 5], ids=["fewer", "more"])
def test_a_topic_made_again_while_the_group_was_away_is_read_whole_in_a_new_generation(
    stays: Stays, put: Put, make_again: Callable[[int], None], count: int
) -> None:
    """F4, H1: bounds show it, or else the message in the place of the last one consumed."""
    put(b"1", b"2", b"3")
    assert stays.offsets(stays.come(), 3) == [0, 1, 2]
    stays.go()
    make_again(count)

    assert stays.offsets(stays.come(failOnDataLoss="false"), count) == list(range(count))

    assert stays.generation == 1


def test_a_topic_made_again_before_the_group_consumed_anything_is_read_whole(
    stays: Stays, put: Put, make_again: Callable[[int], None]
) -> None:
    """F4: shown by the message before the group's beginning, which is gone."""
    put(b"1", b"2", b"3")
    query = stays.come(startingOffsets="latest")
    wait_until(lambda: not query.consumed() and stays.queue in stays.store.read(stays.group), SOON_S)
    stays.go()
    make_again(5)

    assert stays.offsets(stays.come(failOnDataLoss="false"), 5) == list(range(5))

    assert stays.generation == 1


@pytest.mark.parametrize("count", [1, 3, 5], ids=["fewer", "as many", "more"])
def test_a_topic_made_again_while_the_group_reads_it_is_read_whole_in_a_new_generation(
    stays: Stays, put: Put, make_again: Callable[[int], None], count: int
) -> None:
    """F4 ★, H1: between two plans; offsets do not show it if it is as long as before, or longer."""
    put(b"1", b"2", b"3")
    query = stays.come(failOnDataLoss="false")
    stays.offsets(query, 3)
    make_again(count)

    assert stays.offsets(query, count) == list(range(count))

    assert stays.generation == 1


@pytest.mark.parametrize("fails", ["false", "true"])
def test_a_topic_made_again_is_found_though_the_filter_leaves_out_the_message_at_the_last_offset(
    stays: Stays, put: Put, make_again: Callable[[int], None], fails: str
) -> None:
    """F4 ★, H1: a pull of the range does not show it, and all before the range would be lost."""

    def tagged(*tags: str) -> list[Message]:
        return [Message(topic=stays.queue.topic, body=b"new", properties={TAGS: each}) for each in tags]

    put(*tagged("paid", "paid", "paid"))
    query = stays.come(failOnDataLoss=fails, subscription="paid")
    stays.offsets(query, 3)
    make_again(0)
    put(*tagged("paid", "paid", "created", "paid"))

    if fails == "true":
        with pytest.raises(OffsetsBeganAgain):
            stays.offsets(query, 1)
    else:
        assert stays.offsets(query, 3) == [0, 1, 3]
        assert stays.generation == 1


def test_a_topic_made_again_between_plan_and_pull_is_read_whole_in_a_new_generation(
    stays: Stays, put: Put, make_again: Callable[[int], None]
) -> None:
    """F4 ★, H1: nothing of it is consumed under the old generation."""
    put(b"1", b"2", b"3")
    query = stays.come(failOnDataLoss="false")
    stays.offsets(query, 3)
    put(b"4", b"5")
    changes = [lambda: make_again(6)]

    def change_once() -> None:
        while changes:
            changes.pop()()

    query.before_pulls = change_once

    assert stays.offsets(query, 6) == list(range(6))

    assert stays.generation == 1


def test_a_topic_made_again_while_the_group_reads_it_ends_a_query_that_is_to_fail_on_data_loss(
    stays: Stays, put: Put, make_again: Callable[[int], None]
) -> None:
    """F4 ★: also where it is longer than before."""
    put(b"1")
    query = stays.come()
    stays.offsets(query, 1)
    make_again(3)

    with pytest.raises(OffsetsBeganAgain, match="has another message now"):
        wait_until(lambda: query.consumed() and False, SOON_S)


def test_a_topic_made_again_ends_a_query_that_is_to_fail_on_data_loss(
    stays: Stays, put: Put, make_again: Callable[[int], None]
) -> None:
    """F4: also where its new offsets hide it."""
    put(b"1")
    stays.offsets(stays.come(), 1)
    stays.go()
    make_again(3)
    query = stays.come()

    with pytest.raises(OffsetsBeganAgain, match="has another message now"):
        wait_until(lambda: query.consumed() and False, SOON_S)


@pytest.mark.parametrize("count", [2, 5], ids=["fewer", "more"])
def test_a_plain_stream_reads_a_topic_made_again_while_it_was_stopped_from_its_first_message(
    cluster: ClusterUnderTest,
    queue: MessageQueue,
    put: Put,
    make_again: Callable[[int], None],
    count: int,
) -> None:
    """F4 ★: its checkpoint remembers when the messages were stored."""
    put(b"1", b"2", b"3")
    options = {"nameServers": cluster.name_servers, "topic": queue.topic, "startingOffsets": "earliest"}

    def reader(**more: str) -> RocketMQStreamReader:
        return RocketMQStreamReader(ReadOptions.parse(options | {"routeRefreshMs": "1"} | more))

    first = reader()
    checkpoint = first.latestOffset(first.initialOffset(), ReadMaxRows(100))
    assert [(each.start, each.end) for each in offset_to_plan(checkpoint)[1]] == [(0, 3)]
    make_again(count)

    with pytest.raises(DataLoss):
        wait_until(lambda: reader().latestOffset(checkpoint, ReadMaxRows(100)) != checkpoint, SOON_S)
    again = reader(failOnDataLoss="false")
    plan = offset_to_plan(again.latestOffset(checkpoint, ReadMaxRows(100)))[1]

    assert [(each.start, each.end) for each in plan] == [(0, count)]


@pytest.mark.parametrize("target", [0, 1, 3])
def test_an_offset_that_was_set_at_the_broker_while_the_group_was_away_is_followed(
    stays: Stays, put: Put, client: BrokerClient, address: str, target: int
) -> None:
    """F5: as brokers without server-side resets, and tools that just store an offset, do it."""
    put(b"1", b"2", b"3", b"4")
    stays.offsets(stays.come(), 4)
    stays.go()
    stays.show(client, address, 4)
    client.update_consumer_offset(address, stays.group, stays.queue, target)

    assert stays.offsets(stays.come(), 4 - target) == list(range(target, 4))

    assert stays.generation == 0


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_group_goes_on_where_another_member_has_put_it_in_a_topic_made_again(
    stays: Stays, put: Put, make_again: Callable[[int], None], client: BrokerClient, fails: str
) -> None:
    """F4 ★, F5 ★: what was put there after the topic was made is a position in its new messages, and no loss."""
    address = stays.address
    put(b"1", b"2", b"3")
    stays.offsets(stays.come(), 3)
    stays.go()
    make_again(6)
    client.update_consumer_offset(address, stays.group, stays.queue, 4)

    assert stays.offsets(stays.come(failOnDataLoss=fails), 2) == [4, 5]

    assert stays.generation == 1
    assert client.query_consumer_offset(address, stays.group, stays.queue) == 4


def test_a_group_that_comes_back_while_reading_is_switched_off_waits_until_it_may(
    stays: Stays, put: Put, pool: ChannelPool, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A8 ★, D3: it has consumed, so the message it consumed last is looked at, by a pull that is refused."""
    admin = Administrator(pool, SystemClock(), SOON_S)

    def allow(is_allowed: bool) -> None:
        admin.put_group(address, SubscriptionGroupConfig(group_name=stays.group, consume_enable=is_allowed))

    put(b"1", b"2", b"3")
    stays.offsets(stays.come(), 3)
    stays.go()
    put(b"4")
    allow(False)
    query = stays.come()

    def is_refused() -> bool:
        assert query.consumed() == {}
        return "queue left out of this plan" in caplog.text

    wait_until(is_refused, SOON_S)
    allow(True)

    assert stays.offsets(query, 1) == [3]


def test_a_look_recognises_a_message_and_finds_what_was_stored_after_it(
    stays: Stays, put: Put, address: str
) -> None:
    """F4"""
    watch, queue, broker = stays.watch(), stays.queue, BrokerAddress(address)
    put(b"1")

    found = watch.look({queue: 0}, {"broker-a": broker})[queue]
    beyond = watch.look({queue: 5}, {"broker-a": broker})[queue]

    assert isinstance(found, Found)
    assert isinstance(beyond, Found)
    assert found.message is not None
    assert (found.bounds.min_offset, found.bounds.max_offset, found.is_reset) == (0, 1, False)
    assert (beyond.message, beyond.is_reset, beyond.bounds) == (None, False, found.bounds)
    stored_ms = found.message.store_timestamp
    assert watch.stored_after(queue, broker, stored_ms, found.bounds) == 1
    assert watch.stored_after(queue, broker, stored_ms - 1000, found.bounds) == 0


@SIM_ONLY
def test_a_group_goes_on_behind_a_kept_message_that_cannot_be_decoded(
    stays: Stays, put: Put, client: BrokerClient, address: str
) -> None:
    """F4, L7: the newest message consumed is looked at in the next claim,
    and need not be decoded for that.
    """
    put(b"1")
    store_as_it_is(address, stays.queue)
    await_readable(client, address, stays.queue, 2)
    assert stays.offsets(stays.come(undecodableMessages="keep"), 2) == [0, 1]
    stays.go()
    put(b"3")

    assert stays.offsets(stays.come(undecodableMessages="keep"), 1) == [2]

    assert stays.generation == 0
