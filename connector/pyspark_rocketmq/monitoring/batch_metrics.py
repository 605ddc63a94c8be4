"""Metrics of a micro-batch or of a commit within one, and the position of each queue after it. Pure.

Rule 1: planned ranges and brokers' offsets come from the progress that Spark reports for every query. A
consumer's results come from its :class:`BatchReport`. A query without a consumer has none; it counts as
having reached the end of each planned range.
Rule 2: a commit that is made while its batch's job runs has its own metrics, from its report and from the
brokers. The metrics at the batch's end count only what came after the last such commit.
Rule 3: :class:`QueueLag` defines lag, here and in ``pyspark-rocketmq offsets lag``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import NONE_COUNTED, LatencyHistogram
from pyspark_rocketmq.consume.metrics import QueueLag
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.source.ranges import is_plan, offset_to_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMetrics:
    """Counts of one queue in a micro-batch, or up to a commit within it, and the position that it reached."""

    queue: MessageQueue
    planned: int
    """Number of offsets that the batch was to read; 0 if it was to read none.

    For a range without an end (real time) and for a commit while the batch runs: number of messages read."""
    read: int | None = None
    """Messages read. None without a consumer, because Spark then counts all queues together; also None if the
    batch read nothing of the queue, or was dropped."""
    acknowledged: int = 0
    """Messages done, dead letters included: the queue's position is past them. Without a consumer: number of
    planned offsets, which all count as done."""
    retried: int = 0
    """Number of deliveries that the listener gave back."""
    dead_letters: int = 0
    """Messages given up."""
    reconsume_times: int = 0
    """Number of times that the next message was given back so far."""
    suspended_until_s: float | None = None
    """Wall-clock second until which the queue is suspended; one in the past means that it is not."""
    lag: QueueLag | None = None
    """How far the position is behind the queue's end. None if the batch was dropped because one of its queues
    had moved to another consumer, or if the offset store refused this queue."""

    def is_suspended(self, now_s: float) -> bool:
        """Return whether the queue is suspended, usually because its listener gave back the next message.

        See row D3 of ``docs/semantics.md``.
        """
        return self.suspended_until_s is not None and self.suspended_until_s > now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics:
    """Counts, latencies and queues' positions for one micro-batch, or for one commit while the batch runs.

    The counts of a batch that has ended leave out what was counted for such commits before.
    """

    query: str
    """The query's name, or its id if it has none."""
    run_id: str
    batch_id: int
    at_s: float
    """Wall-clock second of these metrics: a moment after the end of the batch or the commit."""
    duration_s: float
    """Duration of the batch. For a commit within it: time since the run's previous metrics, or since the
    run's start if there are none."""
    rows: int | None
    """Rows added to the consumer's sink; None without a consumer, or if the batch was dropped."""
    queues: tuple[QueueMetrics, ...]
    """Metrics by queue: the queues of the batch, and the consumer's other queues."""
    input_rows: int | None = None
    """Rows that Spark read from the query's RocketMQ sources. None with a consumer, because some of its rows
    are not messages."""
    has_ended: bool = True
    """False for a commit while the batch runs; its counts begin after the commit before it."""
    store_to_listener: LatencyHistogram = NONE_COUNTED
    """For the messages that a consumer has finished: times from storage at the broker to delivery."""
    store_to_commit: LatencyHistogram = NONE_COUNTED
    """For the same messages: times from storage at the broker to the commit that passed them."""

    @property
    def planned(self) -> int:
        """Number of offsets to read, or of messages read where no end is planned, summed over the queues."""
        return sum(one.planned for one in self.queues)

    @property
    def read(self) -> int | None:
        """Messages read by a consumer; None if its batch was dropped, or had no queue to read.

        Without a consumer: ``input_rows``.
        """
        counts = [one.read for one in self.queues if one.read is not None]
        return sum(counts) if counts else self.input_rows

    @property
    def acknowledged(self) -> int:
        """Messages done in all queues, dead letters included; without a consumer, planned offsets."""
        return sum(one.acknowledged for one in self.queues)

    @property
    def retried(self) -> int:
        """Number of deliveries that the listener gave back, in all queues."""
        return sum(one.retried for one in self.queues)

    @property
    def dead_letters(self) -> int:
        """Number of messages that were given up as dead letters, in all queues."""
        return sum(one.dead_letters for one in self.queues)

    @property
    def suspended(self) -> int:
        """Number of queues that were suspended at ``at_s``."""
        return sum(one.is_suspended(self.at_s) for one in self.queues)

    @property
    def lag(self) -> int | None:
        """Messages stored and not yet consumed, in all queues whose lag is known; None if none is known."""
        known = [one.lag.messages for one in self.queues if one.lag and one.lag.messages is not None]
        return sum(known) if known else None

    @property
    def lag_s(self) -> float | None:
        """Longest time, in seconds, for which a queue's next message had been stored at ``at_s``.

        A queue without waiting messages counts as 0. Queues whose time is not known are left out; None if no
        queue's time is known.
        """
        seconds = (one.lag.seconds(self.at_s) for one in self.queues if one.lag)
        return max((one for one in seconds if one is not None), default=None)

    def line(self) -> str:
        """Format the metrics as one line of ``key=value``, without unknown values."""
        facts = {
            "query": self.query,
            "batch": self.batch_id,
            "seconds": f"{self.duration_s:.3f}",
            "queues": sum(one.planned > 0 for one in self.queues),
            "planned": self.planned,
            "read": self.read,
            "acknowledged": self.acknowledged,
            "rows": self.rows,
            "retried": self.retried,
            "deadLetters": self.dead_letters,
            "suspended": self.suspended,
            "lag": self.lag,
            "lagSeconds": None if self.lag_s is None else f"{self.lag_s:.1f}",
            "toListenerMs": _shown(self.store_to_listener),
            "toCommitMs": _shown(self.store_to_commit),
        }
        return " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)

    def with_stored_times(self, stored_at_s: Mapping[MessageQueue, float]) -> BatchMetrics:
        """Return the metrics with new values of ``QueueLag.next_stored_at_s``: those in ``stored_at_s``.

        A value is the wall-clock second at which the queue's next message was stored. A queue that
        ``stored_at_s`` lacks gets None, even if it had a value. A queue whose ``lag`` is None stays as it is.
        """
        queues = tuple(
            replace(
                queue_metrics,
                lag=queue_metrics.lag._replace(next_stored_at_s=stored_at_s.get(queue_metrics.queue)),
            )
            if queue_metrics.lag
            else queue_metrics
            for queue_metrics in self.queues
        )
        return replace(self, queues=queues)


