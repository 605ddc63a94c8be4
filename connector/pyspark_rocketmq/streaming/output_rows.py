"""The engine's rows and Arrow: for engines that answer Spark in Arrow, and for rows that wait for a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.conversion import PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.output_schema import ACK_COLUMN, POSITION_COLUMNS

_PLAIN = (
    st.StringType, st.BinaryType, st.BooleanType, st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.FloatType,
    st.DoubleType,
)  # fmt: skip
"""Arrow takes what ``emit()`` takes for these as Spark does; the others go Spark's own way."""


class RowColumns:
    """Makes record batches of columns; picklable."""

    def __init__(self, schema: st.StructType) -> None:
        self._fields = tuple(schema.fields)
        self.schema = to_arrow_schema(schema, timezone="UTC")
        """The batches' columns."""

    def to_batch(self, columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
        """A batch of ``count`` rows; a column is a sequence or one value for all rows."""
        arrays = [self._array(field, columns[field.name], count) for field in self._fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: st.StructField, values: Any, count: int) -> pa.Array:
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
