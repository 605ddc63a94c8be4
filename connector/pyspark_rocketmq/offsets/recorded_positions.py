"""Moves a group to recorded positions: those of its sink, its own earlier ones, or another group's.

Only a broker shows whether such a position belongs to the queue's present log. So such a move does not count
as a reset by an operator. The row remembers consumed messages, and the next planner checks whether the broker
still has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.recorded_sinks import NO_SINKS, RecordedSinks
from pyspark_rocketmq.offsets.store import LastSkipped, OffsetRow, OffsetStore, SinkRecord
from pyspark_rocketmq.stored_values import NO_MESSAGES, RememberedMessages


class RecordedPosition(NamedTuple):
    """A position in a queue, as it was recorded."""

    next_offset: int
    generation: int = 0
    """Generation of a queue without a row: a number that grows when the queue's offsets start again."""
    last_message: RememberedMessages = NO_MESSAGES
    """Messages that had been consumed when the position was recorded; the queue's row will remember them."""
    sinks: RecordedSinks = NO_SINKS
    """Sinks whose watermark the position is, which the queue's row will name."""


def position_of_sink(row: OffsetRow | None, record: SinkRecord) -> RecordedPosition:
    """Return where a group continues in a queue so that its sink gets all rows that it lacks.

    Usually this is the sink's watermark. A queue's generation grows when its offsets start again with other
    messages. If the group's row is in a later generation than the sink, the sink has no rows of the later
    generations. The group then continues at the lowest of the watermark and the offsets at which these
    generations began; at 0 if one of those is no longer recorded.

    Args:
        row: The queue's row in the offset store; None if there is none.
        record: The sink's progress in the newest generation of which it has rows.
    """
    generation, watermark, newest = record
    if row is None or row.generation == generation:
        return RecordedPosition(watermark, generation, newest)
    later = row.generation - generation
    if later < 0:
        return RecordedPosition(watermark, generation)
    begun_at = [offset for offset, _ in row.boundaries.behind[:later]]
    return RecordedPosition(min(watermark, *begun_at) if len(begun_at) == later else 0, generation)


def move_to_recorded(
    store: OffsetStore,
    consumer_group: str,
    positions: Mapping[MessageQueue, RecordedPosition],
    rows: Mapping[MessageQueue, OffsetRow],
) -> dict[MessageQueue, OffsetRow]:
    """Move a group to recorded positions; return the new rows of the queues that were moved.

    ``rows`` are the group's rows as the caller read them. A queue whose epoch has changed since is not moved.

    Raises:
        OffsetError: If a position is negative, or above the highest one.
        OffsetStoreUnavailable, OffsetCommitConflict: If the store cannot be written.
    """
    epochs = {queue: rows[queue].epoch for queue in positions if queue in rows}
    new = {queue: each for queue, each in positions.items() if queue not in rows}
    if new:
        starts = {queue: each.next_offset for queue, each in new.items()}
        generations = {queue: each.generation for queue, each in new.items()}
        claimed = store.claim(consumer_group, "", starts, generations)
        epochs |= {queue: row.epoch for queue, row in claimed.items()}
    targets = {queue: each.next_offset for queue, each in positions.items()}
    sinks = {queue: each.sinks for queue, each in positions.items()}
    moved = store.reset(consumer_group, targets, under=epochs, sinks=sinks)
    consumed = {
        queue: LastSkipped(row.epoch, positions[queue].last_message)
        for queue, row in moved.items()
        if positions[queue].last_message
    }
    if consumed:
        store.note_passed(consumer_group, consumed)
    return moved
