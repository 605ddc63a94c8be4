"""Reading as a group whose offsets an operator has reset at the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_rocketmq.client.broker import PullRequest, PullStatus
from pyspark_rocketmq.client.process_lines import close_idle_lines
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_reader import read_queue
from pyspark_rocketmq.datasource.schema import planned_range
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange
from pyspark_rocketmq.wire.codes import RequestCode
from tests.broker_sim.exchange import request

COUNT = 40


@pytest.fixture
def queue(queue, put) -> MessageQueue:
    """A queue of ``COUNT`` messages."""
    put(*(b"%d" % number for number in range(COUNT)))
    return queue


@pytest.fixture
def has_read(client, address, queue, group) -> None:
    """The group read the queue to its end."""
    client.pull(address, PullRequest(consumer_group=group, queue=queue, queue_offset=0))
    client.update_consumer_offset(address, group, queue, COUNT)


@pytest.fixture
def reset(broker, queue, group, soon, has_read) -> Iterator[None]:
    """A reset to the beginning, as ``mqadmin resetOffsetByTime`` asks for it."""
    fields = {"group": group, "topic": queue.topic, "timestamp": 0, "isForce": "true", "queueId": -1}
    broker.request(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields), soon)
    yield
    close_idle_lines()


@pytest.mark.usefixtures("reset")
def test_one_pull_after_a_reset_is_answered_as_if_its_offset_had_moved(client, address, queue, group):
    """F5: useServerSideResetOffset, RocketMQ's default; the bounds tell that nothing is lost."""
    request = PullRequest(consumer_group=group, queue=queue, queue_offset=8)

    first = client.pull(address, request)
    second = client.pull(address, request)

    assert (first.status, first.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 0)
    assert (first.min_offset, first.max_offset) == (0, COUNT)
    assert second.status is PullStatus.FOUND


@pytest.mark.usefixtures("reset")
def test_a_range_is_read_whole_after_a_reset(address, queue, group):
    """F5, F4: the group's offsets are in its offset store, and a reset is no data loss."""
    planned = QueueRange(queue=queue, start=8, end=COUNT, epoch=1)
    partition = QueuePartition(
        planned=planned,
        address=BrokerAddress(address),
        subscription="*",
        consumer_group=group,
        with_marker=True,
        fail_on_data_loss=True,
        pull_batch_size=8,
        pulls_in_flight=4,
        request_timeout_s=10.0,
        retry_timeout_s=10.0,
    )

    *messages, marker = read_queue(partition)

    seen = [offset for batch in messages for offset in batch.column("queueOffset").to_pylist()]
    assert seen == list(range(8, COUNT))
    text = marker.column("plannedRange")[0].as_py()
    assert planned_range(queue, text, rows=len(seen)) == planned
