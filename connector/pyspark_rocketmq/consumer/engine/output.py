"""What leaves a task: rows for the sink, and one ack per queue.

The engine's rows and Arrow: for engines that answer Spark in Arrow, and for rows that wait for a commit.

What the engine reports of one queue's range, on its way from a task to the committer on the driver.

Columns that leave the engine: the message's position, the listener's own, and the ack.

A data row has its position and the listener's columns; an ack row has its queue and ``ack``, the JSON of a
:class:`~pyspark_rocketmq.consumer.engine.output.QueueAck`.  The sink's table has the data row's columns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from pyspark_rocketmq.consume.metrics import Figures
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.row_validation import Emitted, Row, RowColumns
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.sinks.base import POSITION_COLUMNS

_SHORT_NAMES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte", "real": "float"}
QUEUE_COLUMNS = POSITION_COLUMNS[:3]
"""Those that say which queue."""
ACK_COLUMN = "ack"

_POSITION = (
    StructType()
    .add("topic", "string")
    .add("brokerName", "string")
    .add("queueId", "integer")
    .add("queueOffset", "long")
)


def listener_schema(output_schema: str | StructType) -> StructType:
    """The columns a listener emits.

    Raises:
        SchemaError: If the text is no schema, or a name is one the engine needs.
    """
    schema = output_schema if isinstance(output_schema, StructType) else _parsed(output_schema)
    taken = {name.lower() for name in (*POSITION_COLUMNS, ACK_COLUMN)}
    clashes = sorted(name for name in schema.fieldNames() if name.lower() in taken)
    if clashes:
        raise SchemaError(
            f"The listener's output schema has column(s) {', '.join(clashes)}, but every output row gets "
            f"{', '.join(POSITION_COLUMNS)} of its message by itself, and '{ACK_COLUMN}' is the engine's. "
            "Leave them out or rename them."
        )
    return schema


def sink_schema(listener: StructType) -> StructType:
    """Columns of the sink's table."""
    return StructType([*_POSITION.fields, *listener.fields])


def engine_schema(listener: StructType) -> StructType:
    """Columns of the engine's rows."""
    return sink_schema(listener).add(ACK_COLUMN, "string")


def _parsed(text: str) -> StructType:
    try:
        # Spark's own parser is in its JVM.
        parsed = _parse_datatype_string(text) if SparkSession.getActiveSession() else _plain_schema(text)
    except Exception as error:
        raise SchemaError(
            f"The output schema '{text}' is not a schema such as 'order_id string, step string'."
        ) from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise SchemaError(f"The output schema '{text}' names no column; write for example 'order_id string'.")
    return parsed


def _plain_schema(text: str) -> StructType:
    """Of ``name type, name type`` with types that have no parts."""
    columns = [column.split() for column in text.split(",")]
    fields = [
        {"name": name, "type": _SHORT_NAMES.get(kind.lower(), kind.lower()), "nullable": True, "metadata": {}}
        for name, kind in columns
    ]
    return StructType.fromJson({"fields": fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAck:
    """How far one queue came in one micro-batch."""

    topic: str
    broker_name: str
    queue_id: int
    epoch: int
    """The epoch the range was planned under."""
    start: int
    """First queue offset of the range."""
    next_offset: int
    """Next queue offset to consume."""
    reconsume_times: int
    """How often the message at ``next_offset`` was put back."""
    suspended_until_s: float | None
    """Wall-clock seconds; also set, to a moment that has come, when the time slice ended before any commit.
    """
    consumed: int
    """Messages passed in this batch, dead letters included."""
    failed: int
    """Deliveries the listener gave back."""
    finished: str
    """Why the engine stopped: EXHAUSTED, SUSPENDED, SLICE_USED, GIVEN_UP or, concurrent, THREADS_LOST."""
    listener_s: float
    """Seconds from the start of the consumption to the listener's last answer; 0 without a delivery."""
    read: int = 0
    """Messages of the range that were read, whether the listener got them or not."""
    reset_to: int | None = None
    """Where an operator wants the queue consumed from next: told by the broker while the range was read."""
    dead_letters: int = 0
    """Messages sent as dead letters in this batch; a batch that runs again sends them again."""
    sent_back: int = 0
    """Messages a concurrent listener gave back and their broker has, to deliver them again or as dead
    letters; a batch that runs again sends them again."""
    last_error: str = ""
    """What went wrong last, in one short line; empty if nothing did."""
    put_back: str = ""
    """How often messages from ``next_offset`` on were given back; empty when ``reconsume_times`` says it all.
    """
    last_message: str = ""
    """The newest message passed, as ``consume.positions`` writes it; empty when none was."""
    figures: Figures = field(default_factory=Figures)
    """What reading and consuming the range took (row D11)."""

    @classmethod
    def of(cls, planned: QueueRange, **reached: Any) -> Self:
        """How far the queue of a planned range came: the other fields by their names."""
        return cls(
            topic=planned.queue.topic,
            broker_name=planned.queue.broker_name,
            queue_id=planned.queue.queue_id,
            epoch=planned.epoch,
            start=planned.start,
            **reached,
        )

    @property
    def queue(self) -> MessageQueue:
        """The queue this speaks of."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def to_json(self) -> str:
        """One line of text; floats keep all their digits."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of :meth:`to_json`."""
        facts = json.loads(text)
        return cls(**{**facts, "figures": Figures(*facts["figures"])})


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
