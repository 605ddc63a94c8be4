"""What happens with a micro-batch on the driver: data, then offsets, each once.

The order is the guarantee.  One Spark job runs source, engine and file writing and brings back file names and
acks; nothing is evaluated twice, for that would call the listener again.  Then the sink takes the files together
with its watermarks in one commit, and only after that the offset store moves.  Killed in between, the batch runs
again and the sink drops what it has; the offsets are never ahead of the data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pyspark_rocketmq.offsets.store import CommitResult, OffsetStore, QueueCommit
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.batch_task import BatchTask
from pyspark_rocketmq.streaming.delta_sink import DeltaSink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What one micro-batch did; given to batch listeners after everything is committed."""

    query_id: str
    batch_id: int
    acks: tuple[QueueAck, ...]
    rows: int
    """Output rows added to the sink; rows it already had are not counted."""
    sink_version: int | None
    """Table version of the data commit; None when nothing was written."""
    refused: tuple[QueueCommit, ...]
    """Queues that belong to another consumer by now, or were reset while the batch ran."""


BatchListener = Callable[[BatchReport], None]


class BatchCommitter:
    """The ``foreachBatch`` function of a consumer."""

    def __init__(
        self,
        *,
        consumer_group: str,
        store: OffsetStore,
        sink: DeltaSink | None,
        query_id: Callable[[], str],
        listeners: list[BatchListener],
    ) -> None:
        self._group = consumer_group
        self._store = store
        self._sink = sink
        self._query_id = query_id
        self._listeners = listeners

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Evaluate the batch once and commit it.

        Raises:
            RocketMQError: If data or offsets could not be committed; Spark then runs the batch again.
        """
        query_id = self._query_id()
        queues = self._store.read(self._group).keys()
        sink_batch = self._sink.begin(self._group, queues) if self._sink is not None else None
        files, acks = BatchTask(sink_batch.task_writer() if sink_batch is not None else None).run(batch)
        if not acks:
            return
        version = None
        if sink_batch is not None:
            version = sink_batch.commit(files, {ack.queue: ack.next_offset for ack in acks})
        result = self._store.commit(
            self._group, [_commit_of(ack) for ack in acks], query_id=query_id, batch_id=batch_id
        )
        report = BatchReport(
            query_id=query_id,
            batch_id=batch_id,
            acks=acks,
            rows=sum(file.num_records for file in files),
            sink_version=version,
            refused=result.refused,
        )
        self._log(report, result)
        for listener in self._listeners:
            listener(report)

    def _log(self, report: BatchReport, result: CommitResult) -> None:
        for refused in result.refused:
            logger.warning(
                "commit refused, the queue was claimed or reset by somebody else group=%s %s epoch=%d next_offset=%d",
                self._group,
                refused.queue,
                refused.epoch,
                refused.next_offset,
            )
        logger.info(
            "batch committed group=%s batch=%d queues=%d messages=%d rows=%d failed=%d version=%s",
            self._group,
            report.batch_id,
            len(result.accepted),
            sum(ack.consumed for ack in report.acks),
            report.rows,
            sum(ack.failed for ack in report.acks),
            report.sink_version,
        )


def _commit_of(ack: QueueAck) -> QueueCommit:
    return QueueCommit(
        queue=ack.queue,
        epoch=ack.epoch,
        next_offset=ack.next_offset,
        reconsume_times=ack.reconsume_times,
        suspended_until_s=ack.suspended_until_s,
    )
