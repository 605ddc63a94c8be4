"""Where streams begin, and that they miss nothing and read nothing twice when stopped,
restarted and given more queues.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from pyspark_rocketmq.model import MessageQueue
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import wait_until
from tests.source.conftest import Topics, message

QUEUES, MORE_QUEUES = 5, 10
BEFORE, AFTER = 2, 1
"""Messages in each of the first queues: stored before a moment, and after it."""


class Reading:
    """A stream of one topic, and what it has read."""

    def __init__(self, topics: Topics, topic: str, /, **options: str) -> None:
        self._topics = topics
        self._topic = topic
        self._queues = QUEUES
        self.stream: StreamUnderTest = topics.stream(
            options.pop("topic", None), routeRefreshMs="1", **options
        )
        self.offsets: dict[int, list[int]] = defaultdict(list)
        """By queue id, in the order of the rows."""

    def add(self, queues: int) -> None:
        """A message in each of so many queues; those that are missing are made."""
        if queues > self._queues:
            self._topics.sim.create_topic(self._topic, queues=queues, brokers=["broker-a"])
            self._queues = queues
        for queue_id in range(queues):
            self._topics.put(self._topic, queue_id, 1)

    def read(self) -> None:
        """All that is new; a route with a new queue comes a moment later."""

        def has_come() -> bool:
            for queue, offsets in (self.stream.next_offsets() or {}).items():
                self.offsets[queue.queue_id] += offsets
            ends = {queue_id: self._end(queue_id) for queue_id in range(self._queues)}
            return all((self.offsets[queue_id] or [-1])[-1] == end - 1 for queue_id, end in ends.items())

        wait_until(has_come, reason="The newest message of each queue")

    def _end(self, queue_id: int) -> int:
        return self._topics.sim.bounds(MessageQueue(self._topic, "broker-a", queue_id)).max_offset


def stored_before_and_after(topics: Topics) -> tuple[str, int]:
    """A topic with messages before a moment, in ms, and after it."""
    topic = topics.make(*[BEFORE] * QUEUES)
    moment = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 >= moment)
    for queue_id in range(QUEUES):
        topics.put(topic, queue_id, AFTER)
    return topic, moment


def starts(topic: str, moment: int) -> Iterator[tuple[str, dict[str, str], list[int]]]:
    """Names, options, and with which offset each of the first queues then begins."""

    def of_queues(*values: int) -> str:
        return json.dumps({topic: {"broker-a": dict(zip("01234", values, strict=True))}})

    everything = BEFORE + AFTER
    yield "latest", {"startingOffsets": "latest"}, [everything] * QUEUES
    yield "earliest", {"startingOffsets": "earliest"}, [0] * QUEUES
    yield "offsets", {"startingOffsets": of_queues(-2, -1, 0, 1, 2)}, [0, everything, 0, 1, 2]
    times = of_queues(moment, moment, 0, 1, 2**41)
    yield "times", {"startingOffsetsByTimestamp": times}, [BEFORE, BEFORE, 0, 0, everything]
    yield "time", {"startingTimestamp": str(moment)}, [BEFORE] * QUEUES


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("by", ["topic", "pattern"])
@pytest.mark.parametrize("start", ["latest", "earliest", "offsets", "times", "time"])
def test_a_stream_reads_each_message_once_from_its_start_on(
    topics: Topics, start: str, by: str, fail_on_data_loss: str
) -> None:
    """F2, H1, A2: startingOffsets, startingTimestamp, startingOffsetsByTimestamp, topicPattern,
    failOnDataLoss.

    As the tests of Spark's Kafka source: stopped and started, data while stopped,
    5 queues that become 10 while it runs.
    """
    topic, moment = stored_before_and_after(topics)
    [(given, first)] = [(given, first) for name, given, first in starts(topic, moment) if name == start]
    what = {"topic": topic} if by == "topic" else {"topicPattern": re.escape(topic)}
    reading = Reading(topics, topic, failOnDataLoss=fail_on_data_loss, **what, **given)
    begun = reading.stream.next_offsets()
    ends = {number: list(range(offset, BEFORE + AFTER)) for number, offset in enumerate(first)}
    assert {queue.queue_id: offsets for queue, offsets in (begun or {}).items()} == {
        number: offsets for number, offsets in ends.items() if offsets
    }
    reading.offsets.update(ends)

    reading.add(QUEUES)
    reading.read()
    reading.stream.restart()
    assert reading.stream.next_offsets() is None
    reading.stream.restart()
    reading.add(QUEUES)
    reading.read()
    reading.add(MORE_QUEUES - 1)
    reading.read()
    reading.stream.restart()
    reading.add(MORE_QUEUES)
    reading.stream.restart()
    reading.read()

    assert reading.offsets == {
        **{number: list(range(offset, BEFORE + AFTER + 4)) for number, offset in enumerate(first)},
        **{number: [0, 1] for number in range(QUEUES, MORE_QUEUES - 1)},
        MORE_QUEUES - 1: [0],
    }


@pytest.mark.parametrize("while_it_runs", [True, False])
def test_a_topic_that_a_new_broker_has_too_is_read_there_from_its_start(
    topics: Topics, while_it_runs: bool
) -> None:
    """A2: where Java's push consumer begins at the end if it was stopped meanwhile (rocketmq#9307)."""
    topic = topics.make(1)
    there = MessageQueue(topic, "broker-b", 0)
    stream = topics.stream(topic, startingOffsets="latest", routeRefreshMs="1")
    assert stream.next_offsets() is None
    topics.put(topic, 0, 1)
    assert stream.next_offsets() == {MessageQueue(topic, "broker-a", 0): [1]}

    topics.sim.create_topic(topic, queues=1, brokers=["broker-b"])
    topics.sim.put(there, [message(topic, number) for number in range(3)])
    if not while_it_runs:
        stream.restart()

    assert wait_until(stream.next_offsets, reason="The new broker") == {there: [0, 1, 2]}


def test_offsets_of_topics_stand_beside_a_topic_that_appears_later(topics: Topics) -> None:
    """startingOffsets per topic, topicPattern: as Kafka's "topic-level
    offsets tolerate a new topic" (SPARK-58774).
    """
    old, whole, later = (topics.make(2, topic=f"level-{name}") for name in ("old", "whole", "queue"))
    begin = {old: "latest", later: {"broker-a": {"0": 1}}}
    stream = topics.stream(
        None, topicPattern="level-.*", startingOffsets=json.dumps(begin), routeRefreshMs="1"
    )
    assert stream.next_offsets() == {
        MessageQueue(whole, "broker-a", 0): [0, 1],
        MessageQueue(later, "broker-a", 0): [1],
    }

    new = topics.make(2, topic="level-new")
    topics.put(old, 0, 1)

    wanted = {MessageQueue(new, "broker-a", 0): [0, 1], MessageQueue(old, "broker-a", 0): [2]}
    assert stream.next_offsets() == wanted
