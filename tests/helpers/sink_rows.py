"""Rows of two queues for a sink's table, and a whole micro-batch as the committer makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import RowWriter, Written
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS

GROUP = "order-etl"
Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
POSITION = POSITION_FIELDS
"""The columns every row has."""


def batch_of(schema: pa.Schema, rows: Iterable[tuple[object, ...]]) -> pa.RecordBatch:
    """Return rows of a queue, an offset and further values, in the order of the columns."""
    made = [dict(zip(schema.names, (*queue, *rest), strict=True)) for queue, *rest in rows]  # type: ignore[misc]
    return pa.RecordBatch.from_pylist(made, schema=schema)


class TaskRows(NamedTuple):
    """Outcome of a task's rows."""

    written: Sequence[Written]
    left_out: int
    """Rows that the sink, or one of several, has already."""


def write_rows(writer: RowWriter, batches: Iterator[pa.RecordBatch]) -> TaskRows:
    """Write a task's rows; leave none if ``batches`` or the writing fails."""
    writing = writer.open()
    try:
        left_out = sum(writing.add(batch) for batch in batches)
        return TaskRows(writing.finish(), left_out)
    except BaseException:
        writing.abandon()
        raise


def files_of(writer: RowWriter, batches: Iterator[pa.RecordBatch]) -> Sequence[Any]:
    """Return the rows that a task writes."""
    return write_rows(writer, batches).written


def run_batch(
    sink: DeltaSink,
    acked: Mapping[MessageQueue, int],
    *batches: pa.RecordBatch,
    queues: Iterable[MessageQueue] = (Q0, Q1),
    group: str = GROUP,
) -> int | None:
    """Write one micro-batch, and return the version of its commit."""
    batch = sink.begin(group, dict.fromkeys(queues, 0))
    return batch.commit(files_of(batch.task_writer(), iter(batches)), acked)
