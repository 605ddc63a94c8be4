"""The writers of ``format("rocketmq")``: what every task does with its rows, and what the driver sees of it.

Order.  A task sends its rows in the order in which it gets them: those of one sharding key go to one queue, one request
after another.  Nothing orders two tasks, and Spark lets a Python sink not ask for an arrangement of the rows: that all rows
of a key come to one task is up to the DataFrame (``by_sharding_key``), and is checked afterwards.

Delivery.  At least once: a task ends when all its messages are acknowledged, and a task, batch or query that runs again
sends its rows again, under the same UNIQ_KEYs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_rocketmq.datasource.key_sample import KeySample, keys_of_several_tasks
from pyspark_rocketmq.datasource.seen_routes import SeenRoutes
from pyspark_rocketmq.datasource.sink_rows import RowKeys
from pyspark_rocketmq.datasource.sink_task import send_rows
from pyspark_rocketmq.errors import KeysOutOfOrder, RocketMQError
from pyspark_rocketmq.write_options import WriteOptions

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties of every task of a stream (``StreamExecution``, ``MicroBatchExecution``)."""


@dataclass(frozen=True)
class SentMessage(WriterCommitMessage):
    """What one task did."""

    messages: int
    keys: KeySample


@dataclass(frozen=True, kw_only=True)
class _Sink:
    """What both writers share; pickled to the tasks."""

    options: WriteOptions
    positions: Mapping[str, int]
    seen: SeenRoutes

    def send(self, batches: Iterator[pa.RecordBatch], write_id: str, batch_id: int) -> SentMessage:
        partition_id = _task().partitionId()
        row_keys = RowKeys(write_id, batch_id, partition_id)
        messages, keys = send_rows(batches, self.options, self.positions, row_keys, self.seen)
        return SentMessage(messages, keys)

    def out_of_order(self, messages: Sequence[WriterCommitMessage | None]) -> KeysOutOfOrder | None:
        """What is wrong if two tasks sent rows of one sharding key."""
        sent = [one for one in messages if isinstance(one, SentMessage)]
        logger.info("rows sent messages=%d tasks=%d", sum(one.messages for one in sent), len(sent))
        twice = keys_of_several_tasks(one.keys for one in sent)
        return KeysOutOfOrder(twice) if twice else None


class RocketMQWriter(DataSourceArrowWriter):
    """``df.write.format("rocketmq")``."""

    def __init__(
        self, options: WriteOptions, positions: Mapping[str, int], seen: SeenRoutes | None = None
    ) -> None:
        self._sink = _Sink(options=options, positions=positions, seen=seen or {})
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        """Send the rows of one task; all are acknowledged when it returns.

        Raises:
            RowNotSent: If a row cannot be sent; rows before it may be stored.
        """
        # Within foreachBatch each micro-batch is a write of its own, whatever writeId says.
        batch_id = _task().getLocalProperty(_BATCH_ID)
        return self._sink.send(iterator, self._write_id, int(batch_id or 0))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See whether the order of sharding keys was kept.

        Raises:
            KeysOutOfOrder: If two tasks sent rows of one sharding key; all rows are stored.
        """
        wrong = self._sink.out_of_order(messages)
        if wrong is not None:
            raise wrong

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: what is stored stays."""


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("rocketmq")``."""

    def __init__(
        self, options: WriteOptions, positions: Mapping[str, int], seen: SeenRoutes | None = None
    ) -> None:
        self._sink = _Sink(options=options, positions=positions, seen=seen or {})
        self._write_id = options.write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        """Send one task's rows of a micro-batch; all are acknowledged when it returns.

        Raises:
            RowNotSent: If a row cannot be sent; rows before it may be stored.
        """
        query_id, batch_id = (_task().getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query_id is None or batch_id is None:
            raise RocketMQError(
                "Spark does not tell which micro-batch this is, without which a message sent again could not be told "
                "from a new one. Write with foreachBatch and df.write instead."
            )
        return self._sink.send(iterator, self._write_id or query_id, int(batch_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Warn if the order of sharding keys was not kept.

        The batch is stored, and no task knows the keys of another before it is. A failure would have every restart of the
        query send it again, and fail again.
        """
        wrong = self._sink.out_of_order(messages)
        if wrong is not None:
            logger.warning("batch %d of the stream goes on out of order: %s", batchId, wrong)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Nothing can be taken back: what is stored stays."""


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer's write() runs in a task"
    return context
