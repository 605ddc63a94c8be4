"""What may be read from a slave while its master is down. Pure.

A slave has a window of its master's log: it may lag behind the end, and a slave that was set up late has not
the beginning.  So neither of its bounds is the queue's.

Rule 1: a queue goes on at the slave only where it stands within the slave's bounds; else it waits for the
master. No offset is corrected by what a slave has, and none is taken for one that went back.
Rule 2: where a stream or a group begins is said by masters alone, for that is remembered.
Rule 3: a batch read's ``earliest`` and ``latest`` are the slave's. What it wants by offset or time is read
only where the slave shows that it has all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.options.positions import EARLIEST_OFFSET, LATEST_OFFSET, QueuePositions

_WORDS = (EARLIEST_OFFSET, LATEST_OFFSET)


def has_range(bounds: QueueBounds, planned: QueueRange) -> bool:
    """Whether a slave has all of a range that was planned, by whatever bounds."""
    return bounds.allow(planned.start) and planned.end <= bounds.max_offset


def offsets_in_doubt(
    wanted: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Queues where an offset is wanted that the slave does not have: its master may."""
    return tuple(
        queue
        for queue in sorted(bounds)
        if wanted.wanted(queue) not in _WORDS and not bounds[queue].allow(wanted.wanted(queue))
    )


def starts_in_doubt(
    times: QueuePositions, found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Queues that begin at a time (``found``) with the first message the slave has: its master may have earlier ones."""
    return tuple(
        queue
        for queue in sorted(bounds)
        if times.wanted(queue) not in _WORDS and 0 < bounds[queue].min_offset >= found[queue]
    )


def ends_in_doubt(
    times: QueuePositions, found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[MessageQueue, ...]:
    """Queues that end at a time (``found``) after all that the slave has: its master may have more from before.

    A slave copies its master's log in order, so one message of any queue that is as late shows that nothing
    earlier is missing.
    """
    newest: dict[str, int] = {}
    for queue, each in bounds.items():
        newest[queue.broker_name] = max(newest.get(queue.broker_name, 0), each.last_update_timestamp)
    return tuple(
        queue
        for queue in sorted(bounds)
        if times.wanted(queue) not in _WORDS
        and found[queue] >= bounds[queue].max_offset
        and times.wanted(queue) > newest[queue.broker_name]
    )