class _Plan(NamedTuple):
    ranges: Mapping[MessageQueue, QueueRange]
    is_new: bool
    """False if the trigger did not run a new batch."""
    max_offsets: Mapping[MessageQueue, int]


def metrics_of(progress: Mapping[str, Any], report: BatchReport | None, now_s: float) -> BatchMetrics | None:
    """Return the metrics of one progress event; None for a query that does not read from RocketMQ.

    Args:
        progress: ``StreamingQueryProgress.json``, parsed.
        report: Report of the same batch; None for a query without a consumer, and for a dropped batch.
        now_s: Wall clock.
    """
    found = [(plan, source) for source in progress["sources"] if (plan := _plan_of(source)) is not None]
    if not found:
        return None
    plans = [plan for plan, _ in found]
    has_consumer = report is not None or any(
        one.state.epoch for plan in plans for one in plan.ranges.values()
    )
    acks = {} if report is None else {ack.queue: ack for ack in report.acks}
    metrics = {
        queue: _range_metrics(planned, plan, acks.get(queue))
        for plan in plans
        for queue, planned in plan.ranges.items()
    }
    max_offsets = {queue: end for plan in plans for queue, end in plan.max_offsets.items()}
    for row in report.offsets if report is not None else ():
        known = metrics.get(row.queue, QueueMetrics(queue=row.queue, planned=0))
        metrics[row.queue] = _at(known, row, max_offsets)
    return BatchMetrics(
        query=progress["name"] or progress["id"],
        run_id=progress["runId"],
        batch_id=progress["batchId"],
        at_s=now_s,
        duration_s=progress["batchDuration"] / 1000,
        rows=None if report is None else report.rows,
        queues=tuple(metrics[queue] for queue in sorted(metrics)),
        input_rows=None if has_consumer else sum(source["numInputRows"] for _, source in found),
        store_to_listener=NONE_COUNTED if report is None else report.store_to_listener,
        store_to_commit=NONE_COUNTED if report is None else report.store_to_commit,
    )


