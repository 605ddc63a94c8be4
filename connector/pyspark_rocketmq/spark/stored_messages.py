"""Reads a message's offset, store time and log position from a row of the source, for offset rows."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pyspark_rocketmq.model import QUEUE_OFFSET
from pyspark_rocketmq.stored_values import LastMessage

_MICROS_PER_MILLI: Final = 1000


def message_in(batch: pa.RecordBatch, row: int) -> LastMessage | None:
    """Return the message in row ``row`` of ``batch`` as a ``LastMessage``, the form that offset rows store.

    Return None if the row has no store time or no log position.
    """
    names = (QUEUE_OFFSET, "storeTimestamp", "commitLogOffset")
    offset, stored_at, log_offset = (batch.column(name)[row] for name in names)
    if not (stored_at.is_valid and log_offset.is_valid):
        return None
    stored_ms = stored_at.cast(pa.int64()).as_py() // _MICROS_PER_MILLI
    return LastMessage(offset.as_py(), stored_ms, log_offset.as_py())
