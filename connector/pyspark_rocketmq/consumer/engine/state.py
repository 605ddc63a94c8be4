"""The orderly engine in a stateful operator: one queue's range, whatever Spark does to its rows.

Runs inside ``groupBy(topic, brokerName, queueId).applyInPandasWithState`` on an executor. Spark passes a
queue's rows in chunks and, once a sort spills, in any order; so the engine gathers the range and puts it into
queue order before it consumes it. It neither reads nor writes Spark's state: everything that a queue's next
range needs is in the offset store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import (
    ACK_COLUMN,
    QUEUE_COLUMNS,
    QueueAck,
    engine_schema,
    listener_schema,
    spark_batches,
)
from pyspark_rocketmq.consumer.engine.range import (
    ArrivedRange,
    check_crossed,
    crossed_ranges,
    wrong_markers,
)
from pyspark_rocketmq.errors import without_frames
from pyspark_rocketmq.listeners.context import ConsumeHooks
from pyspark_rocketmq.listeners.messages import messages_of
from pyspark_rocketmq.listeners.row_buffer import tuples_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns, Row
from pyspark_rocketmq.model import LISTENER_COLUMNS, MessageQueue, OrderlyEngineKind
from pyspark_rocketmq.source.schema import RangeEnd

# The schema of earlier releases, which used the state: with another one Spark would refuse their checkpoints.
_STATE_SCHEMA = "next_offset bigint, epoch bigint, accumulated_offset bigint, uncommitted_rows binary"


def consume_orderly(
    messages: DataFrame,
    listener: object,
    output_schema: str | StructType,
    settings: OrderlySettings | None = None,
    *,
    send_back: SendBackSettings | None = None,
    engine: OrderlyEngineKind = OrderlyEngineKind.STATE,
    hooks: ConsumeHooks | None = None,
) -> DataFrame:
    """Run ``listener`` over a consumer-mode stream, each queue in order.

    Args:
        messages: The unchanged rows that ``format("rocketmq")`` reads with option ``consumerGroup``.
        listener: Called with messages of one queue in order, and a context; in any of the forms of
            ``listeners.forms``.
        output_schema: Columns of the rows it emits.
        settings: Settings of the listener; RocketMQ's defaults if not given.
        send_back: Settings for sending dead letters; needed with ``max_reconsume_times``.
        engine: How Spark runs the listener. DIRECT needs the rows in the source's order: it allows fewer
            partitions (``coalesce``) and refuses a shuffle.
        hooks: Called before and after each call of the listener.

    Returns:
        Data rows (``topic, brokerName, queueId, queueOffset`` and the listener's columns) and one ack row per
        queue and micro-batch, in which ``ack`` is not null. Write the data rows first, then commit the acks.

    Raises:
        OptionError: If the listener has none of these forms, or messages may be given up but not be sent.
        SchemaError: If ``output_schema`` is no schema, or has a name that the engine needs or a type that
            cannot be emitted.
    """
    schema = listener_schema(output_schema)
    consumer = RangeConsumer(
        listener, OutputColumns.of(schema), settings or OrderlySettings(), send_back, hooks
    )
    if engine is OrderlyEngineKind.DIRECT:
        return messages.mapInArrow(_InSpark(DirectEngine(consumer)), engine_schema(schema))
    # Milliseconds as in Java: pandas would show instants in the session's time zone. Never null, since a null
    # would turn a column into floats: a producer may claim a born time that Spark's timestamps cannot hold.
    in_millis = messages.withColumns(
        {name: sf.coalesce(sf.unix_millis(name), sf.lit(0)) for name in ("bornTimestamp", "storeTimestamp")}
    )
    return in_millis.groupBy("topic", "brokerName", "queueId").applyInPandasWithState(
        OrderlyEngine(consumer), engine_schema(schema), _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


class _InSpark:
    """``mapInArrow`` function of an engine that does not read ranges itself; pickled with the listener."""

    def __init__(self, engine: DirectEngine) -> None:
        self._engine = engine

    @without_frames
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for consumed in self._engine(crossed_ranges(batches)):
            yield from spark_batches(consumed)


class OrderlyEngine:
    """The function given to ``applyInPandasWithState``; pickled with the listener."""

    def __init__(self, consumer: RangeConsumer) -> None:
        self._consumer = consumer

    @without_frames
    def __call__(
        self, key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Consume one queue's range; yield its data rows, then its ack row."""
        queue = MessageQueue(str(key[0]), str(key[1]), int(key[2]))
        arrived = _gather(queue, chunks)
        rows, ack, columns = self._consumer.consume(arrived)
        if state.exists:
            state.remove()
        # The last rows share a frame with the ack: Spark joins frames at a cost per cell.
        last: list[Row] = []
        for some in tuples_of(rows, columns):
            if last:
                yield _frame(columns.schema.names, queue, last, None)
            last = some
        yield _frame(columns.schema.names, queue, last, ack)


def _frame(
    names: Sequence[str], queue: MessageQueue, rows: Sequence[Row], ack: QueueAck | None
) -> pd.DataFrame:
    """Return data rows of a queue, with columns ``names``, and after them the ack row if there is an ack."""
    queue_offsets, *values = zip(*rows, strict=True) if rows else [()] * len(names)
    acks: list[Any] = [] if ack is None else [ack.state.next_offset]
    nulls = [None] * len(acks)
    columns: dict[str, Any] = dict(zip(QUEUE_COLUMNS, queue, strict=True))
    columns["queueOffset"] = np.array([*queue_offsets, *acks], dtype=np.int64)
    for name, column in zip(names[1:], values, strict=True):
        # As objects: pandas would turn whole numbers with a null among them into floats.
        columns[name] = pd.Series([*column, *nulls], dtype=object)
    texts = [] if ack is None else [ack.to_json()]
    columns[ACK_COLUMN] = pd.Series([None] * len(rows) + texts, dtype=object)
    return pd.DataFrame(columns)


def _gather(queue: MessageQueue, chunks: Iterable[pd.DataFrame]) -> ArrivedRange:
    """Return the range with its messages in queue order.

    Raises:
        RocketMQError: If the range arrived without its marker row or with several, or if message rows were
            lost or doubled on the way.
    """
    # Column by column: pandas' concat checks every cell of an all-null column, such as a marker's.
    gathered = list(chunks)
    is_marker = np.concatenate([chunk["kind"].notna().to_numpy() for chunk in gathered])
    offsets = np.concatenate([chunk["queueOffset"].to_numpy() for chunk in gathered])
    order = None if (offsets[1:] > offsets[:-1]).all() else np.argsort(offsets, kind="stable")
    if order is not None:
        is_marker, offsets = is_marker[order], offsets[order]
    if is_marker.sum() != 1 or not is_marker[-1]:
        raise wrong_markers(queue, f"{is_marker.sum()} came")
    text = next(chain.from_iterable(chunk["plannedRange"].dropna().tolist() for chunk in gathered))
    end = RangeEnd.from_json(queue, text)
    check_crossed(end, offsets)
    columns = {
        name: list(chain.from_iterable(chunk[name].tolist() for chunk in gathered))
        for name in LISTENER_COLUMNS
    }
    if told := end.told_with_messages:
        for properties in columns["properties"]:
            # The marker row has none.
            if properties is not None:
                properties.update(told)
    messages = messages_of(columns.values())
    if order is not None:
        messages = [messages[at] for at in order.tolist()]
    return ArrivedRange(end, messages[:-1])
