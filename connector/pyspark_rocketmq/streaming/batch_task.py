"""What runs in each task of a micro-batch's one job: data rows to the sink's writer, its outcome and acks to the driver.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that forks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pyspark_rocketmq.datasource.range_tickets import read_tickets
from pyspark_rocketmq.datasource.worker_memory import settle_modules
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.output_schema import ACK_COLUMN
from pyspark_rocketmq.streaming.sink import RowWriter, TaskRows, Written, write_rows

_RESULT_SCHEMA = pa.schema(
    [("written", pa.string()), ("acks", pa.string()), ("emitted", pa.int64()), ("left_out", pa.int64())]
)
_RESULT_COLUMNS = "written string, acks string, emitted bigint, left_out bigint"


ArrowEngine = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Takes the rows of the ranges that a task reads, gives the engine's."""


class Evaluated(NamedTuple):
    """What one evaluation of a micro-batch brought."""

    written: tuple[Written, ...]
    """What the tasks wrote for the sink; it has none of it yet."""
    acks: tuple[QueueAck, ...]
    """By queue."""
    emitted: int
    """Data rows, those left out included."""
    left_out: int
    """Data rows that the sink has already, so that they were not written."""


class BatchTask:
    """The function given to ``mapInArrow``.

    Without a writer the listener's side effects are all that is wanted. With an engine the batch holds planned ranges
    (:mod:`~pyspark_rocketmq.datasource.range_tickets`), and reading them and the engine happen here too: a message is in
    one Python process from the socket to the sink's file.
    """

    def __init__(self, writer: RowWriter | None, engine: ArrowEngine | None = None) -> None:
        self._writer = writer
        self._engine = engine

    def run(self, batch: DataFrame) -> Evaluated:
        """Evaluate ``batch`` in one job.

        Raises:
            RocketMQError: If a queue was consumed twice: its rows were copied on the way to the engine.
        """
        written: list[Written] = []
        acks: list[QueueAck] = []
        emitted = left_out = 0
        for row in batch.mapInArrow(self, _RESULT_COLUMNS).collect():
            if self._writer is not None:
                written += map(self._writer.written, json.loads(row["written"]))
            acks += [QueueAck.from_json(text) for text in json.loads(row["acks"])]
            emitted += row["emitted"]
            left_out += row["left_out"]
        acks.sort(key=lambda ack: ack.queue)
        for one, other in pairwise(acks):
            if one.queue == other.queue:
                raise RocketMQError(
                    f"{one.queue}: two ranges of one batch were consumed, {one.start} to {one.next_offset} and "
                    f"{other.start} to {other.next_offset}; nothing of the batch is committed. Do not copy or union the "
                    "rows of format('rocketmq') before they are consumed."
                )
        return Evaluated(tuple(written), tuple(acks), emitted, left_out)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row with JSON lists of what was written and of acks."""
        split = _Split()
        rows = split.data_rows(batches if self._engine is None else self._engine(read_tickets(batches)))
        done = TaskRows((), left_out=0)
        if self._writer is not None:
            done = write_rows(self._writer, rows)
        else:
            # Rows must be drawn for the engine to run.
            deque(rows, maxlen=0)
        result = {
            "written": json.dumps([each.to_dict() for each in done.written]),
            "acks": json.dumps(split.acks),
            "emitted": split.emitted,
            "left_out": done.left_out,
        }
        settle_modules()
        yield pa.RecordBatch.from_pylist([result], schema=_RESULT_SCHEMA)


class _Split:
    """Takes the ack rows out of the engine's rows and counts the others."""

    def __init__(self) -> None:
        self.acks: list[str] = []
        self.emitted = 0

    def data_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ack = batch.column(ACK_COLUMN)
            data = batch.drop_columns([ACK_COLUMN])
            if ack.null_count < len(ack):
                is_ack = ack.is_valid()
                self.acks += ack.filter(is_ack).to_pylist()
                data = data.filter(pc.invert(is_ack))
            self.emitted += data.num_rows
            if data.num_rows:
                yield data
