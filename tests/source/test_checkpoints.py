"""Streams that go on from a checkpoint, and what AvailableNow makes of changes in between."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.errors import OffsetError, QueueRemoved
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.stream_read import offsets_by_queue
from tests.helpers.wait import wait_until
from tests.source.conftest import Topics

RECORDED = (
    '{"v": 1, "seq": 7, "plan": {"TOPIC": {"broker-a": {"0": {"from": 1, "to": 3}, "1": {"from": 2, "to": '
    "2}}}}}"
)
"""As version 1 of the offset has ever been written."""


def queue_of(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def test_a_recorded_checkpoint_is_gone_on_from(topics: Topics) -> None:
    topic = topics.make(5, 4)
    stream = topics.stream(topic)
    stream.log = [
        RECORDED.replace("TOPIC", topic).replace('"seq": 7', '"seq": 6'),
        RECORDED.replace("TOPIC", topic),
    ]

    assert offsets_by_queue(stream.run()) == {queue_of(topic): [1, 2]}
    assert stream.next_offsets() == {queue_of(topic): [3, 4], queue_of(topic, 1): [2, 3]}


OF_A_GROUP = '{"v": 1, "seq": 1, "plan": {"orders": {"a": {"0": {"from": 0, "to": 1, "epoch": 3}}}}}'
"""Only the queues that had new messages: a plain stream would read all others from their first message."""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"v": 4, "seq": 1, "plan": {}}', "version 4; this release reads versions"),
        ('{"v": 2, "seq": 1, "plan": {}}', "is damaged"),
        ('{"orders": {"0": 23}}', "is another query's: the offset in it, {'orders': {'0': 23}}, is not one"),
        ("7", "is another query's: the offset in it, 7, is not one of format"),
        ("[7]", "is another query's: .* Take a new folder"),
        ('"v"', "is another query's"),
        ('{"v": 1, "seq": 1, "plan": {"orders": {"broker-a": {"0": {"from": 1}}}}}', "is damaged"),
        ('{"v": 1, "seq": 1, "plan": []}', "is damaged"),
        (OF_A_GROUP, "is a consumer group's: .* Take a new folder"),
        ('{"v": 3, "seq": 1, "for_s": 300, "live": {}}', "is a consumer group's"),
    ],
)
def test_a_checkpoint_that_cannot_be_gone_on_from_is_refused(
    topics: Topics, text: str, sentence: str
) -> None:
    stream = topics.stream(topics.make(1))
    stream.log = [text]

    with pytest.raises(OffsetError, match=sentence):
        stream.plan()


def test_the_same_batch_is_read_again_after_a_restart_whatever_came_meanwhile(topics: Topics) -> None:
    """H1: the log says what is in it."""
    topic = topics.make(3)
    stream = topics.stream(topic)
    assert stream.plan()
    topics.put(topic, 0, 2)
    stream.restart(maxOffsetsPerTrigger="1")

    assert offsets_by_queue(stream.run()) == {queue_of(topic): [0, 1, 2]}
    assert stream.next_offsets() == {queue_of(topic): [3]}


def test_a_queue_added_between_a_failed_drain_and_its_restart_is_no_trouble(topics: Topics) -> None:
    """H4: SPARK-53560, where Kafka's source went on crashing."""
    topic = topics.make(3)
    stream = topics.stream(topic, maxOffsetsPerTrigger="2", routeRefreshMs="1")
    stream.prepare_available_now()
    assert stream.plan()
    topics.sim.create_topic(topic, queues=2, brokers=["broker-a"])
    topics.put(topic, 1, 2)

    stream.restart()
    wait_until(lambda: len(topics.offsets(topic)) == 2)
    stream.prepare_available_now()
    read = [offsets_by_queue(stream.run())]
    while (batch := stream.next_offsets()) is not None:
        read.append(batch)

    assert sorted(offset for batch in read for offset in batch.get(queue_of(topic), [])) == [0, 1, 2]
    assert sorted(offset for batch in read for offset in batch.get(queue_of(topic, 1), [])) == [0, 1]


def test_a_drain_fails_when_a_queue_goes_while_it_runs(topics: Topics) -> None:
    """H4, failOnDataLoss: as Spark's "AvailableNow should throw error
    when topic partitions got unavailable".
    """
    topic = topics.make(1, 4)
    stream = topics.stream(topic, maxOffsetsPerTrigger="2", routeRefreshMs="1")
    stream.prepare_available_now()
    assert stream.next_offsets() is not None

    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"])

    with pytest.raises(QueueRemoved, match=r"queue=1: offset 1 was to be read next"):
        wait_until(lambda: stream.plan() and False)


def test_a_drain_ends_at_what_was_there_when_it_began(topics: Topics) -> None:
    """H4"""
    topic = topics.make(2)
    stream = topics.stream(topic)
    stream.prepare_available_now()
    topics.put(topic, 0, 3)

    assert stream.next_offsets() == {queue_of(topic): [0, 1]}
    assert stream.next_offsets() is None


def test_the_largest_limit_there_is_overflows_nothing(topics: Topics) -> None:
    """maxOffsetsPerTrigger: SPARK-26718."""
    topic = topics.make(3)

    stream = topics.stream(topic, maxOffsetsPerTrigger=str(2**62), maxBytesPerTrigger=str(2**62))

    assert stream.next_offsets() == {queue_of(topic): [0, 1, 2]}


def test_a_trigger_without_anything_new_writes_no_offset(topics: Topics) -> None:
    """SPARK-41375: empty queues are no news."""
    stream = topics.stream(topics.make(0, 1))
    assert stream.next_offsets() is not None

    assert stream.plan() is False
    assert len(stream.log) == 2


def test_progress_has_the_end_of_each_queue(topics: Topics) -> None:
    """reportLatestOffset, from which lag is computed; a restart has nothing to report yet."""
    topic = topics.make(2, 1)
    stream = topics.stream(topic)
    assert stream.plan()
    assert stream.latest() == {topic: {"broker-a": {"0": 2, "1": 1}}}

    stream.restart()
    assert stream.latest() == {}


def test_how_far_queues_are_behind_follows_from_the_progress(topics: Topics) -> None:
    """maxOffsetsPerTrigger: what Kafka's source has as min, max and avgOffsetsBehindLatest,
    with and without a limit.
    """
    topic = topics.make(8, 2, 0)
    stream = topics.stream(topic, maxOffsetsPerTrigger="5")

    def behind() -> tuple[int, int, float]:
        plan, latest = stream.planned()[topic]["broker-a"], stream.latest()[topic]["broker-a"]
        lags = [end - plan.get(queue_id, {"to": end})["to"] for queue_id, end in latest.items()]
        return min(lags), max(lags), sum(lags) / len(lags)

    assert stream.plan()
    assert behind() == (0, 4, 5 / 3)
    stream.restart(maxOffsetsPerTrigger="100")
    assert stream.plan()
    assert behind() == (0, 0, 0)


def test_options_of_a_running_query_may_change(topics: Topics) -> None:
    """Like Spark's Kafka source: startingOffsets applies only to new queries."""
    topic = topics.make(2)
    stream = topics.stream(topic)
    assert stream.next_offsets() is not None
    topics.put(topic, 0, 1)

    stream.restart(startingOffsets=json.dumps({topic: 0}), minPartitions="2")

    assert stream.next_offsets() == {queue_of(topic): [2]}
