"""A listener that takes its messages as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa

from pyspark_rocketmq.streaming.arrow_listener import ArrowListener
from pyspark_rocketmq.streaming.listener import DeliveryContext

_POSITION = "queueOffset"


class PandasListener(ArrowListener):
    """Wraps a function of a DataFrame and a context: ``PandasListener(on_orders)``.

    The frame has one row per message, in order, with the columns of ``format("rocketmq")``; times are instants in UTC.
    The function returns a status, or a status and a DataFrame of rows with the output's columns and ``queueOffset``,
    which says whose row each is and may be left out in a delivery of one message. NaN and NaT are nulls there. That of a
    concurrent listener may be an ``async def``.
    """

    def __init__(self, function: Callable[[pd.DataFrame, Any], Any]) -> None:
        super().__init__(function)

    def _shown(self, messages: pa.RecordBatch) -> pd.DataFrame:
        return frame_of(messages)

    def _rows(self, returned: object, context: DeliveryContext) -> pa.RecordBatch | None:
        if not isinstance(returned, pd.DataFrame):
            return None
        names = [str(name) for name in returned.columns]
        columns = {name: _arrow_column(name, returned.iloc[:, at], context) for at, name in enumerate(names)}
        return pa.RecordBatch.from_pydict(columns)


def frame_of(messages: pa.RecordBatch) -> pd.DataFrame:
    """One row per message."""
    frame: pd.DataFrame = messages.to_pandas(maps_as_pydicts="strict")
    return frame


def _arrow_column(name: str, column: pd.Series[Any], context: DeliveryContext) -> pa.Array:
    if name == _POSITION or _has_arrow_type(column):
        return pa.Array.from_pandas(column)
    values = zip(column.tolist(), column.notna().tolist(), strict=True)
    return context.arrow_column(name, [value if is_there else None for value, is_there in values])


def _has_arrow_type(column: pd.Series[Any]) -> bool:
    """Whether a column's values are of one kind that Arrow has: the others are looked at one by one."""
    is_of = pd.api.types
    return (
        is_of.is_bool_dtype(column.dtype)
        or is_of.is_numeric_dtype(column.dtype)
        or isinstance(column.dtype, pd.StringDtype)
    )
