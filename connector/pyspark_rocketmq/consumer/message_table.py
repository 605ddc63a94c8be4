"""A consumer without a listener: every message is one row, its body decoded by Spark's own functions.

Rule 1: a bad record must not stop a queue. If no column of a body could be decoded, there is still a row,
with nulls and with the body in a separate column.
Rule 2: decoding is an expression on one row and does not change ack rows, which have the progress of a queue.
So decoding can neither lose nor duplicate a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.orderly import OrderlyFinish
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.output import ACK_COLUMN, listener_schema
from pyspark_rocketmq.consumer.engine.range import acknowledged
from pyspark_rocketmq.consumer.exact_json import exact_json
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.messages import last_message
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import POSITION_COLUMNS, QUEUE_OFFSET, QueueState, queue_columns
from pyspark_rocketmq.source.reader import read_tickets
from pyspark_rocketmq.source.schema import KIND, PLANNED_RANGE, RangeEnd, ReadPiece, spark_schema
from pyspark_rocketmq.stored_values import NO_MESSAGES, RememberedMessages

Decode = Callable[[Column], Column]
"""Turns a binary body into a struct; null, or nulls in all fields, if the body cannot be decoded."""

_BODY = "body"


def json_body(schema: str | StructType, options: dict[str, str] | None = None) -> Decode:
    """Return a function that decodes bodies with Spark's ``from_json`` and its ``options``.

    A body that is not exactly one JSON object in UTF-8, or has a value that does not fit its column, is a bad
    record as a whole.
    """

    def decode(body: Column) -> Column:
        # Parse the schema only now: for one given as text Spark needs a session.
        return exact_json(body, listener_schema(schema), options or {})

    return decode


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTable:
    """Settings of a table that gets every message as a row, without a listener."""

    decode: Decode
    message_columns: tuple[str, ...] = ()
    """Columns of the source to keep besides the position."""
    bad_record_column: str = "badRecord"
    """Name of the column with the bodies whose decoded fields are all null; in other rows it is null."""

    def rows(self, ranges: DataFrame) -> DataFrame:
        """Return the data rows of ``ranges``, a stream, and an *ack row* with the progress after each range.

        Raises:
            SchemaError: If a column is unknown, named twice or needed by the engine, if the schema for JSON
                cannot be used, or if ``decode`` returns no struct.
        """
        source = spark_schema(consumer_mode=True)
        self._check_message_columns(source)
        fields = [source[name] for name in (*POSITION_COLUMNS, _BODY, *self.message_columns)]
        passed = StructType(fields).add(ACK_COLUMN, "string")
        rows = ranges.mapInArrow(TableEngine(passed), passed)
        # Inside when() Spark refuses functions that turn one row into several, or into none.
        decoded = rows.withColumn(
            "_decoded", sf.when(sf.col(ACK_COLUMN).isNull(), self.decode(sf.col(_BODY)))
        )
        into = decoded.schema["_decoded"].dataType
        if not isinstance(into, StructType):
            raise SchemaError(
                f"The decode function returns {into.simpleString()}, but it must return a struct, whose "
                "fields become the table's columns. Use from_json, from_avro or from_protobuf, or wrap the "
                "value: sf.struct(value.alias('name'))."
            )
        self._check_names(listener_schema(into).fieldNames())
        decoded = decoded.withColumn(
            "_decoded", sf.when(is_text_valid(sf.col("_decoded"), into), sf.col("_decoded"))
        )
        # Check each field for null, not the struct: in its permissive mode Avro returns a struct of nulls.
        is_bad = reduce(
            and_,
            (sf.col("_decoded")[name].isNull() for name in into.fieldNames()),
            sf.col(ACK_COLUMN).isNull(),
        )
        return decoded.select(
            *POSITION_COLUMNS,
            *(sf.col("_decoded")[name].alias(name) for name in into.fieldNames()),
            *self.message_columns,
            sf.when(is_bad, sf.col(_BODY)).alias(self.bad_record_column),
            ACK_COLUMN,
        )

    def _check_message_columns(self, source: StructType) -> None:
        known = [name for name in source.fieldNames() if name not in (*POSITION_COLUMNS, KIND, PLANNED_RANGE)]
        unknown = [name for name in self.message_columns if name not in known]
        if unknown:
            raise SchemaError(
                f"message_columns names {', '.join(unknown)}, but a message has no such column. Choose from "
                f"{', '.join(known)}; every row has {', '.join(POSITION_COLUMNS)} anyway."
            )

    def _check_names(self, decoded: Sequence[str]) -> None:
        names = [*decoded, *self.message_columns, self.bad_record_column]
        lower = [name.lower() for name in names]
        twice = sorted({name for name in names if lower.count(name.lower()) > 1})
        if twice:
            raise SchemaError(
                f"The table would have column(s) {', '.join(twice)} twice: a field of the body, a message "
                "column and the bad record column need different names. Rename the field, or choose another "
                "bad record column."
            )
        listener_schema(StructType([]).add(self.bad_record_column, "binary"))


def is_text_valid(column: Column, kind: DataType) -> Column:
    """Return the condition that all strings of a value are UTF-8, at any depth; true for null.

    Avro, and a cast from binary, accept any bytes as text, which neither Arrow nor other readers can read.
    """
    match kind:
        case StringType():
            is_valid = sf.is_valid_utf8(column)
        case StructType():
            parts = (is_text_valid(column[field.name], field.dataType) for field in kind.fields)
            is_valid = reduce(and_, parts, sf.lit(True))
        case ArrayType():
            is_valid = sf.forall(column, lambda item: is_text_valid(item, kind.elementType))
        case MapType():
            pairs = ArrayType(StructType().add("key", kind.keyType).add("value", kind.valueType))
            is_valid = is_text_valid(sf.map_entries(column), pairs)
        case _:
            is_valid = sf.lit(True)
    return sf.coalesce(is_valid, sf.lit(True))


class TableEngine:
    """The function for ``mapInArrow`` on the source: reads ranges, yields messages and ack rows."""

    def __init__(self, schema: StructType) -> None:
        self._names = schema.fieldNames()[:-1]
        self._columns = RowColumns(schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read a task's ranges; yield their messages as rows, and after each range an ack row."""
        return self.rows(read_tickets(batches))

    def rows(self, pieces: Iterable[ReadPiece]) -> Iterator[pa.RecordBatch]:
        """Yield messages as rows, and after each range its ack row, which has the progress of its queue."""
        last = NO_MESSAGES
        for piece in pieces:
            if isinstance(piece, RangeEnd):
                yield self._ack_row(piece, last)
                last = NO_MESSAGES
            else:
                last = last_message(piece, piece.num_rows - 1)
                yield self._data_rows(piece)

    def _data_rows(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        nulls = pa.nulls(messages.num_rows, pa.string())
        # Only messages of a retry topic have an originTopic.
        kept = [messages.column(name) if name in messages.schema.names else nulls for name in self._names]
        return pa.RecordBatch.from_arrays([*kept, nulls], schema=self._columns.schema)

    def _ack_row(self, end: RangeEnd, last: RememberedMessages) -> pa.RecordBatch:
        planned = end.planned
        # A range brings nothing if its broker does not answer. Its queue may continue immediately, as in the
        # engines.
        brought_nothing = planned.count == 0
        ack = QueueAck(
            queue=planned.queue,
            start=planned.start,
            state=QueueState(
                planned.end,
                planned.state.epoch,
                suspended_until_s=time.time() if brought_nothing else None,
                last_message=last,
            ),
            read=end.rows,
            consumed=end.rows,
            failed=0,
            finished=str(OrderlyFinish.EXHAUSTED),
            # A message is consumed once its row is committed.
            metrics=ConsumeMetrics(ok=end.rows),
        )
        position = {**queue_columns(planned.queue), QUEUE_OFFSET: planned.end}
        columns = dict.fromkeys(self._names) | position
        return self._columns.to_batch(columns | {ACK_COLUMN: acknowledged(end, ack).to_json()}, 1)
