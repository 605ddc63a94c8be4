"""The engine ``state``, with which messages cross Spark as rows on their way to the listener, and its checks.

The engine (``orderlyEngine=state``) runs inside ``applyInPandasWithState`` on an executor, after
``groupBy(topic, brokerName, queueId)``. Spark passes a queue's rows in chunks and, once a sort spills, in any
order. So the engine gathers the whole range, and puts it into queue order, before it consumes the messages.
The engine keeps nothing in Spark's state, and removes what earlier releases have left there: everything that
a queue's next range needs is in the offset store.

Rows that have crossed Spark are checked before any of them is delivered, because the whole range will be
acknowledged. A range has exactly one *marker row*, at its end, with the number of messages that were read. A
range whose rows were lost or doubled is refused. Without ``groupBy``, a range whose rows were shuffled is
refused, too: there Spark cuts a range into batches of any size, and puts several ranges into one task if
partitions are coalesced, but keeps the order of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource, whole_ranges
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import (
    ACK_COLUMN,
    Consumed,
    listener_schema,
    sink_schema,
)
from pyspark_rocketmq.errors import RocketMQError, without_frames
from pyspark_rocketmq.listeners.context import ConsumeHooks
from pyspark_rocketmq.listeners.messages import messages_of
from pyspark_rocketmq.listeners.row_buffer import tuples_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns, Row
from pyspark_rocketmq.model import (
    LISTENER_COLUMNS,
    QUEUE_COLUMNS,
    QUEUE_OFFSET,
    TIME_COLUMNS,
    MessageQueue,
    OrderlyEngineKind,
    queue_columns,
)
from pyspark_rocketmq.source.marker_rows import end_from_json
from pyspark_rocketmq.source.schema import KIND, PLANNED_RANGE, Arrival, RangeEnd, ReadPiece
from pyspark_rocketmq.spark.session import qualified
from pyspark_rocketmq.wire.columnar.schema import QUEUE_FIELDS

_STATE_SCHEMA: Final = "next_offset bigint, epoch bigint, accumulated_offset bigint, uncommitted_rows binary"
"""Schema of Spark's state, which is not used. Earlier releases used it, and with another schema Spark would
refuse their checkpoints."""
NOT_OVER_CONNECT: Final = (
    "orderly_engine='state' is not possible: Spark Connect goes on with the job of a batch when its "
    "query is stopped, and nothing else ends the listener's calls in it; use "
    "orderly_engine='direct'"
)
"""Why this engine is refused in a session of Spark Connect."""


def slices_arrow_by_float(spark: str) -> bool:
    """Return whether ``applyInPandasWithState`` of Spark ``spark``, a version, passes offsets as floats.

    Spark 4.0 did so before 4.0.5, and 4.1 before 4.1.4; all others pass integers. pyarrow 26 refuses floats.
    """
    major, minor, patch = (int(each) for each in re.findall(r"\d+", spark)[:3])
    return patch < {(4, 0): 5, (4, 1): 4}.get((major, minor), 0)


def _arrow_takes_floats() -> bool:
    with suppress(TypeError):
        return bool(pa.record_batch({"n": [0]}).slice(0.0, 1.0).num_rows)
    return False


STATE_ENGINE_BROKEN: Final = slices_arrow_by_float(pyspark.__version__) and not _arrow_takes_floats()
"""Whether ``applyInPandasWithState`` always fails with this Spark and the pyarrow of this process."""


def spark_problem() -> str | None:
    """Return why this engine cannot run with the Spark and the pyarrow of this process; None if it can."""
    if not STATE_ENGINE_BROKEN:
        return None
    return (
        f"orderly_engine='state' does not work on Spark {pyspark.__version__} with pyarrow "
        f"{pa.__version__}, where applyInPandasWithState fails; use orderly_engine='direct', Spark "
        "4.0.5, 4.1.4, or 4.2, or pyarrow 25 or older, here and on the executors"
    )


def places(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return the folders where this engine's tasks write, by the names that errors use.

    There is one, the checkpoint: Spark's tasks keep state there. With other engines only the driver writes
    there.
    """
    return {"checkpoint": qualified(spark, checkpoint)}


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
        output_schema: Columns of the rows that the listener emits.
        settings: Settings of the listener; RocketMQ's defaults if not given.
        send_back: Settings for sending dead letters; needed with ``max_reconsume_times``.
        engine: How Spark runs the listener. DIRECT needs the rows in the source's order: it allows fewer
            partitions (``coalesce``) and refuses a shuffle.
        hooks: Called before and after each call of the listener.

    Returns:
        Data rows (``topic, brokerName, queueId, queueOffset`` and the listener's columns) and one ack row per
        queue and micro-batch, in which ``ack`` is not null. Write the data rows first, then commit the acks.

    Raises:
        OptionError: If the listener has none of the forms, or ``max_reconsume_times`` is set without
            ``send_back``.
        SchemaError: If ``output_schema`` is not a schema, or has a name that the engine needs or a type that
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
        {name: sf.coalesce(sf.unix_millis(name), sf.lit(0)) for name in TIME_COLUMNS}
    )
    return in_millis.groupBy(*QUEUE_COLUMNS).applyInPandasWithState(
        OrderlyEngine(consumer), engine_schema(schema), _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


def engine_schema(listener: StructType) -> StructType:
    """Return the columns of the engine's rows: a message's position, the listener's columns, and ``ack``."""
    return sink_schema(listener).add(ACK_COLUMN, "string")


class _InSpark:
    """``mapInArrow`` function that runs the direct engine on Spark's rows; pickled with the listener."""

    def __init__(self, engine: DirectEngine) -> None:
        self._engine = engine

    @without_frames
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for consumed in self._engine(ClosedSource(whole_ranges(ranges_from_rows(batches)))):
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
    columns = queue_columns(queue)
    columns[QUEUE_OFFSET] = np.array([*queue_offsets, *acks], dtype=np.int64)
    for name, column in zip(names[1:], values, strict=True):
        # As objects: pandas would turn whole numbers with a null among them into floats.
        columns[name] = pd.Series([*column, *nulls], dtype=object)
    texts = [] if ack is None else [ack.to_json()]
    columns[ACK_COLUMN] = pd.Series([None] * len(rows) + texts, dtype=object)
    return pd.DataFrame(columns)


def _gather(queue: MessageQueue, chunks: Iterable[pd.DataFrame]) -> Arrival:
    """Join the chunks of one queue's range; return the range with its messages in queue order.

    Raises:
        RocketMQError: If the range arrived without its marker row or with several, or if message rows were
            lost or doubled on the way.
    """
    # Column by column: pandas' concat checks every cell of an all-null column, such as a marker's.
    gathered = list(chunks)
    is_marker = np.concatenate([chunk[KIND].notna().to_numpy() for chunk in gathered])
    offsets = np.concatenate([chunk[QUEUE_OFFSET].to_numpy() for chunk in gathered])
    order = None if (offsets[1:] > offsets[:-1]).all() else np.argsort(offsets, kind="stable")
    if order is not None:
        is_marker, offsets = is_marker[order], offsets[order]
    if is_marker.sum() != 1 or not is_marker[-1]:
        raise wrong_markers(queue, f"{is_marker.sum()} came")
    text = next(chain.from_iterable(chunk[PLANNED_RANGE].dropna().tolist() for chunk in gathered))
    end = end_from_json(queue, text)
    check_complete(end, offsets)
    columns = {
        name: list(chain.from_iterable(chunk[name].tolist() for chunk in gathered))
        for name in LISTENER_COLUMNS
    }
    if told := end.described_by_messages:
        for properties in columns["properties"]:
            # The marker row has no properties.
            if properties is not None:
                properties.update(told)
    messages = messages_of(columns.values())
    if order is not None:
        messages = [messages[at] for at in order.tolist()]
    return Arrival(end.planned, [messages[:-1]], end)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut ``batch`` after each marker row, so that only the last row of a piece can be a marker row."""
    marked = np.flatnonzero(batch.column(KIND).is_valid().to_numpy(zero_copy_only=False))
    for start, stop in pairwise((0, *(marked + 1).tolist(), batch.num_rows)):
        if start < stop:
            yield batch.slice(start, stop - start)


def check_complete(end: RangeEnd, offsets: npt.NDArray[np.int64]) -> None:
    """Check that a range whose rows have crossed Spark is complete.

    Args:
        end: End of the range, from its marker row.
        offsets: Queue offsets of the range's messages in the order in which they are to be delivered, and
            after them the offset of the marker row.

    Raises:
        RocketMQError: If messages were lost, doubled or changed places.
    """
    planned, count = end.planned, len(offsets) - 1
    whole = f"the range {planned.start} to {planned.end}"
    late = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if count == end.rows and not len(late):
        return
    if count != end.rows:
        problem = (
            f"{end.rows} messages were read of {whole}, but {count} rows arrived, and the whole range is "
            "acknowledged"
        )
    else:
        before, after = offsets[late[0] : late[0] + 2].tolist()
        problem = f"offset {after} arrived behind offset {before} in {whole}"
        if before == after:
            problem = f"offset {after} arrived twice, so another row of {whole} is missing"
    raise RocketMQError(
        f"{planned.queue}: {problem}. Do not filter, copy, sample or shuffle the rows of format('rocketmq') "
        "before consume_orderly()."
    )


def wrong_markers(queue: MessageQueue, problem: str) -> RocketMQError:
    """Return the error for a range that did not arrive with exactly one marker row, at its end."""
    return RocketMQError(
        f"{queue}: a planned range must arrive with exactly one marker row, at its end, but {problem}. Read "
        "with format('rocketmq') and option 'consumerGroup', and do not filter, copy or shuffle its rows "
        "before consume_orderly()."
    )


def ranges_from_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[ReadPiece]:
    """Yield the pieces of each range whose rows have crossed Spark: its rows, then its end.

    Pieces of a range are held back until its marker row has arrived and the range has been checked.

    Raises:
        RocketMQError: If rows of a range were lost, doubled, moved, or mixed with another queue's.
    """
    gathering: _Gathering | None = None
    for batch in batches:
        for rows in _cut(batch):
            gathering = gathering or _Gathering(_queue_of(rows))
            end = gathering.add(rows)
            if end is not None:
                yield from gathering.rows
                yield end
                gathering = None
    if gathering is not None:
        raise wrong_markers(gathering.queue, "a task's rows ended without one")


class _Gathering:
    """One range whose rows are still arriving."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.rows: list[pa.RecordBatch] = []
        self._offsets: list[npt.NDArray[np.int64]] = []

    def add(self, rows: pa.RecordBatch) -> RangeEnd | None:
        """Add rows, of which only the last may be a marker row; return the range's end if it is one."""
        for name, value in zip(QUEUE_COLUMNS, self.queue, strict=True):
            if not pc.all(pc.equal(rows.column(name), value)).as_py():
                other = _queue_of(rows.filter(pc.not_equal(rows.column(name), value)))
                raise wrong_markers(self.queue, f"rows of {other} came before it")
        self._offsets.append(rows.column(QUEUE_OFFSET).to_numpy())
        is_whole = rows.column(KIND)[-1].is_valid
        if rows.num_rows > is_whole:
            self.rows.append(rows.slice(0, rows.num_rows - is_whole))
        if not is_whole:
            return None
        end = end_from_json(self.queue, rows.column(PLANNED_RANGE)[-1].as_py())
        check_complete(end, np.concatenate(self._offsets))
        return end


def _queue_of(rows: pa.RecordBatch) -> MessageQueue:
    return MessageQueue(*(rows.column(name)[0].as_py() for name in QUEUE_COLUMNS))


def spark_batches(consumed: Consumed) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range that cross Spark: its data rows, then one ack row."""
    schema = pa.schema([*QUEUE_FIELDS, *consumed.columns.schema, pa.field(ACK_COLUMN, pa.string())])
    for rows in consumed.batches():
        no_acks = pa.nulls(rows.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([*rows.columns, no_acks], schema=schema)
    ack = consumed.ack
    position = {**queue_columns(ack.queue), QUEUE_OFFSET: ack.state.next_offset}
    last = dict.fromkeys(schema.names) | position | {ACK_COLUMN: ack.to_json()}
    yield pa.RecordBatch.from_pylist([last], schema=schema)
