"""Where a queue without stored progress begins, by startingOffsets or by a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark_rocketmq.consume.gaps import OffsetGap
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.queue_positions import EARLIEST_OFFSET, LATEST_OFFSET, QueuePositions


class StartingPosition(NamedTuple):
    """Where one queue begins."""

    queue_offset: int
    """Within the broker's bounds."""
    gap: OffsetGap | None
    """Set when the offset asked for is outside them; ``queue_offset`` is then the nearest inside."""


def starting_position(spec: QueuePositions, queue: MessageQueue, bounds: QueueBounds) -> StartingPosition:
    """Resolve earliest, latest or a fixed offset against what the broker holds."""
    wanted = spec.wanted(queue)
    if wanted == EARLIEST_OFFSET:
        return StartingPosition(bounds.min_offset, None)
    if wanted == LATEST_OFFSET:
        return StartingPosition(bounds.max_offset, None)
    gap = OffsetGap.between(queue, wanted, bounds)
    return StartingPosition(wanted if gap is None else gap.corrected, gap)


def starting_positions(
    spec: QueuePositions, bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[dict[MessageQueue, int], tuple[str, ...]]:
    """Positions of all queues of ``bounds``, and a sentence for each offset outside them.

    Queues that ``spec`` names and ``bounds`` lacks are no problem here, for ``bounds`` may be a part of the
    topic: see ``unknown_queue_problems``.
    """
    positions: dict[MessageQueue, int] = {}
    problems: list[str] = []
    for queue in sorted(bounds):
        position = starting_position(spec, queue, bounds[queue])
        positions[queue] = position.queue_offset
        if position.gap is not None:
            problems.append(_outside(position.gap))
    return positions, tuple(problems)


def unknown_queue_problems(
    spec: QueuePositions, queues: Collection[MessageQueue], option: str = "startingOffsets"
) -> tuple[str, ...]:
    """A sentence for each queue that ``option`` names and the topic's ``queues`` (all of them) do not contain."""
    return tuple(
        f"{option} names {queue}, which does not exist; correct topic, broker name or queue id."
        for queue in sorted(spec.by_queue.keys() - set(queues))
    )


def timed_positions(
    found: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[dict[MessageQueue, int], tuple[MessageQueue, ...]]:
    """Positions of queues whose first message at or after a time is at ``found``, and those that have no such message.

    A broker answers the maximum for a time after its last message, and for one before everything it has the first
    offset of a file of its consume queue, which may be below the minimum (``ConsumeQueue.binarySearchInQueueByTime``).
    """
    positions = {
        queue: min(max(offset, bounds[queue].min_offset), bounds[queue].max_offset)
        for queue, offset in found.items()
    }
    return positions, tuple(
        queue for queue in sorted(positions) if positions[queue] == bounds[queue].max_offset
    )


def _outside(gap: OffsetGap) -> str:
    return (
        f"startingOffsets wants offset {gap.wanted} of {gap.queue}, but the broker has {gap.min_offset} to "
        f"{gap.max_offset}; use an offset in there, -2 (earliest) or -1 (latest)."
    )
