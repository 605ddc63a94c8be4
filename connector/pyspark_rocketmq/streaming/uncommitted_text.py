"""What a range has left uncommitted, as text: how the direct engine hands it to the queue's next range (row D4).

Shape: ``{"from": 100, "epoch": 3, "to": 110, "rows": "…"}``: messages of ``[from, to)`` are consumed without a commit,
and ``rows`` are the rows that were emitted, as a compressed Arrow stream in base 64.  It travels in the ack to the offset store's row, and from there in the plan to the next range's
marker row.  It is advice: it counts only for a range that begins at ``from`` under the same epoch.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import ListenerError
from pyspark_rocketmq.model import QueueRange
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.arrow_text import rows_to_text, text_to_rows
from pyspark_rocketmq.streaming.orderly_run import Row, Uncommitted
from pyspark_rocketmq.streaming.output_rows import RowColumns, columns_of, to_rows

MAX_TEXT_LENGTH: Final = 1 << 20
"""Characters: every commit of the group writes them again, and every plan holds them."""

_OFFSET_COLUMN = "queueOffset"


class UncommittedText:
    """Writes and reads the text for a listener's output columns; picklable."""

    def __init__(self, schema: StructType) -> None:
        self._names = (_OFFSET_COLUMN, *schema.fieldNames())
        self._columns = RowColumns(StructType([*StructType().add(_OFFSET_COLUMN, "long"), *schema.fields]))

    def write(self, left: Uncommitted, ack: QueueAck) -> str:
        """The text for what ``ack`` leaves behind; empty if that is nothing.

        Raises:
            ListenerError: If the rows take more than ``MAX_TEXT_LENGTH``.
        """
        if left == Uncommitted(ack.next_offset, []):
            return ""
        facts = {
            "from": ack.next_offset,
            "epoch": ack.epoch,
            "to": left.accumulated_offset,
            "rows": self._packed(left) if left.rows else "",
        }
        text = json.dumps(facts)
        if len(text) > MAX_TEXT_LENGTH:
            raise ListenerError(
                f"{ack.queue}: the listener has emitted {len(left.rows)} rows for messages {ack.next_offset} to "
                f"{left.accumulated_offset} without a COMMIT, and they take {len(text)} characters; the direct engine "
                f"carries at most {MAX_TEXT_LENGTH} from one batch to the next. Commit more often, emit less, or use "
                "orderly_engine='state', which keeps them in Spark's state."
            )
        return text

    def read(self, planned: QueueRange) -> Uncommitted | None:
        """What ``planned`` goes on from; None if nothing was left for it."""
        if not planned.uncommitted:
            return None
        facts = json.loads(planned.uncommitted)
        if (facts["from"], facts["epoch"]) != (planned.start, planned.epoch):
            return None
        rows = self._unpacked(facts["rows"]) if facts["rows"] else []
        if rows is None:
            return None
        return Uncommitted(facts["to"], rows)

    def _packed(self, left: Uncommitted) -> str:
        batch = self._columns.to_batch(columns_of(self._names, left.rows), len(left.rows))
        return rows_to_text([batch], batch.schema)

    def _unpacked(self, text: str) -> list[Row] | None:
        """The rows; None if they are those of another listener, with other columns."""
        (batch,) = text_to_rows(text).to_batches()
        return to_rows(batch) if batch.schema.equals(self._columns.schema) else None
