"""An engine's output for each range: rows for the sink, and an ack for the driver.

The sink's table has the position of a row's message and the listener's columns. If rows cross Spark on their
way from the engine to the sink's writer, they have one more column, ``ack``. It is null in a data row; the
one *ack row* after a queue's data rows has the JSON of its :class:`QueueAck` there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyspark.sql.types import StructType, _parse_datatype_string

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.row_buffer import Emitted, batches_of
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.sinks.base import POSITION_COLUMNS
from pyspark_rocketmq.spark.session import living_session

_SHORT_NAMES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte", "real": "float"}
QUEUE_COLUMNS = POSITION_COLUMNS[:3]
"""Position columns that identify the queue."""
QUEUE_FIELDS = tuple(map(pa.field, QUEUE_COLUMNS, (pa.string(), pa.string(), pa.int32())))
ACK_COLUMN = "ack"

_POSITION = (
    StructType()
    .add("topic", "string")
    .add("brokerName", "string")
    .add("queueId", "integer")
    .add("queueOffset", "long")
)


def listener_schema(output_schema: str | StructType) -> StructType:
    """Return the columns that a listener emits.

    Raises:
        SchemaError: If the text is no schema, or uses a name that the engine needs.
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
    """Return the columns of the sink's table."""
    return StructType([*_POSITION.fields, *listener.fields])


def spark_can_parse() -> bool:
    """Return whether any thread of this process has a session: Spark's own parser is in its JVM."""
    return living_session(None) is not None


def _parsed(text: str) -> StructType:
    has_parser = spark_can_parse()
    try:
        parsed = _parse_datatype_string(text) if has_parser else _plain_schema(text)
    except Exception as error:
        more = (
            ""
            if has_parser
            else " Without a Spark session only names with plain types such as string, int, bigint and date "
            "are understood: make a session first, or give a StructType."
        )
        raise SchemaError(
            f"The output schema '{text}' is not a schema such as 'order_id string, step string'.{more}"
        ) from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise SchemaError(f"The output schema '{text}' names no column; write for example 'order_id string'.")
    return parsed


def _plain_schema(text: str) -> StructType:
    """Parse ``name type, name type`` with plain types."""
    columns = [column.split() for column in text.split(",")]
    fields = [
        {"name": name, "type": _SHORT_NAMES.get(kind.lower(), kind.lower()), "nullable": True, "metadata": {}}
        for name, kind in columns
    ]
    return StructType.fromJson({"fields": fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAck:
    """Progress of one queue in one micro-batch."""

    queue: MessageQueue
    start: int
    """First queue offset of the range."""
    state: QueueState
    """State for the next range; suspended until now if the time slice ended before any commit."""
    consumed: int
    """Messages passed in this batch, dead letters included."""
    failed: int
    """Deliveries that the listener gave back."""
    finished: str
    """Why the engine stopped: EXHAUSTED, SUSPENDED, SLICE_USED, GIVEN_UP or, if concurrent, THREADS_LOST."""
    read: int = 0
    """Messages of the range that were read, whether the listener got them or not."""
    reset_to: int | None = None
    """Offset to which an operator has reset the queue; the broker reported it while the range was read."""
    is_another_log: bool = False
    """Whether another message has the place of a consumed one, so that the queue must be checked."""
    dead_letters: int = 0
    """Messages sent as dead letters in this batch; a batch that runs again sends them again."""
    sent_back: int = 0
    """Messages that a concurrent listener gave back and their broker has stored, to deliver them again or as
    dead letters; a batch that runs again sends them again."""
    last_error: str = ""
    """The last error, in one short line; empty if there was none."""
    refused_letter: str = ""
    """Why no broker took a message that the listener gave up, which holds the queue up; else empty."""
    metrics: ConsumeMetrics = field(default_factory=ConsumeMetrics)
    """Metrics of reading and consuming the range (row D11)."""

    def to_json(self) -> str:
        """Return one line of text; floats keep all their digits."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a text of :meth:`to_json`."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Build an ack from the result of ``dataclasses.asdict``, whether it went through JSON or not."""
        tuples = {"queue": MessageQueue, "state": QueueState, "metrics": ConsumeMetrics}
        return cls(**{**facts, **{name: kind(*facts[name]) for name, kind in tuples.items()}})


class Consumed(NamedTuple):
    """Result of one range."""

    rows: list[Emitted]
    """Rows that may reach the sink."""
    ack: QueueAck
    columns: RowColumns
    """Columns of the rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their whole position, a few MiB at once."""
        queue = self.ack.queue
        schema = pa.schema([*QUEUE_FIELDS, *self.columns.schema])
        for rows in batches_of(self.rows, self.columns):
            whole = [
                pa.repeat(pa.scalar(value, field.type), rows.num_rows)
                for value, field in zip(queue, QUEUE_FIELDS, strict=True)
            ]
            yield pa.RecordBatch.from_arrays([*whole, *rows.columns], schema=schema)