def metrics_of_commit(
    report: BatchReport,
    *,
    query: str,
    run_id: str,
    max_offsets: Mapping[MessageQueue, int],
    since_s: float,
    now_s: float,
) -> BatchMetrics:
    """Return the metrics of a commit while its batch runs; ``planned`` counts only messages already read.

    Args:
        report: Report of the commit.
        query: The query's name, or its id if it has none.
        run_id: Id of the query's run.
        max_offsets: Ends of queues, as far as they are known.
        since_s: Wall-clock second of the run's previous metrics, or of its start if it has none.
        now_s: Wall clock.
    """
    acks = {ack.queue: ack for ack in report.acks}
    rows = {row.queue: row for row in report.offsets}
    metrics = {}
    for queue in sorted(acks.keys() | rows.keys()):
        found = QueueMetrics(queue=queue, planned=0, read=0)
        if (ack := acks.get(queue)) is not None:
            found = _ack_metrics(ack, ack.read)
        if (row := rows.get(queue)) is not None:
            found = _at(found, row, max_offsets)
        metrics[queue] = found
    return BatchMetrics(
        query=query,
        run_id=run_id,
        batch_id=report.batch_id,
        at_s=now_s,
        duration_s=max(0.0, now_s - since_s),
        rows=report.rows,
        queues=tuple(metrics.values()),
        has_ended=False,
        store_to_listener=report.store_to_listener,
        store_to_commit=report.store_to_commit,
    )


def _at(metrics: QueueMetrics, row: OffsetRow, max_offsets: Mapping[MessageQueue, int]) -> QueueMetrics:
    """Return ``metrics`` with retries, suspension and lag from the queue's row in the offset store."""
    return replace(
        metrics,
        reconsume_times=row.state.reconsume_times,
        suspended_until_s=row.state.suspended_until_s,
        lag=QueueLag(row.next_offset, max_offsets.get(row.queue)),
    )


def _ack_metrics(ack: QueueAck, planned: int) -> QueueMetrics:
    return QueueMetrics(
        queue=ack.queue,
        planned=planned,
        read=ack.read,
        acknowledged=ack.consumed,
        retried=ack.failed,
        dead_letters=ack.dead_letters,
    )


def _shown(latencies: LatencyHistogram) -> str | None:
    """Return the median and the 99th percentile in milliseconds, such as ``12/80``; None without any."""
    if not latencies.counts:
        return None
    return f"{latencies.percentile(50)}/{latencies.percentile(99)}"


def _range_metrics(planned: QueueRange, plan: _Plan, ack: QueueAck | None) -> QueueMetrics:
    count = _planned(planned, ack) if plan.is_new else 0
    if ack is not None:
        return _ack_metrics(ack, count)
    if planned.state.epoch:
        # A consumer's batch without a report was dropped: nothing of it was committed.
        return QueueMetrics(queue=planned.queue, planned=count)
    lag = QueueLag(planned.end, plan.max_offsets.get(planned.queue))
    return QueueMetrics(queue=planned.queue, planned=count, acknowledged=count, lag=lag)


def _planned(planned: QueueRange, ack: QueueAck | None) -> int:
    """Return how many offsets a batch was to read; for an open range, how many messages it has read."""
    if not planned.has_open_end:
        return planned.count
    return 0 if ack is None else ack.read


def _plan_of(source: Mapping[str, Any]) -> _Plan | None:
    """Return the ranges that a trigger planned, from one source of Spark's progress event.

    None for a source of another kind than RocketMQ.
    """
    end = source["endOffset"]
    if not is_plan(end) or end.keys().isdisjoint({"plan", "packed", "live"}):
        return None
    start = source["startOffset"]
    is_new = not isinstance(start, dict) or start["seq"] != end["seq"]
    ranges = {planned.queue: planned for planned in offset_to_plan(end)[1]}
    latest = source.get("latestOffset")
    # Spark before 4.2 does not request the report, and shows the plan instead.
    return _Plan(ranges, is_new, {} if latest == end else dict(_max_offsets(latest)))


def _max_offsets(latest: object) -> Iterator[tuple[MessageQueue, int]]:
    """Yield the ends of queues from the source's ``reportLatestOffset``; none if they are not known."""
    if not isinstance(latest, dict):
        return
    for topic, brokers in latest.items():
        for broker_name, queues in brokers.items():
            for queue_id, max_offset in queues.items():
                yield MessageQueue(topic, broker_name, int(queue_id)), max_offset
