"""The stream reader as Spark 4.0 and 4.1 call it: ``latestOffset()`` without a word about where a plan begins,
how much it may hold, or when the query is to end.
"""

from __future__ import annotations

import json
from unittest.mock import create_autospec

import pytest

from pyspark_rocketmq.consumer.engine.state import slices_arrow_by_float
from pyspark_rocketmq.hub.planner_end import PlannerControl
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source import readers
from tests.helpers.stream_read import StreamUnderTest
from tests.source.conftest import Topics


class OldStream(StreamUnderTest):
    """Asks for the latest offset first, for the initial one only when there is a batch."""

    def plan(self) -> bool:
        end = self._reader.latestOffset()
        if not self.log:
            self.log.append(json.dumps(self._reader.initialOffset()))
        if end == self._offset(-1):
            return False
        self.log.append(json.dumps(end))
        return True

    def restart(self, **changed: str) -> None:
        super().restart(**changed)
        newest = self._offset(-1)
        assert list(self._reader.partitions(newest, newest)) == []


def old_stream(topics: Topics, topic: str, **options: str) -> OldStream:
    return OldStream(nameServers=topics.sim.name_servers, topic=topic, startingOffsets="earliest", **options)


def test_each_micro_batch_is_bounded_and_follows_the_one_before(topics: Topics) -> None:
    """Row J4"""
    topic = topics.make(5)
    queue = MessageQueue(topic, "broker-a", 0)
    stream = old_stream(topics, topic, maxOffsetsPerTrigger="2")

    assert stream.next_offsets() == {queue: [0, 1]}
    assert stream.next_offsets() == {queue: [2, 3]}
    assert stream.next_offsets() == {queue: [4]}
    assert stream.next_offsets() is None


def test_a_query_that_starts_again_goes_on_after_the_newest_offset_of_its_log(topics: Topics) -> None:
    """Row J4: whether the batch of that offset is run again or not."""
    topic = topics.make(6)
    queue = MessageQueue(topic, "broker-a", 0)
    stream = old_stream(topics, topic, maxOffsetsPerTrigger="2")
    stream.next_offsets()

    stream.restart()
    assert stream.next_offsets() == {queue: [2, 3]}

    stream.restart()
    assert stream.run().num_rows == 2
    assert stream.next_offsets() == {queue: [4, 5]}


def test_a_drain_reads_what_was_there_at_its_start_and_reports_its_end(
    topics: Topics,
) -> None:
    """Rows H4, J4: ``availableNow``."""
    topic = topics.make(3)
    queue = MessageQueue(topic, "broker-a", 0)
    stream = old_stream(topics, topic, maxOffsetsPerTrigger="2", drains="true")
    driver = create_autospec(PlannerControl, instance=True)
    stream._reader.__dict__["_driver"] = driver

    assert stream.next_offsets() == {queue: [0, 1]}
    topics.put(topic, 0, 4)
    assert stream.next_offsets() == {queue: [2]}
    driver.drained.assert_not_called()
    assert stream.next_offsets() is None
    driver.drained.assert_called_once()


@pytest.mark.parametrize(
    ("passes_trigger", "options", "warned"),
    [
        (
            False,
            {"maxOffsetsPerTrigger": "2", "maxBytesPerTrigger": "99"},
            "maxOffsetsPerTrigger=2, maxBytes",
        ),
        (False, {}, None),
        (True, {"maxOffsetsPerTrigger": "2"}, None),
    ],
)
def test_limits_are_warned_of_where_spark_ends_a_stream_after_one_micro_batch(
    passes_trigger: bool,
    options: dict[str, str],
    warned: str | None,
    *,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rows H4, J4: ``availableNow`` would read a part and end without a word."""
    monkeypatch.setattr(readers, "SPARK_PASSES_TRIGGER", passes_trigger)

    old_stream(topics, topics.make(3), **options).next_offsets()

    told = [
        record.getMessage() for record in caplog.records if "does not pass the trigger" in record.getMessage()
    ]
    assert len(told) == (warned is not None)
    assert (warned or "") in "".join(told)


@pytest.mark.parametrize(
    ("spark", "fails"),
    [
        ("4.0.0", True),
        ("4.0.4", True),
        ("4.0.5", False),
        ("4.1.0", True),
        ("4.1.3", True),
        ("4.1.4", False),
        ("4.1.10", False),
        ("4.2.0", False),
        ("4.2.0.dev3", False),
        ("4.3.0", False),
    ],
)
def test_each_spark_is_known_whose_state_needs_an_arrow_that_takes_floats(spark: str, *, fails: bool) -> None:
    """Row J4: ``orderlyEngine=state``."""
    assert slices_arrow_by_float(spark) is fails
