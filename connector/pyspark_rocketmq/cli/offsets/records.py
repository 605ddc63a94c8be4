"""A group's progress, lag and owners as rows for a table or for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from pyspark_rocketmq.consume.metrics import QueueLag, status_of
from pyspark_rocketmq.model import QUEUE_COLUMNS, MessageQueue, QueueBounds, queue_columns
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetRow
from pyspark_rocketmq.wire.requests.client_info import ProcessQueueInfo

BROKER_COLUMNS = ("brokerMinOffset", "brokerMaxOffset", "lag")
Members = Mapping[str, Mapping[MessageQueue, ProcessQueueInfo]]
"""Queues that each member reports, by client id, for the members that answered."""
LAG_COLUMNS = (
    "consumerGroup", *QUEUE_COLUMNS, "nextOffset", "brokerMaxOffset", "lag", "lagSeconds",
    "note", "reconsumeTimes", "suspendedUntil", "heldBy", "lockAgeSeconds", "claimedBy", "epoch",
)  # fmt: skip
"""Columns of ``LagView.columns``: the heading of CSV output, even without a queue."""


def _stored_columns(row: OffsetRow) -> dict[str, Any]:
    """Return group, queue and next offset by column name: a queue's first columns in ``show`` and ``lag``."""
    return {
        "consumerGroup": row.consumer_group,
        **queue_columns(row.queue),
        "nextOffset": row.next_offset,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetView:
    """A group's progress in one queue, and the queue's bounds at its broker."""

    row: OffsetRow
    bounds: QueueBounds | None
    """Lowest offset and end of the queue; None if the broker was not queried or does not have the queue."""

    @property
    def lag(self) -> QueueLag:
        """The group's next offset compared with the queue's end: messages behind the end, or beyond it."""
        return QueueLag(self.row.next_offset, None if self.bounds is None else self.bounds.max_offset)

    def columns(self) -> dict[str, Any]:
        """Return the values by column name, in display order; times as ISO 8601 in UTC."""
        return {
            **_stored_columns(self.row),
            "brokerMinOffset": self.bounds.min_offset if self.bounds else None,
            "brokerMaxOffset": self.bounds.max_offset if self.bounds else None,
            "lag": self.lag.messages,
            "note": self.lag.note,
            "reconsumeTimes": self.row.state.reconsume_times,
            "suspendedUntil": iso(self.row.state.suspended_until_s),
            "epoch": self.row.epoch,
            "owner": self.row.owner_id,
            "queryId": self.row.query_id,
            "batchId": self.row.batch_id,
            "updatedAt": iso(self.row.updated_at_s),
        }


def view_offsets(
    rows: Iterable[OffsetRow], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[OffsetView, ...]:
    """Return a view of each row with the bounds of its queue, if known, sorted by group and queue."""
    return tuple(
        OffsetView(row=row, bounds=bounds.get(row.queue))
        for row in sorted(rows, key=lambda row: (row.consumer_group, row.queue))
    )


def iso(seconds: float | None) -> str | None:
    """Format wall-clock seconds as ISO 8601 in UTC, with milliseconds; None stays None."""
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The member of a group that reports that it has a certain queue."""

    client_id: str
    locked_at_s: float | None
    """Wall-clock second of the lock's last renewal; None for a consumer without locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagView:
    """A group's lag in one queue, and the member that has the queue."""

    name: OffsetKey
    row: OffsetRow
    bounds: QueueBounds | None
    """Lowest offset and end of the queue; None if the broker did not answer or does not have the queue."""
    next_stored_at_s: float | None
    """Wall-clock second at which the message at the next offset was stored, if known."""
    holder: Holder | None
    """None if no member reports to have the queue."""
    now_s: float

    @property
    def lag(self) -> int | None:
        """Messages stored and not yet consumed; None if the end of the queue is not known."""
        return self._lag.messages

    @property
    def lag_s(self) -> float | None:
        """Seconds that the next message has waited; 0 without a next message, None if unknown."""
        return self._lag.seconds(self.now_s)

    @property
    def is_beyond_end(self) -> bool:
        """Whether the next offset is beyond the end of the queue, so that nothing is consumed from it."""
        return bool(self._lag.beyond_end)

    @property
    def _lag(self) -> QueueLag:
        max_offset = None if self.bounds is None else self.bounds.max_offset
        return QueueLag(self.row.next_offset, max_offset, self.next_stored_at_s)

    @property
    def is_suspended(self) -> bool:
        """Whether the queue is paused now, usually because the listener gave its next message back."""
        return self.row.state.suspended_until_s is not None and self.row.state.suspended_until_s > self.now_s

    def columns(self) -> dict[str, Any]:
        """Return the values by column name, in display order; times as ISO 8601 in UTC, spans in seconds."""
        locked_at_s = None if self.holder is None else self.holder.locked_at_s
        return {
            **_stored_columns(self.row),
            "brokerMaxOffset": self.bounds.max_offset if self.bounds else None,
            "lag": self.lag,
            "lagSeconds": _rounded(self.lag_s),
            "note": self._lag.note,
            "reconsumeTimes": self.row.state.reconsume_times,
            "suspendedUntil": iso(self.row.state.suspended_until_s) if self.is_suspended else None,
            "heldBy": None if self.holder is None else self.holder.client_id,
            "lockAgeSeconds": None if locked_at_s is None else _rounded(max(0.0, self.now_s - locked_at_s)),
            "claimedBy": self.row.owner_id or None,
            "epoch": self.row.epoch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LagTotal:
    """The lags of all queues of one group and topic, and their totals."""

    group: str
    topic: str
    views: tuple[LagView, ...]

    def columns(self) -> dict[str, Any]:
        """Return totals by column name, in display order; sums include only known values.

        ``lagSeconds`` is the longest wait of a queue; None if none is known.
        """
        waits = [view.lag_s for view in self.views if view.lag_s is not None]
        speed = status_of((view.row.statistics for view in self.views), self.views[0].now_s)
        return {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queues": len(self.views),
            "lag": sum(view.lag or 0 for view in self.views),
            "lagSeconds": _rounded(max(waits, default=None)),
            "okPerSecond": _rounded(speed.consume_ok_tps),
            "failedPerSecond": _rounded(speed.consume_failed_tps),
            "failedInHour": speed.consume_failed_msgs,
            "callMs": _rounded(speed.consume_rt),
            "members": len({view.holder.client_id for view in self.views if view.holder}),
            "heldByNobody": sum(view.holder is None for view in self.views),
            "suspended": sum(view.is_suspended for view in self.views),
            "beyondEnd": sum(view.is_beyond_end for view in self.views),
            "withoutBroker": sum(view.bounds is None for view in self.views),
        }


def totals(views: Iterable[LagView]) -> list[LagTotal]:
    """Return one total per group and topic of ``views``, which must be sorted by group and topic."""
    return [
        LagTotal(group=group, topic=topic, views=tuple(part))
        for (group, topic), part in groupby(
            views, key=lambda view: (view.row.consumer_group, view.row.queue.topic)
        )
    ]


def holder_of(name: OffsetKey, row: OffsetRow, members: Members) -> Holder | None:
    """Return the member that reports the row's queue as its own; None if none does.

    If several do, it is the one with the youngest lock. In a broadcasting group all members report all
    queues, without locks: there only the row's owner counts.
    """
    found = [
        Holder(client_id=client_id, locked_at_s=info.last_lock_timestamp / 1000 if info.locked else None)
        for client_id, queues in members.items()
        if (info := queues.get(row.queue)) is not None and not info.dropped
    ]
    if name.instance is not None:
        found = [holder for holder in found if holder.client_id == row.owner_id]
    return max(found, key=lambda holder: (holder.locked_at_s or 0.0, holder.client_id), default=None)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
