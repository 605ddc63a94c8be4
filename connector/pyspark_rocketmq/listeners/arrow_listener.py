"""Wrappers that make a listener of a function that takes a record batch or a DataFrame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_rocketmq.errors import ListenerError
from pyspark_rocketmq.listeners.context import DeliveryContext
from pyspark_rocketmq.listeners.event_loop import is_async
from pyspark_rocketmq.listeners.messages import ArrowMessages
from pyspark_rocketmq.model import QUEUE_OFFSET, MessageExt


class ArrowListener:
    """Wraps a function of a record batch and a context: ``ArrowListener(on_orders)``.

    The batch has one row per message of one queue, in order, with the columns and types of
    ``format("rocketmq")``. It has at most ``consume_message_batch_max_size`` (1 to 1024) rows; larger batches
    cost less per message. The function returns a status for all messages, or a status and a record batch (or
    table) of rows with the output's columns and ``queueOffset``, the offset of the row's message. Nullable
    columns may be omitted, and ``queueOffset`` too in a delivery of one message. A concurrent listener may be
    an ``async def``.

    Rows that cannot be cast to the output schema without loss end the query with a ``SchemaError``.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self.is_async = is_async(function)
        """Whether the function's result must be awaited."""
        self.__qualname__ = getattr(function, "__qualname__", type(function).__name__)

    def __call__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> object:
        """Call the function with ``messages`` as a record batch, and emit the rows that it returns.

        Return the function's status or, if the function is an ``async def``, an awaitable of the status.
        """
        delivered = messages if isinstance(messages, ArrowMessages) else ArrowMessages.of(messages)
        returned = self._function(self._shown(delivered.batch), context)
        if self.is_async:
            return self._awaited(returned, delivered, context)
        return self._status(returned, delivered, context)

    def _shown(self, messages: pa.RecordBatch) -> Any:
        """Return ``messages`` in the form that the function takes."""
        return messages

    def _rows(self, returned: object, context: DeliveryContext) -> pa.RecordBatch | None:  # noqa: ARG002
        """Return the rows in ``returned``; None if it is neither a table nor a record batch."""
        match returned:
            case pa.RecordBatch():
                return returned
            case pa.Table():
                columns = [column.combine_chunks() for column in returned.columns]
                return pa.RecordBatch.from_arrays(columns, names=returned.column_names)
            case _:
                return None

    async def _awaited(
        self, returned: Awaitable[object], delivered: ArrowMessages, context: DeliveryContext
    ) -> object:
        return self._status(await returned, delivered, context)

    def _status(self, returned: object, delivered: ArrowMessages, context: DeliveryContext) -> object:
        """Emit the rows that the function returned; return its status."""
        match returned:
            case (status, given) if (rows := self._rows(given, context)) is not None:
                # Without rows, the columns may be missing, or of another type.
                if rows.num_rows:
                    context.emit_batch(_with_owners(rows, delivered))
                return status
            case _:
                return returned


def _with_owners(rows: pa.RecordBatch, delivered: ArrowMessages) -> pa.RecordBatch:
    """Return ``rows`` with column ``queueOffset``, after a check that it has offsets of delivered messages.

    If the delivery has one message, the column may be missing and is added.
    """
    offsets = delivered.queue_offsets
    if QUEUE_OFFSET not in rows.schema.names:
        if len(offsets) > 1:
            raise ListenerError(
                f"The listener returned rows without column '{QUEUE_OFFSET}' for a delivery of "
                f"{len(offsets)} messages. Add it, copied from the messages, so that each row names its "
                "message."
            )
        return rows.append_column(
            QUEUE_OFFSET, pa.repeat(pa.scalar(int(offsets[0]), pa.int64()), rows.num_rows)
        )
    given = rows.column(QUEUE_OFFSET)
    if not pa.types.is_integer(given.type) or given.null_count or not _are_all_in(given, offsets):
        raise ListenerError(
            f"The listener returned a row whose '{QUEUE_OFFSET}' is not the offset of a delivered message: "
            f"the delivery has the offsets {offsets[0]} to {offsets[-1]}. Copy the column from the messages."
        )
    return rows


def _are_all_in(given: pa.Array, offsets: Any) -> bool:
    values = given.to_numpy()
    if len(values) == len(offsets) and np.array_equal(values, offsets):
        # Usually there is one row per message.
        return True
    return bool(np.isin(values, offsets).all())


class PandasListener(ArrowListener):
    """Wraps a function of a DataFrame and a context: ``PandasListener(on_orders)``.

    Like :class:`ArrowListener`, with DataFrames instead of record batches. Times are instants in UTC; NaN and
    NaT in the returned rows become nulls.
    """

    def __init__(self, function: Callable[[pd.DataFrame, Any], Any]) -> None:
        super().__init__(function)

    def _shown(self, messages: pa.RecordBatch) -> pd.DataFrame:
        frame: pd.DataFrame = messages.to_pandas(maps_as_pydicts="strict")
        return frame

    def _rows(self, returned: object, context: DeliveryContext) -> pa.RecordBatch | None:
        if not isinstance(returned, pd.DataFrame):
            return None
        names = [str(name) for name in returned.columns]
        columns = {name: _arrow_column(name, returned.iloc[:, at], context) for at, name in enumerate(names)}
        return pa.RecordBatch.from_pydict(columns)


def _arrow_column(name: str, column: pd.Series[Any], context: DeliveryContext) -> pa.Array:
    if name == QUEUE_OFFSET or _has_arrow_type(column):
        return pa.Array.from_pandas(column)
    values = zip(column.tolist(), column.notna().tolist(), strict=True)
    return context.arrow_column(name, [value if is_there else None for value, is_there in values])


def _has_arrow_type(column: pd.Series[Any]) -> bool:
    """Return whether the column has numbers, booleans or strings, which Arrow converts as a whole.

    The values of any other column must be checked and converted one by one.
    """
    is_of = pd.api.types
    return (
        is_of.is_bool_dtype(column.dtype)
        or is_of.is_numeric_dtype(column.dtype)
        or isinstance(column.dtype, pd.StringDtype)
    )
