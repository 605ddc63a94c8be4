"""Splits ranges of queues into more tasks than there are queues; every offset stays in exactly one of them.

Source: Spark's ``KafkaOffsetRangeCalculator.getRanges``, whose options have the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import QueueRange

MAX_PARTS: Final = 100_000
"""Of one read: a broker may tell any offset, and Spark's driver has each task in memory."""


def split_ranges(
    ranges: Sequence[QueueRange], *, min_partitions: int | None, max_records: int | None
) -> list[QueueRange]:
    """The non-empty ``ranges``, in their order, each cut into consecutive parts of nearly equal length.

    Args:
        ranges: One for each queue.
        min_partitions: About so many parts in all, shared in proportion to length; ranges shorter than a fair part stay
            whole, and no part is empty, so there may be fewer.
        max_records: Offsets of one part at most.

    Raises:
        OptionError: If ``max_records`` asks for more than ``MAX_PARTS``; none of them is made then.
    """
    wanted = [each for each in ranges if each.count > 0]
    if max_records is not None:
        if (count := sum(-(-each.count // max_records) for each in wanted)) > MAX_PARTS:
            largest = max(wanted, key=lambda each: each.count)
            problem = (
                f"option 'maxRecordsPerPartition={max_records}' would make {count} tasks, more than {MAX_PARTS}: "
                f"{largest.queue} alone is read from {largest.start} to {largest.end}; raise it"
            )
            raise OptionError((problem,))
        wanted = [part for each in wanted for part in _cut(each, -(-each.count // max_records))]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(each.count for each in wanted)
    small = [each for each in wanted if each.count * min_partitions < total]
    left = max(1, min_partitions - len(small))
    total_left = total - sum(each.count for each in small)
    parts: list[QueueRange] = []
    for each in wanted:
        # Rounded as in Spark: about as many as asked for, not exactly.
        count = 1 if each.count * min_partitions < total else _rounded(each.count * left, total_left)
        parts += _cut(each, count)
    return parts


def _rounded(dividend: int, divisor: int) -> int:
    return (2 * dividend + divisor) // (2 * divisor)


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    count = max(1, min(count, whole.count))
    bounds = [whole.start + whole.count * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]
