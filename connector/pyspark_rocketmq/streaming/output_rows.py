"""The engine's rows and Arrow: for engines that answer Spark in Arrow, and for rows that wait for a commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.conversion import PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.output_schema import ACK_COLUMN, POSITION_COLUMNS, QUEUE_COLUMNS

_PLAIN = (
    st.StringType, st.BinaryType, st.BooleanType, st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.FloatType,
    st.DoubleType,
)  # fmt: skip
"""Arrow takes what ``emit()`` takes for these as Spark does; the others go Spark's own way."""


Row = tuple[Any, ...]
"""A queue offset, then one value per output column."""

Emitted: TypeAlias = "Row | pa.RecordBatch"
"""A row, or rows as a batch of the same columns."""


class RowColumns:
    """Makes record batches of columns; picklable."""

    def __init__(self, schema: st.StructType) -> None:
        self._fields = tuple(schema.fields)
        self.schema = to_arrow_schema(schema, timezone="UTC")
        """The batches' columns."""

    def to_batch(self, columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
        """A batch of ``count`` rows; a column is a sequence or one value for all rows."""
        arrays = [self.array(field, columns[field.name], count) for field in self._fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def array(self, field: st.StructField, values: Any, count: int) -> pa.Array:
        """One column; see :meth:`to_batch`."""
        arrow_type = self.schema.field(field.name).type
        if not isinstance(values, list | np.ndarray):
            return pa.repeat(pa.scalar(values, arrow_type), count)
        if isinstance(field.dataType, _PLAIN):
            # As Spark does with pandas' columns, NaN becomes null.
            return pa.array(values, arrow_type, from_pandas=True)
        column = pd.Series(values, dtype=object)
        return PandasToArrowConversion.convert([column], st.StructType([field]), timezone="UTC").column(0)


def to_rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows of a batch as a listener could emit them."""
    return list(zip(*(column.to_pylist(maps_as_pydicts="strict") for column in batch.columns), strict=True))


def columns_of(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """The rows' values by column."""
    values = zip(*rows, strict=True) if rows else ([] for _ in names)
    return dict(zip(names, map(list, values), strict=True))


def as_tuples(emitted: Sequence[Emitted]) -> list[Row]:
    """The same rows, one by one."""
    rows: list[Row] = []
    for each in emitted:
        if isinstance(each, tuple):
            rows.append(each)
        else:
            rows += to_rows(each)
    return rows


def as_batches(emitted: Sequence[Emitted], columns: RowColumns) -> list[pa.RecordBatch]:
    """The same rows in batches; ``columns`` are theirs."""
    names = columns.schema.names
    batches: list[pa.RecordBatch] = []
    for kind, some in groupby(emitted, type):
        if kind is tuple:
            rows: list[Any] = list(some)
            batches.append(columns.to_batch(columns_of(names, rows), len(rows)))
        else:
            batches += some
    return batches


def rows_at(emitted: Sequence[Emitted], queue_offsets: Collection[int]) -> list[Emitted]:
    """The rows of messages at these offsets."""
    found: list[Emitted] = []
    for each in emitted:
        if not isinstance(each, tuple):
            found.append(each.filter(pc.is_in(each.column(0), pa.array(queue_offsets, pa.int64()))))
        elif each[0] in queue_offsets:
            found.append(each)
    return found


def in_queue_order(emitted: Sequence[Emitted], columns: RowColumns, *, below: int) -> list[Emitted]:
    """The rows of messages below an offset by their messages' order; ``columns`` are the rows'."""
    if all(isinstance(each, tuple) for each in emitted):
        return sorted((row for row in emitted if row[0] < below), key=itemgetter(0))
    rows = pa.concat_batches(as_batches(emitted, columns))
    rows = rows.filter(pc.less(rows.column(0), below))
    # Not Arrow's own order, which is of no certain order where offsets are equal.
    return [rows.take(pa.array(np.argsort(rows.column(0).to_numpy(), kind="stable")))]


def engine_batch(
    columns: RowColumns, output: RowColumns, emitted: Sequence[Emitted], ack: QueueAck
) -> pa.RecordBatch:
    """The data rows of a queue and the ack row behind them.

    Args:
        columns: The engine's.
        output: The rows'.
        emitted: The range's rows.
        ack: The range's.
    """
    if {tuple}.issuperset(map(type, emitted)):
        rows: list[Any] = list(emitted)
        return columns.to_batch(engine_columns(output.schema.names[1:], ack.queue, rows, ack), len(rows) + 1)
    last = dict.fromkeys(output.schema.names) | {"queueOffset": ack.next_offset}
    batch = pa.concat_batches([*as_batches(emitted, output), output.to_batch(last, 1)])
    count = batch.num_rows
    whole = [
        pa.repeat(pa.scalar(value, columns.schema.field(name).type), count)
        for name, value in zip(QUEUE_COLUMNS, ack.queue, strict=True)
    ]
    acks = pa.concat_arrays([pa.nulls(count - 1, pa.string()), pa.array([ack.to_json()])])
    return pa.RecordBatch.from_arrays([*whole, *batch.columns, acks], schema=columns.schema)


def engine_columns(
    names: Sequence[str], queue: MessageQueue, rows: Sequence[tuple[Any, ...]], ack: QueueAck
) -> dict[str, Any]:
    """The data rows of a queue and the ack row behind them, by column; a queue's own columns as single values.

    Args:
        names: The listener's columns.
        queue: The range's.
        rows: Each a queue offset, then one value per name.
        ack: The range's.
    """
    queue_offsets, *values = zip(*rows, strict=True) if rows else [()] * (1 + len(names))
    columns: dict[str, Any] = dict(zip(POSITION_COLUMNS, queue, strict=False))
    columns["queueOffset"] = np.array([*queue_offsets, ack.next_offset], dtype=np.int64)
    for name, column in zip(names, values, strict=True):
        columns[name] = [*column, None]
    columns[ACK_COLUMN] = [None] * len(rows) + [ack.to_json()]
    return columns
