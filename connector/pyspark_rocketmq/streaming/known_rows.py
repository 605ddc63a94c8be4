"""Rows that a sink has already, by its watermarks: they are dropped before they are written. Runs in tasks."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.model import MessageQueue

_QUEUE_COLUMNS = ("topic", "brokerName", "queueId")


def drop_known_rows(batch: pa.RecordBatch, watermarks: Mapping[MessageQueue, int]) -> pa.RecordBatch:
    """Return the rows at or above their queue's watermark.

    Raises:
        SchemaError: If a row's queue is not in ``watermarks``: whether it is in the table is not known.
    """
    lowest = pa.table(batch).group_by(list(_QUEUE_COLUMNS)).aggregate([("queueOffset", "min")])
    for *queue_fields, lowest_offset in zip(
        *(lowest.column(name).to_pylist() for name in (*_QUEUE_COLUMNS, "queueOffset_min")), strict=True
    ):
        queue = MessageQueue(*queue_fields)
        if queue not in watermarks:
            raise SchemaError(
                f"A row of {queue} at offset {lowest_offset} cannot be written: the queue is not part of this "
                "batch. Output rows must carry the position of the message that produced them."
            )
        if lowest_offset < watermarks[queue]:
            batch = batch.filter(pc.invert(_is_below(batch, queue, watermarks[queue])))
    return batch


def _is_below(batch: pa.RecordBatch, queue: MessageQueue, watermark: int) -> pa.Array:
    mask = pc.less(batch.column("queueOffset"), watermark)
    for name, value in zip(_QUEUE_COLUMNS, queue, strict=True):
        mask = pc.and_(mask, pc.equal(batch.column(name), value))
    return mask
