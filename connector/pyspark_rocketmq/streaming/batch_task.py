"""What runs in each task of a micro-batch's one job: data rows into files, acks and file names to the driver.

Imports nothing that loads delta-rs: executors fork their workers, and delta-rs must not be in a process that forks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.delta_files import TaskWriter, WrittenFile
from pyspark_rocketmq.streaming.output_schema import ACK_COLUMN

_RESULT_SCHEMA = pa.schema([("files", pa.string()), ("acks", pa.string())])


class BatchTask:
    """The function given to ``mapInArrow``; without a writer the listener's side effects are all that is wanted."""

    def __init__(self, writer: TaskWriter | None) -> None:
        self._writer = writer

    def run(self, batch: DataFrame) -> tuple[tuple[WrittenFile, ...], tuple[QueueAck, ...]]:
        """Evaluate ``batch`` in one job; its files, none of them in the table yet, and its acks by queue."""
        files: list[WrittenFile] = []
        acks: list[QueueAck] = []
        for row in batch.mapInArrow(self, "files string, acks string").collect():
            files += [WrittenFile(**file) for file in json.loads(row["files"])]
            acks += [QueueAck.from_json(text) for text in json.loads(row["acks"])]
        return tuple(files), tuple(sorted(acks, key=lambda ack: ack.queue))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row with JSON lists of files and acks."""
        acks: list[str] = []
        rows = _data_rows(batches, acks)
        files: list[WrittenFile] = []
        if self._writer is not None:
            files = self._writer.write(rows)
        else:
            # Rows must be drawn for the engine to run.
            deque(rows, maxlen=0)
        result = {"files": json.dumps([file.to_dict() for file in files]), "acks": json.dumps(acks)}
        yield pa.RecordBatch.from_pylist([result], schema=_RESULT_SCHEMA)


def _data_rows(batches: Iterator[pa.RecordBatch], acks: list[str]) -> Iterator[pa.RecordBatch]:
    """The batches without their ack rows, which are put into ``acks``."""
    for batch in batches:
        ack = batch.column(ACK_COLUMN)
        data = batch.drop_columns([ACK_COLUMN])
        if ack.null_count < len(ack):
            is_ack = ack.is_valid()
            acks += ack.filter(is_ack).to_pylist()
            data = data.filter(pc.invert(is_ack))
        if data.num_rows:
            yield data
