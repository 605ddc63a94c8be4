"""A consumer group's progress beside what the brokers hold, as rows for a table or for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark_rocketmq.consume.metrics import QueueLag
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.store import OffsetRow


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetView:
    """One queue of one group."""

    row: OffsetRow
    bounds: QueueBounds | None
    """None when the broker was not asked or does not have the queue."""

    @property
    def lag(self) -> QueueLag:
        """How far the group is behind the end of the queue, or beyond it."""
        return QueueLag(self.row.next_offset, None if self.bounds is None else self.bounds.max_offset)

    def columns(self) -> dict[str, Any]:
        """Values by column name, in display order; times as ISO 8601 in UTC."""
        return {
            "consumerGroup": self.row.consumer_group,
            "topic": self.row.queue.topic,
            "brokerName": self.row.queue.broker_name,
            "queueId": self.row.queue.queue_id,
            "nextOffset": self.row.next_offset,
            "brokerMinOffset": self.bounds.min_offset if self.bounds else None,
            "brokerMaxOffset": self.bounds.max_offset if self.bounds else None,
            "lag": self.lag.messages,
            "note": self.lag.note,
            "reconsumeTimes": self.row.reconsume_times,
            "suspendedUntil": iso(self.row.suspended_until_s),
            "epoch": self.row.epoch,
            "owner": self.row.owner,
            "queryId": self.row.query_id,
            "batchId": self.row.batch_id,
            "updatedAt": iso(self.row.updated_at_s),
        }


BROKER_COLUMNS = ("brokerMinOffset", "brokerMaxOffset", "lag")


def view_offsets(
    rows: Iterable[OffsetRow], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[OffsetView, ...]:
    """Join progress and bounds, sorted by group and queue."""
    return tuple(
        OffsetView(row=row, bounds=bounds.get(row.queue))
        for row in sorted(rows, key=lambda row: (row.consumer_group, row.queue))
    )


def iso(seconds: float | None) -> str | None:
    """ISO 8601 in UTC, with milliseconds."""
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    )
