"""Was an offset store put back to an earlier state?  Pure: the rows of two looks in, what went back out.

Nothing that the rules allow takes a row away, lowers its epoch, or moves it back within one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetRow


def what_went_back(
    before: Mapping[MessageQueue, OffsetRow], now: Mapping[MessageQueue, OffsetRow]
) -> tuple[str, ...]:
    """Words for each queue that stands, by an earlier look, where it cannot come to by any change; sorted by queue."""
    return tuple(words for queue, row in sorted(before.items()) if (words := _of_one(row, now.get(queue))))


def _of_one(before: OffsetRow, now: OffsetRow | None) -> str:
    if now is None:
        return f"{before.queue} was at {before.next_offset} and is not there"
    if now.epoch < before.epoch:
        return f"{before.queue} was at {before.next_offset} in epoch {before.epoch} and is at {now.next_offset} in epoch {now.epoch}"
    if now.epoch == before.epoch and now.next_offset < before.next_offset:
        return f"{before.queue} was at {before.next_offset} and is at {now.next_offset}, both in epoch {now.epoch}"
    return ""
