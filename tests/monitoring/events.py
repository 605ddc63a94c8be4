"""Spark's progress, a consumer's report and its rows as metrics are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics, metrics_of
from pyspark_rocketmq.offsets.store import OffsetRow

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
NOW_S = 1_700_000_100.0
QUERY_ID, RUN_ID = "a6c61d57-ca02-45f3-986e-0b7f66569e4d", "427ba284-4ff5-4e70-93d7-3572982089ad"


def planned(queue: MessageQueue, start: int, end: int, epoch: int = 0) -> QueueRange:
    """A range; without an epoch that of a query without a consumer."""
    return QueueRange.between(queue, start, end, epoch=epoch)


def progress(
    *,
    end: dict[str, Any] | int | None,
    latest: dict[MessageQueue, int] | None,
    start: dict[str, Any] | None = None,
    batch_id: int = 3,
) -> dict[str, Any]:
    """As ``StreamingQueryProgress.json`` of Spark 4.2 was recorded."""
    newest: dict[str, dict[str, dict[str, int]]] = {}
    for queue, at in (latest or {}).items():
        newest.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = at
    return {
        "id": QUERY_ID,
        "runId": RUN_ID,
        "name": "etl",
        "timestamp": "2026-11-21T15:04:41.908Z",
        "batchId": batch_id,
        "batchDuration": 1250,
        "stateOperators": [],
        "sources": [
            {
                "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream",
                "startOffset": start,
                "endOffset": end,
                "latestOffset": None if latest is None else newest,
                "numInputRows": 10,
                "inputRowsPerSecond": 0.0,
                "processedRowsPerSecond": 8.7,
            }
        ],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
    }


def ack(queue: MessageQueue, **reached: Any) -> QueueAck:
    """How far a queue came; all of the range unless said otherwise."""
    facts: dict[str, Any] = {
        "start": 0, "consumed": 10, "failed": 0, "finished": "EXHAUSTED",
    }  # fmt: skip
    state = QueueState(reached.pop("next_offset"), 1)
    return QueueAck(queue=queue, state=state, **facts | reached)


def told(progress: Mapping[str, Any], report: BatchReport | None, now_s: float) -> BatchMetrics:
    """The metrics of a query that reads from RocketMQ."""
    metrics = metrics_of(progress, report, now_s)
    assert metrics is not None
    return metrics


def offset_row(
    queue: MessageQueue, next_offset: int, *, suspended_until_s: float | None = None, reconsume_times: int = 0
) -> OffsetRow:
    """A row of this member."""
    return OffsetRow(
        consumer_group="g",
        queue=queue,
        state=QueueState(
            next_offset, 1, reconsume_times=reconsume_times, suspended_until_s=suspended_until_s
        ),
        owner="me",
        query_id=QUERY_ID,
        batch_id=3,
        updated_at_s=NOW_S,
    )


def report(*, acks: list[QueueAck], rows: list[OffsetRow], batch_id: int = 3, **more: Any) -> BatchReport:
    """Of batch 3 of the query, which added 7 rows."""
    return BatchReport(
        query_id=QUERY_ID, batch_id=batch_id, acks=tuple(acks), rows=7, left_out=0, sink_version=1,
        refused=(),
        offsets=tuple(rows), **more,
    )  # fmt: skip
