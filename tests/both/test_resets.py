"""Reading as a group whose offsets an operator has reset at the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.group.broker_offsets import PullingResetWatch
from pyspark_rocketmq.model import OPEN_END, BrokerAddress, MessageQueue, QueueRange
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.range_arrivals import RangeArrivals
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullStatus
from tests.both.conftest import Put
from tests.both.support import ANSWER_S
from tests.broker_sim.exchange import request
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.partitions import partition_of
from tests.helpers.source_rows import end_of
from tests.helpers.wait import wait_until

COUNT = 40


@pytest.fixture
def queue(queue: MessageQueue, put: Put) -> MessageQueue:
    """A queue of ``COUNT`` messages."""
    put(*(b"%d" % number for number in range(COUNT)))
    return queue


@pytest.fixture
def has_read(client: BrokerClient, address: str, queue: MessageQueue, group: str) -> None:
    """The group read the queue to its end."""
    client.pull(address, PullRequest(consumer_group=group, queue=queue, queue_offset=0))
    client.update_consumer_offset(address, group, queue, COUNT)


@pytest.fixture
def reset_to_0(broker: Channel, queue: MessageQueue, group: str, soon: Deadline) -> Callable[[], None]:
    """A reset to the beginning, as ``mqadmin resetOffsetByTime`` asks for it."""

    def reset() -> None:
        fields = {"group": group, "topic": queue.topic, "timestamp": 0, "isForce": "true", "queueId": -1}
        broker.request(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields), soon)

    return reset


@pytest.fixture
def reset(reset_to_0: Callable[[], None], has_read: None) -> Iterator[None]:
    """The group has read the queue, and was reset to its beginning."""
    reset_to_0()
    yield
    close_idle_connections()


@pytest.mark.usefixtures("reset")
def test_one_pull_after_a_reset_is_answered_as_if_its_offset_had_moved(
    client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """F5: useServerSideResetOffset, RocketMQ's default; the bounds show that nothing is lost."""
    request = PullRequest(consumer_group=group, queue=queue, queue_offset=8)

    first = client.pull(address, request)
    second = client.pull(address, request)

    assert (first.status, first.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 0)
    assert (first.min_offset, first.max_offset) == (0, COUNT)
    assert second.status is PullStatus.FOUND


def partition(address: str, queue: MessageQueue, group: str, *, is_of_group: bool) -> QueuePartition:
    return partition_of(
        QueueRange.between(queue, 8, COUNT, epoch=1),
        address,
        consumer_group=group,
        is_group_read=is_of_group,
        request_timeout_s=ANSWER_S,
        retry_timeout_s=2 * ANSWER_S,
    )


def offsets_in(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


@pytest.mark.usefixtures("reset")
def test_a_groups_range_ends_at_a_reset_and_says_where_to_go_on(
    address: str, queue: MessageQueue, group: str
) -> None:
    """F5, F4: a reset is no data loss; the broker reports it once."""
    of_group = partition(address, queue, group, is_of_group=True)

    *before, told = read_queue(of_group)
    *after, told_nothing = read_queue(of_group)

    # Several pulls are in flight, and any of them may be the one that is reported.
    seen = offsets_in(before)
    assert seen == list(range(8, 8 + len(seen)))
    assert end_of(told).planned == replace(of_group.planned, end=8 + len(seen))
    assert len(seen) < COUNT - 8
    assert end_of(told).reset_to == 0
    assert offsets_in(after) == list(range(8, COUNT))
    assert end_of(told_nothing).reset_to is None


@pytest.mark.usefixtures("reset")
def test_a_plain_range_is_read_whole_whatever_happens_to_the_group_it_names(
    address: str, queue: MessageQueue, group: str
) -> None:
    """F5, H3: who has no group has nothing to reset."""
    plain = partition(address, queue, group, is_of_group=False)

    assert offsets_in(read_queue(plain)) == list(range(8, COUNT))


@pytest.fixture
def to_the_end(address: str, queue: MessageQueue, group: str) -> QueuePartition:
    """The group's open range of the whole queue."""
    planned = QueueRange.between(queue, 0, OPEN_END)
    return partition_of(planned, address, consumer_group=group, is_group_read=True)


@pytest.mark.usefixtures("has_read")
def test_the_pull_of_a_closed_connection_takes_a_reset_with_it(
    client: BrokerClient, address: str, to_the_end: QueuePartition, put: Put, reset_to_0: Callable[[], None]
) -> None:
    """F5: the broker runs it again when a message comes (``PullRequestHoldService``)."""
    queue, group = to_the_end.planned.queue, to_the_end.settings.consumer_group
    ranges = RangeArrivals([to_the_end])
    arrivals = ranges.arrivals()
    seen = 0
    while seen < COUNT:
        seen += sum(len(messages) for each in next(arrivals) for messages in each.messages)
    # The pull at the queue's end was sent before these messages were handed out.
    ranges.end()
    assert [each.end is not None for each in next(arrivals)] == [True]
    arrivals.close()
    reset_to_0()
    put(b"wakes the pull")

    def is_stored() -> bool:
        # While a reset waits for a pull, the broker stores no offset.
        client.update_consumer_offset(address, group, queue, COUNT)
        return client.query_consumer_offset(address, group, queue) == COUNT

    assert wait_until(is_stored, ANSWER_S)
    close_idle_connections()


class TestWatch:
    """F5: queues that nothing is read from."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Moved from one look to the next."""
        return FakeClock()

    @pytest.fixture
    def watch(
        self, cluster: ClusterUnderTest, pool: ChannelPool, queue: MessageQueue, group: str, clock: FakeClock
    ) -> PullingResetWatch:
        """What the code under test is."""
        options = {
            "nameServers": cluster.name_servers,
            "topic": queue.topic,
            "consumerGroup": group,
            "offsetStore": "delta:/unused",
        }
        return PullingResetWatch(ReadOptions.parse(options), pool, clock, lambda _: None)

    @pytest.mark.usefixtures("reset")
    def test_a_reset_of_an_idle_queue_is_found_once(
        self, watch: PullingResetWatch, clock: FakeClock, address: str, queue: MessageQueue
    ) -> None:
        """F5: and not before it is time to look."""
        at = {queue.broker_name: BrokerAddress(address)}
        watch.look({queue: COUNT}, at)
        clock.advance(15)

        watch.look({queue: COUNT}, at)

        assert wait_until(watch.found) == {queue: 0}
        assert watch.found() == {}

    @pytest.mark.usefixtures("has_read")
    def test_without_a_reset_nothing_is_found(
        self,
        watch: PullingResetWatch,
        clock: FakeClock,
        client: BrokerClient,
        address: str,
        queue: MessageQueue,
    ) -> None:
        """F5, F4: an offset that is not there is a gap, and no reset."""
        at = {queue.broker_name: BrokerAddress(address)}
        for next_offset in (COUNT, 7, COUNT + 5):
            clock.advance(15)
            watch.look({queue: next_offset}, at)
        # Answered after those before it: they were sent on the same connection,
        # to one thread at a time or more.
        client.pull(address, PullRequest(consumer_group="other", queue=queue, queue_offset=0))

        assert watch.found() == {}
