"""Ranges of queues split into tasks; the cases of Spark's KafkaOffsetRangeCalculatorSuite by their names."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.planning import MAX_PARTS, split_ranges
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue, QueueRange


def ranges(*counts: int) -> list[QueueRange]:
    return [
        QueueRange.between(MessageQueue("orders", "broker-a", number), 100, 100 + count)
        for number, count in enumerate(counts)
    ]


def lengths(
    counts: tuple[int, ...], min_partitions: int | None, max_records: int | None = None
) -> list[list[int]]:
    """Lengths of the parts of each queue."""
    parts = split_ranges(ranges(*counts), min_partitions=min_partitions, max_records=max_records)
    return [[part.count for part in queue] for _, queue in groupby(parts, lambda part: part.queue)]


@pytest.mark.parametrize(
    ("counts", "min_partitions", "max_records", "parts"),
    [
        ((5, 10), None, None, [[5], [10]]),
        ((5, 10), 2, None, [[5], [10]]),
        ((5, 0, 10), 1, None, [[5], [10]]),
        ((4,), 4, None, [[1, 1, 1, 1]]),
        ((3,), 10, None, [[1, 1, 1]]),
        ((100, 100), 4, None, [[50, 50], [50, 50]]),
        ((10_000, 1000, 1000), 12, None, [[1000] * 10, [1000], [1000]]),
        ((1, 100), 8, None, [[1], [14, 14, 14, 15, 14, 14, 15]]),
        ((5,), 2, None, [[2, 3]]),
        ((100,), None, 30, [[25] * 4]),
        ((100, 10), None, 30, [[25] * 4, [10]]),
        ((100, 10), 2, 30, [[25] * 4, [10]]),
        ((100,), 10, 50, [[10] * 10]),
    ],
)
def test_ranges_are_split_as_in_spark_s_kafka_source(
    counts: tuple[int, ...], min_partitions: int | None, max_records: int | None, parts: list[list[int]]
) -> None:
    """N to N, empty ranges ignored, 1 to N, N skewed to M, very skewed, inexact multiple,
    small beside large.
    """
    assert lengths(counts, min_partitions, max_records) == parts


@given(
    st.lists(st.integers(0, 200), max_size=6),
    st.one_of(st.none(), st.integers(1, 60)),
    st.one_of(st.none(), st.integers(1, 90)),
)
def test_no_offset_is_dropped_or_read_twice(
    counts: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    """SPARK-28489: whatever is asked for."""
    whole = ranges(*counts)

    parts = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)

    assert all(0 < part.count <= (max_records or 200) for part in parts)
    offsets = [(part.queue, offset) for part in parts for offset in range(part.start, part.end)]
    assert offsets == [(each.queue, offset) for each in whole for offset in range(each.start, each.end)]


@pytest.mark.parametrize("counts", [(1 << 62,), (MAX_PARTS, 1), (5, (1 << 63) - 101)])
def test_more_parts_than_a_driver_can_hold_are_refused_before_they_are_made(counts: tuple[int, ...]) -> None:
    """H9: a broker may report any offset."""
    with pytest.raises(
        OptionError,
        match=r"'maxRecordsPerPartition=1' .* \d+ tasks.*largest range is .*queue=\d from .*\. Raise the option",
    ):
        split_ranges(ranges(*counts), min_partitions=None, max_records=1)
