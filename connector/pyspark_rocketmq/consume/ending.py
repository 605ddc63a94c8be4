"""Where the batch read of a queue ends, by endingOffsets, and that this fits its beginning."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.queue_positions import EARLIEST_OFFSET, LATEST_OFFSET, QueuePositions


def ending_positions(
    spec: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[dict[MessageQueue, int], tuple[str, ...]]:
    """Exclusive ends of all queues of ``bounds``, at most their maximum, and a sentence for each that is beyond it.

    Where a queue is to end at EARLIEST_OFFSET nothing of it is read.
    """
    ends: dict[MessageQueue, int] = {}
    problems: list[str] = []
    for queue in sorted(bounds):
        wanted, available = spec.wanted(queue), bounds[queue].max_offset
        words = {LATEST_OFFSET: available, EARLIEST_OFFSET: bounds[queue].min_offset}
        ends[queue] = words.get(wanted, min(wanted, available))
        if wanted > available:
            problems.append(
                f"endingOffsets wants offset {wanted} (exclusive) of {queue}, but the broker has only "
                f"{bounds[queue].min_offset} to {available}; use an offset in there or -1 (latest)."
            )
    return ends, tuple(problems)


def backward_problems(
    starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
) -> tuple[str, ...]:
    """A sentence for each queue that would end before it begins."""
    return tuple(
        f"{queue} would be read from offset {start} to {ends[queue]} (exclusive), which is before it: endingOffsets wants "
        "messages that startingOffsets leaves out, or that are no longer there; correct one of them."
        for queue, start in sorted(starts.items())
        if start > ends[queue]
    )


def batch_ranges(starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """What to read, sorted by queue; empty where a queue ends before it begins."""
    return [
        QueueRange(queue=queue, start=start, end=max(start, ends[queue]))
        for queue, start in sorted(starts.items())
    ]
