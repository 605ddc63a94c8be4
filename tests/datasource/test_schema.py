from __future__ import annotations

import pytest

from pyspark_rocketmq.datasource.schema import CONSUMER_SCHEMA, marker_row, planned_range, reset_target
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import QueueRange
from tests.helpers.messages import QUEUE

PLANNED = QueueRange(queue=QUEUE, start=10, end=20, epoch=3, reconsume_times=2)


def test_a_marker_row_stands_at_the_end_of_its_range_and_brings_it_back() -> None:
    """D1: its position sorts it behind every message of the range."""
    (row,) = marker_row(PLANNED, rows=8).to_pylist()

    assert (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) == (*QUEUE, 20)
    assert row["kind"] == "end"
    assert planned_range(QUEUE, row["plannedRange"], rows=8) == PLANNED
    assert reset_target(row["plannedRange"]) is None


def test_a_marker_row_tells_where_an_operator_wants_the_queue_consumed_from() -> None:
    """F5: 0 is a target like any other."""
    (row,) = marker_row(PLANNED, rows=8, reset_to=0).to_pylist()

    assert planned_range(QUEUE, row["plannedRange"], rows=8) == PLANNED
    assert reset_target(row["plannedRange"]) == 0


def test_no_number_and_no_time_of_a_marker_row_is_null() -> None:
    """pandas would make floats of the whole column."""
    marker = marker_row(PLANNED, rows=0)

    assert marker.schema == CONSUMER_SCHEMA
    for name in ("queueId", "queueOffset", "commitLogOffset", "reconsumeTimes", "sysFlag", "flag"):
        assert marker.column(name).null_count == 0
    assert marker.column("bornTimestamp").null_count == marker.column("storeTimestamp").null_count == 0


@pytest.mark.parametrize("arrived", [7, 9])
def test_rows_that_were_lost_or_added_on_the_way_are_an_error(arrived: int) -> None:
    """H1: the whole range is acknowledged, so all of it must have arrived."""
    text = marker_row(PLANNED, rows=8).to_pylist()[0]["plannedRange"]

    with pytest.raises(
        RocketMQError, match=f"8 messages were read of the range 10 to 20, but {arrived} rows"
    ):
        planned_range(QUEUE, text, rows=arrived)
