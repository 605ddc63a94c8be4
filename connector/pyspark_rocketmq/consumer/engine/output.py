"""An engine's output for each range: rows for the sink, and an ack for the driver.

The sink's table has the position of a row's message and the listener's columns. If rows cross Spark on their
way from the engine to the sink's writer, they have one more column, ``ack``. It is null in a data row; the
one *ack row* after a queue's data rows has the JSON of its ``QueueAck`` in that column.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.row_buffer import Emitted, batches_of, gathered
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import POSITION_COLUMNS
from pyspark_rocketmq.spark.session import living_session
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS, QUEUE_FIELDS

_SHORT_NAMES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte", "real": "float"}
ACK_COLUMN = "ack"
_POSITION = from_arrow_schema(pa.schema(POSITION_FIELDS))


def listener_schema(output_schema: str | StructType) -> StructType:
    """Return the columns that a listener emits, from a text such as ``order_id string, step string``.

    Raises:
        SchemaError: If the text is not a schema, or uses a name that the engine needs.
    """
    schema = output_schema if isinstance(output_schema, StructType) else _parsed(output_schema)
    taken = {name.lower() for name in (*POSITION_COLUMNS, ACK_COLUMN)}
    clashes = sorted(name for name in schema.fieldNames() if name.lower() in taken)
    if clashes:
        raise SchemaError(
            f"The listener's output schema has column(s) {', '.join(clashes)}, whose names are reserved: "
            f"each output row gets {', '.join(POSITION_COLUMNS)} from its message, and '{ACK_COLUMN}' is "
            "used internally. Leave these columns out or rename them."
        )
    return schema


def sink_schema(listener: StructType) -> StructType:
    """Return the columns of the sink's table: the position of a message, then the listener's columns."""
    return StructType([*_POSITION.fields, *listener.fields])


def spark_can_parse() -> bool:
    """Return whether Spark can parse a schema now: for that, some thread must have started a session."""
    return living_session(None) is not None


def _parsed(text: str) -> StructType:
    has_parser = spark_can_parse()
    try:
        parsed = _parse_datatype_string(text) if has_parser else _plain_schema(text)
    except Exception as error:
        more = (
            ""
            if has_parser
            else " Without a Spark session only names with plain types such as string, int, bigint and date "
            "are understood: create a session first, or give a StructType."
        )
        raise SchemaError(
            f"The output schema '{text}' is not a schema such as 'order_id string, step string'.{more}"
        ) from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise SchemaError(f"The output schema '{text}' names no column; write for example 'order_id string'.")
    return parsed


def _plain_schema(text: str) -> StructType:
    """Parse ``name type, name type`` with plain types."""
    columns = [column.split() for column in text.split(",")]
    fields = [
        {"name": name, "type": _SHORT_NAMES.get(kind.lower(), kind.lower()), "nullable": True, "metadata": {}}
        for name, kind in columns
    ]
    return StructType.fromJson({"fields": fields})


class Consumed(NamedTuple):
    """Rows and ack of one range: of everything since its start, or since its last *cut*.

    A cut takes what the consumption of a range has finished so far, and the range goes on.
    """

    rows: list[Emitted]
    """Rows that may reach the sink."""
    ack: QueueAck
    columns: RowColumns
    """Columns of the rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, each with its message's queue and queue offset, a few MiB at a time."""
        queue = self.ack.queue
        schema = pa.schema([*QUEUE_FIELDS, *self.columns.schema])
        for rows in batches_of(self.rows, self.columns):
            whole = [
                pa.repeat(pa.scalar(value, field.type), rows.num_rows)
                for value, field in zip(queue, QUEUE_FIELDS, strict=True)
            ]
            yield pa.RecordBatch.from_arrays([*whole, *rows.columns], schema=schema)


class CutTogether(NamedTuple):
    """Cuts of several ranges that go on; the engine later yields more of each range, at least its end."""

    cuts: tuple[Consumed, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all ranges with their positions, a few MiB at a time."""
        # Join small batches: for few rows, the call costs a writer more than the rows.
        return gathered(chain.from_iterable(each.batches() for each in self.cuts))

    @property
    def acks(self) -> list[QueueAck]:
        """The ack of each cut."""
        return [each.ack for each in self.cuts]
