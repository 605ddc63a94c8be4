"""A listener that takes its messages as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pandas as pd

from pyspark_rocketmq.errors import ListenerError
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.streaming.arrived_range import MESSAGE_COLUMNS
from pyspark_rocketmq.streaming.listener import DeliveryContext
from pyspark_rocketmq.streaming.listener_loop import is_async

_POSITION = "queueOffset"
_TIMES = ("bornTimestamp", "storeTimestamp")


class PandasListener:
    """Wraps a function of a DataFrame and a context: ``PandasListener(on_orders)``.

    The frame has one row per message, in order, with the columns of ``format("rocketmq")``; times are instants in UTC.
    The function returns a status, or a status and a DataFrame of rows with the output's columns and ``queueOffset``,
    which says whose row each is and may be left out in a delivery of one message. NaN and NaT are nulls there. That of a
    concurrent listener may be an ``async def``.
    """

    def __init__(self, function: Callable[[pd.DataFrame, Any], Any]) -> None:
        self._function = function
        self.is_async = is_async(function)
        """Whether the status is to be awaited."""
        self.__qualname__ = getattr(function, "__qualname__", type(function).__name__)

    def __call__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> object:
        """Deliver ``messages`` as a frame; the status."""
        returned = self._function(frame_of(messages), context)
        return (
            _awaited(returned, messages, context) if self.is_async else _status(returned, messages, context)
        )


async def _awaited(
    returned: Awaitable[object], messages: Sequence[MessageExt], context: DeliveryContext
) -> object:
    return _status(await returned, messages, context)


def _status(returned: object, messages: Sequence[MessageExt], context: DeliveryContext) -> object:
    """The status in what a function returned, after emitting the rows in it."""
    match returned:
        case (status, pd.DataFrame() as rows):
            _emit(rows, list(messages), context)
            return status
        case _:
            return returned


def frame_of(messages: Sequence[MessageExt]) -> pd.DataFrame:
    """One row per message."""
    columns = zip(*messages, strict=True)
    frame = pd.DataFrame(dict(zip(MESSAGE_COLUMNS[:-1], columns, strict=False)))
    for name in _TIMES:
        frame[name] = pd.to_datetime(frame[name], unit="ms", utc=True)
    return frame


def _emit(rows: pd.DataFrame, messages: list[MessageExt], context: DeliveryContext) -> None:
    by_offset = {message.queue_offset: message for message in messages}
    owners: Sequence[MessageExt | None]
    if _POSITION in rows.columns:
        owners = [by_offset.get(offset) for offset in rows[_POSITION].tolist()]
    elif len(messages) == 1:
        owners = messages * len(rows)
    else:
        raise ListenerError(
            f"The listener returned rows without column '{_POSITION}' for a delivery of {len(messages)} messages; it "
            "says which message a row belongs to: take it over from the frame of messages."
        )
    values = rows.drop(columns=_POSITION, errors="ignore")
    names = [str(name) for name in values.columns]
    columns = [_with_nulls(values.iloc[:, at]) for at in range(len(names))]
    for owner, *row in zip(owners, *columns, strict=True):
        if owner is None:
            raise ListenerError(
                f"The listener returned a row whose '{_POSITION}' is none of its delivery, {messages[0].queue_offset} to "
                f"{messages[-1].queue_offset}."
            )
        context.emit(owner, **dict(zip(names, row, strict=True)))


def _with_nulls(column: pd.Series[Any]) -> list[Any]:
    values = zip(column.tolist(), column.notna().tolist(), strict=True)
    return [value if is_there else None for value, is_there in values]
