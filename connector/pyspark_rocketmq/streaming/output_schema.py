"""Columns that leave the engine: the message's position, the listener's own, and the ack.

A data row has its position and the listener's columns; an ack row has its queue and ``ack``, the JSON of a
:class:`~pyspark_rocketmq.streaming.ack.QueueAck`.  The sink's table has the data row's columns.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from pyspark_rocketmq.errors import SchemaError

_SHORT_NAMES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte", "real": "float"}

POSITION_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset")
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
