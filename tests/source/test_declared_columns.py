"""The columns of a message are declared once, by ``MessageExt``: names, order and types of all others derive."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import pyspark_rocketmq
from pyspark_rocketmq.consumer.engine.output import sink_schema
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import LISTENER_COLUMNS, MESSAGE_COLUMNS, POSITION_COLUMNS, QUEUE_COLUMNS
from pyspark_rocketmq.sinks.delta.rules import POSITION_TYPES
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA, POSITION_FIELDS, QUEUE_FIELDS

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
    assert same_bytes(pa.schema(POSITION_FIELDS), MESSAGE[:4])
    assert same_bytes(pa.schema(QUEUE_FIELDS), MESSAGE[:3])
    assert sink_schema(StructType().add("n", "double")) == spark.add("n", "double")


def test_rows_of_a_listener_begin_with_the_offset_of_their_message() -> None:
    rows = OutputColumns.of(StructType().add("n", "double")).rows

    assert same_bytes(rows.schema, [MESSAGE[3], ("n", pa.float64())])


OWN_LISTS = {
    "wire/columnar/rows.py": "places of fields in a stored message's bytes",
    "wire/columnar/columns.py": "how each column is made",
}
"""Modules that may list fields of messages themselves, and what for."""
_JSON_OF_BROKERS = ("wire/requests/", "wire/fastjson.py")


def _statements(source: str) -> Iterator[tuple[int, set[str]]]:
    """Line and texts of each statement that contains no other."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not {"body", "cases"} & set(node._fields):
            texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
            yield node.lineno, {text for text in texts if isinstance(text, str)}


def repeated(source: str) -> list[int]:
    """Lines that write the columns of a queue again, or half of those of a message."""
    return [
        line
        for line, texts in _statements(source)
        if set(QUEUE_COLUMNS[1:]) <= texts or len(MESSAGE_COLUMNS.keys() & texts) > len(MESSAGE_COLUMNS) // 2
    ]


def test_no_module_lists_the_columns_again() -> None:
    package = Path(pyspark_rocketmq.__file__).parent
    sources = {str(file.relative_to(package)): file.read_text("utf-8") for file in package.rglob("*.py")}
    found = {name: lines for name, source in sources.items() if (lines := repeated(source))}

    assert {name for name in found if not name.startswith(_JSON_OF_BROKERS)} == OWN_LISTS.keys(), found


@pytest.mark.parametrize(
    "source",
    [
        'F = ("topic", "brokerName", "queueId", "queueOffset")',
        'F = pa.schema([pa.field("brokerName", pa.string()), pa.field("queueId", pa.int32())])',
        'def f(q):\n    return {"brokerName": q.broker_name, "queueId": q.queue_id}',
        'rows = rows.groupBy("topic", "brokerName", "queueId")',
        f"NAMES = {[name for name, _ in MESSAGE if name != 'queueId']}",
    ],
)
def test_such_a_list_is_found(source: str) -> None:
    assert repeated(source)


def test_a_single_column_may_be_named() -> None:
    assert not repeated('read = rows.column("brokerName")\nids = rows.column("queueId")')
