"""The columns of a message are declared once, by ``MessageExt``: names, order and types of all others derive."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_rocketmq.consumer.engine.output import QUEUE_FIELDS, sink_schema
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import LISTENER_COLUMNS, MESSAGE_COLUMNS
from pyspark_rocketmq.sinks.base import POSITION_COLUMNS
from pyspark_rocketmq.sinks.delta.rules import POSITION_TYPES
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA
from pyspark_rocketmq.wire.columnar.columns import _FIXED_COLUMNS
from pyspark_rocketmq.wire.columnar.decode import MESSAGE_SCHEMA

MESSAGE = [
    ("topic", pa.string()),
    ("brokerName", pa.string()),
    ("queueId", pa.int32()),
    ("queueOffset", pa.int64()),
    ("commitLogOffset", pa.int64()),
    ("msgId", pa.string()),
    ("keys", pa.string()),
    ("tags", pa.string()),
    ("body", pa.binary()),
    ("properties", pa.map_(pa.string(), pa.string())),
    ("bornTimestamp", pa.timestamp("us", tz="UTC")),
    ("bornHost", pa.string()),
    ("storeTimestamp", pa.timestamp("us", tz="UTC")),
    ("storeHost", pa.string()),
    ("reconsumeTimes", pa.int32()),
    ("sysFlag", pa.int32()),
    ("flag", pa.int32()),
]
OF_A_CONSUMER = [("originTopic", pa.string()), ("kind", pa.string()), ("plannedRange", pa.string())]
POSITION = {"topic": "string", "brokerName": "string", "queueId": "integer", "queueOffset": "long"}
"""Names of the types in Delta's and Spark's schemas."""


def same_bytes(schema: pa.Schema, literal: list[tuple[str, pa.DataType]]) -> bool:
    return bool(schema.serialize().to_pybytes() == pa.schema(literal).serialize().to_pybytes())


def test_the_schemas_of_the_source_are_byte_for_byte_these() -> None:
    assert same_bytes(MESSAGE_SCHEMA, MESSAGE)
    assert same_bytes(CONSUMER_SCHEMA, MESSAGE + OF_A_CONSUMER)
    assert list(MESSAGE_COLUMNS) == [name for name, _ in MESSAGE]
    assert list(LISTENER_COLUMNS) == [name for name, _ in MESSAGE + OF_A_CONSUMER[:1]]


def test_the_position_of_a_row_is_the_first_four_of_them() -> None:
    spark = StructType()
    for name, kind in POSITION.items():
        spark.add(name, kind)

    assert list(POSITION_COLUMNS) == list(POSITION)
    assert dict(POSITION_TYPES) == POSITION
    assert list(POSITION_TYPES) == list(POSITION)
    assert same_bytes(pa.schema(QUEUE_FIELDS), MESSAGE[:3])
    assert sink_schema(StructType().add("n", "double")) == spark.add("n", "double")


def test_rows_of_a_listener_begin_with_the_offset_of_their_message() -> None:
    rows = OutputColumns.of(StructType().add("n", "double")).rows

    assert same_bytes(rows.schema, [MESSAGE[3], ("n", pa.float64())])


def test_whole_numbers_are_copied_from_the_stored_message() -> None:
    copied = ("queueId", "queueOffset", "commitLogOffset", "reconsumeTimes", "flag")

    assert {name: (kind, kind.to_pandas_dtype()) for name, kind in MESSAGE if name in copied} == {
        name: (kind, dtype.type) for name, (kind, dtype) in _FIXED_COLUMNS.items()
    }
