"""The orderly engine: one queue's planned range through the user's listener, whatever Spark does to its rows.

Runs inside ``groupBy(topic, brokerName, queueId).applyInPandasWithState`` on an executor.  Spark gives a queue's
rows in chunks and, once a sort spills, in any order; so the engine gathers the range, puts it into queue order,
and lets ``consume.orderly`` decide what the listener gets next.

Its state is advice, not truth: it holds what was consumed without a commit (``auto_commit = False``) and counts
only when it continues exactly where the plan starts, under the same epoch.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.datasource.schema import planned_range, reset_target
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener import MessageListenerOrderly
from pyspark_rocketmq.streaming.orderly_run import OrderlyRun, Row, Uncommitted
from pyspark_rocketmq.streaming.output_schema import (
    ACK_COLUMN,
    POSITION_COLUMNS,
    engine_schema,
    listener_schema,
)

logger = logging.getLogger(__name__)

_STATE_SCHEMA = "next_offset bigint, epoch bigint, accumulated_offset bigint, reconsume_times int, uncommitted_rows binary"
_MESSAGE_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "commitLogOffset", "msgId", "keys", "tags", "body", "properties",
    "bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "sysFlag", "flag",
)  # fmt: skip
"""In the order of MessageExt's fields."""


def consume_orderly(
    messages: DataFrame,
    listener: MessageListenerOrderly,
    output_schema: str | StructType,
    settings: OrderlySettings | None = None,
) -> DataFrame:
    """Run ``listener`` over a consumer-mode stream, each queue in order.

    Returns:
        Data rows (``topic, brokerName, queueId, queueOffset`` and the listener's columns) and one ack row per
        queue and micro-batch, in which ``ack`` is not null. Whoever composes a query writes the data rows first
        and commits the acks after.

    Raises:
        SchemaError: If ``output_schema`` is no schema, uses a name the engine needs or a type it cannot take.
    """
    schema = listener_schema(output_schema)
    engine = OrderlyEngine(listener, OutputColumns.of(schema), settings or OrderlySettings())
    # Milliseconds as in Java: pandas would show instants in the session's time zone. Never null, which would make
    # floats of a column: a producer may claim a born time that Spark's timestamps cannot hold.
    in_millis = messages.withColumns(
        {name: sf.coalesce(sf.unix_millis(name), sf.lit(0)) for name in ("bornTimestamp", "storeTimestamp")}
    )
    return in_millis.groupBy("topic", "brokerName", "queueId").applyInPandasWithState(
        engine, engine_schema(schema), _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


class OrderlyEngine:
    """The function given to ``applyInPandasWithState``; pickled with the listener."""

    def __init__(
        self, listener: MessageListenerOrderly, output: OutputColumns, settings: OrderlySettings
    ) -> None:
        self._listener = listener
        self._output = output
        self._settings = settings

    def __call__(
        self, key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Consume one queue's range: its data rows, then its ack row."""
        queue = MessageQueue(str(key[0]), str(key[1]), int(key[2]))
        planned, messages, reset_to = _gather(queue, chunks)
        run = OrderlyRun(
            planned,
            messages,
            listener=self._listener,
            output=self._output,
            settings=self._settings,
            before=_uncommitted(state, planned),
            now_s=time.time,
        )
        rows = run.consume()
        ack = replace(run.ack(), reset_to=reset_to)
        left = run.uncommitted()
        uncommitted_rows = pickle.dumps(left.rows) if left.rows else b""
        state.update(
            (ack.next_offset, planned.epoch, left.accumulated_offset, left.reconsume_times, uncommitted_rows)
        )
        yield self._frame(queue, rows, ack)

    def _frame(self, queue: MessageQueue, rows: Sequence[Row], ack: QueueAck) -> pd.DataFrame:
        """The data rows and the ack row behind them; in one frame, because Spark joins frames at a price per cell."""
        queue_offsets, *values = zip(*rows, strict=True) if rows else [()] * (1 + len(self._output.names))
        data: dict[str, Any] = dict(zip(POSITION_COLUMNS, queue, strict=False))
        data["queueOffset"] = np.array([*queue_offsets, ack.next_offset], dtype=np.int64)
        for name, column in zip(self._output.names, values, strict=True):
            # As objects: pandas would turn whole numbers with a null among them into floats.
            data[name] = pd.Series([*column, None], dtype=object)
        data[ACK_COLUMN] = pd.Series([None] * len(rows) + [ack.to_json()], dtype=object)
        return pd.DataFrame(data)


def _gather(
    queue: MessageQueue, chunks: Iterable[pd.DataFrame]
) -> tuple[QueueRange, list[MessageExt], int | None]:
    """The range's facts, its messages in queue order, and where an operator has reset the queue to.

    Raises:
        RocketMQError: If the range arrived without its marker row or with several, or if message rows were lost or
            doubled on the way.
    """
    # Column by column: pandas' concat looks at every cell of a column that is all null, and the markers' are.
    gathered = list(chunks)
    columns = [
        list(chain.from_iterable(chunk[name].tolist() for chunk in gathered)) for name in _MESSAGE_COLUMNS
    ]
    is_marker = np.concatenate([chunk["kind"].notna().to_numpy() for chunk in gathered])
    offsets = np.concatenate([chunk["queueOffset"].to_numpy() for chunk in gathered])
    messages = list(map(MessageExt._make, zip(*columns, strict=True)))
    if not (offsets[1:] > offsets[:-1]).all():
        order = np.argsort(offsets, kind="stable")
        messages = [messages[at] for at in order.tolist()]
        is_marker, offsets = is_marker[order], offsets[order]
    if is_marker.sum() != 1 or not is_marker[-1]:
        raise RocketMQError(
            f"{queue}: a planned range must arrive with exactly one marker row, at its end, but {is_marker.sum()} "
            "came. Read with format('rocketmq') and option 'consumerGroup', and do not filter or copy its rows "
            "before consume_orderly()."
        )
    text = next(chain.from_iterable(chunk["plannedRange"].dropna().tolist() for chunk in gathered))
    planned = planned_range(queue, text, rows=len(messages) - 1)
    doubled = offsets[1:][offsets[1:] == offsets[:-1]]
    if len(doubled):
        raise RocketMQError(
            f"{queue}: offset {doubled[0]} arrived twice, so another row of the range {planned.start} to {planned.end} "
            "is missing. Do not filter or copy the rows of format('rocketmq') before consume_orderly()."
        )
    return planned, messages[:-1], reset_target(text)


def _uncommitted(state: GroupState, planned: QueueRange) -> Uncommitted:
    if state.exists:
        next_offset, epoch, accumulated_offset, reconsume_times, rows = state.get
        if (next_offset, epoch) == (planned.start, planned.epoch) and accumulated_offset > planned.start:
            kept = pickle.loads(rows) if rows else []  # noqa: S301 - written by this engine
            return Uncommitted(accumulated_offset, kept, reconsume_times)
    return Uncommitted(planned.start, [], planned.reconsume_times)
