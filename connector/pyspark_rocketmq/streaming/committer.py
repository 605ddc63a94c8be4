"""What happens with a micro-batch on the driver: data, then offsets, each once.

The order is the guarantee.  One Spark job runs source, engine and file writing and brings back file names and
acks; nothing is evaluated twice, for that would call the listener again.  Then the sink takes the files together
with its watermarks in one commit, and only after that the offset store moves.  Killed in between, the batch runs
again and the sink drops what it has; the offsets are never ahead of the data.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import CommitResult, OffsetStore, QueueCommit
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.delta_files import TaskWriter, WrittenFile
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from pyspark_rocketmq.streaming.output_schema import ACK_COLUMN

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
        task = BatchTask(
            sink_batch.task_writer() if sink_batch is not None else None,
            dict(sink_batch.watermarks) if sink_batch is not None else {},
        )
        files, acks = task.run(batch)
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


class BatchTask:
    """What runs in each task: data rows into files, acks and file names back to the driver."""

    def __init__(self, writer: TaskWriter | None, watermarks: dict[MessageQueue, int]) -> None:
        self._writer = writer
        self._watermarks = watermarks

    def run(self, batch: DataFrame) -> tuple[tuple[WrittenFile, ...], tuple[QueueAck, ...]]:
        """Evaluate ``batch`` in one job."""
        files: list[WrittenFile] = []
        acks: list[QueueAck] = []
        for row in batch.mapInArrow(self, "files string, acks string").collect():
            files += [WrittenFile(**file) for file in json.loads(row["files"])]
            acks += [QueueAck.from_json(text) for text in json.loads(row["acks"])]
        return tuple(files), tuple(sorted(acks, key=lambda ack: ack.queue))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function given to ``mapInArrow``: one row with JSON lists of files and acks."""
        acks: list[str] = []
        rows = self._new_rows(batches, acks)
        files: list[WrittenFile] = []
        if self._writer is not None:
            files = self._writer.write(rows)
        else:
            # The listener's side effects are all that is wanted, and the rows must be drawn to have them.
            deque(rows, maxlen=0)
        row = {"files": json.dumps([file.to_dict() for file in files]), "acks": json.dumps(acks)}
        yield pa.RecordBatch.from_pylist(
            [row], schema=pa.schema([("files", pa.string()), ("acks", pa.string())])
        )

    def _new_rows(self, batches: Iterator[pa.RecordBatch], acks: list[str]) -> Iterator[pa.RecordBatch]:
        """Data rows the sink does not have yet; the acks are put aside."""
        for batch in batches:
            ack = batch.column(ACK_COLUMN)
            data = batch.drop_columns([ACK_COLUMN])
            if ack.null_count < len(ack):
                is_ack = ack.is_valid()
                acks += ack.filter(is_ack).to_pylist()
                data = data.filter(pc.invert(is_ack))
            new = self._above_watermarks(data)
            if new.num_rows:
                yield new

    def _above_watermarks(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        keep = None
        lowest = (
            pa.table(rows).group_by(["topic", "brokerName", "queueId"]).aggregate([("queueOffset", "min")])
        )
        for topic, broker_name, queue_id, lowest_offset in zip(
            *(
                lowest.column(name).to_pylist()
                for name in ("topic", "brokerName", "queueId", "queueOffset_min")
            ),
            strict=True,
        ):
            watermark = self._watermarks.get(MessageQueue(topic, broker_name, queue_id), 0)
            if lowest_offset >= watermark:
                continue
            is_of_queue = pc.and_(
                pc.and_(
                    pc.equal(rows.column("topic"), topic), pc.equal(rows.column("brokerName"), broker_name)
                ),
                pc.equal(rows.column("queueId"), queue_id),
            )
            is_known = pc.and_(is_of_queue, pc.less(rows.column("queueOffset"), watermark))
            keep = pc.invert(is_known) if keep is None else pc.and_not(keep, is_known)
        return rows if keep is None else rows.filter(keep)
