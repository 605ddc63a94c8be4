"""Change data as columns of a read and of a stream, in Spark."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_rocketmq as rmq
from pyspark_rocketmq.errors import OptionError, SchemaError
from tests.change_data.samples import canal_entries, flat, recorded
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def messages(spark: SparkSession, *rows: tuple[bytes | None, str | None]) -> DataFrame:
    """Return messages of one queue."""
    data = [(at, bytearray(body) if body is not None else None, keys) for at, (body, keys) in enumerate(rows)]
    return spark.createDataFrame(data, "queueOffset bigint, body binary, keys string")


def test_changes_of_canal_are_columns(spark: SparkSession) -> None:
    """K6: a row for each change, with the columns of its message."""
    created, truncated = canal_entries("orders", "CREATE")[0], canal_entries("orders", "TRUNCATE")[0]
    updated, deleted = canal_entries("orders", "UPDATE")[1], canal_entries("orders", "DELETE")[0]
    bodies = [line["flat"].encode() for line in (created, updated, deleted, truncated)]
    df = messages(spark, *((body, None) for body in (*bodies, b"null", None, b"{")))

    rows = rmq.change_columns(df, envelope="canal", source_time_zone="UTC").collect()

    assert [(row.queueOffset, row.op, row.table, row.key) for row in rows] == [
        (0, "schema_change", "shop.orders", None),
        (1, "delete", "shop.orders", '{"tenant":1,"no":"A"}'),
        (1, "insert", "shop.orders", '{"tenant":1,"no":"C"}'),
        (2, "delete", "shop.orders", '{"tenant":1,"no":"B"}'),
        (3, "truncate", "shop.orders", "{}"),
        (6, None, None, None),
    ]
    assert rows[0].statement.startswith("CREATE TABLE orders")
    assert rows[2].after == '{"tenant":1,"no":"C","price":3.50,"note":"changed"}'
    assert (rows[3].before, rows[3].after) == ('{"tenant":1,"no":"B","price":8.00,"note":"second"}', None)
    assert rows[5].error.startswith("the body cannot be read as a message of Canal")
    assert {row.error for row in rows[:5]} == {None}


def test_named_columns_give_the_same_changes(spark: SparkSession) -> None:
    """K6: without a question for the columns, which a pipeline forbids; KEYS are used if they are named."""
    bodies = [
        *(canal_entries("orders", kind)[0]["flat"].encode() for kind in ("CREATE", "INSERT")),
        b"null",
        b"{",
    ]
    df = messages(spark, *((body, "key") for body in bodies))
    wanted = rmq.change_columns(df, envelope="canal", source_time_zone="UTC")

    for columns in (["queueOffset", "body", "keys"], ["body", "queueOffset"]):
        changes = rmq.change_columns(df, columns=columns, envelope="canal", source_time_zone="UTC")
        assert changes.columns == [*columns, *wanted.columns[3:]]
        assert changes.collect() == wanted.select(changes.columns).collect()


def test_values_keep_their_digits_in_spark(spark: SparkSession) -> None:
    """K6: from_json reads key and after without loss."""
    body = b64decode(canal_entries("types", "INSERT")[0]["protobuf"])
    changes = rmq.change_columns(
        messages(spark, (body, None)), envelope="canal-protobuf", source_time_zone="+08:00"
    )
    schema = "id decimal(20,0), n65 string, nu decimal(12,4), ts6 timestamp, d6 timestamp_ntz, bl binary"

    row = changes.selectExpr("position", f"from_json(after, '{schema}') as a").collect()[0]
    assert row.position == [0, 0, 2, 3131]
    assert row.a.id == Decimal(2**64 - 1)
    assert row.a.nu == Decimal("12345678.9012")
    assert row.a.n65 == "12345678901234567890123456789012345.123456789012345678901234567890"
    assert row.a.ts6.astimezone(UTC) == datetime(2026, 1, 1, 19, 4, 5, 678901, tzinfo=UTC)
    assert row.a.d6 == datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert bytes(row.a.bl) == b"\x89PNG\x00\n\xff"


def test_changes_of_debezium_have_keys_positions_and_absent_columns(spark: SparkSession) -> None:
    """K6: facts 9, 25: the key is from the message's KEYS."""
    lines = [line for line in recorded("debezium_schema") if line["topic"] == "schema_shop_docs"]
    df = messages(spark, *((line["value"] and line["value"].encode(), line["key"]) for line in lines))

    rows = rmq.change_columns(df, envelope="debezium").orderBy("position").collect()

    assert [row.op for row in rows] == ["insert", "update", "update", "delete"]
    assert {row.key for row in rows} == {'{"id":1}'}
    assert [row.absent for row in rows] == [[], ["body", "raw", "words"], ["raw"], []]
    assert json.loads(rows[1].after) == {"id": 1, "title": "two"}


def test_a_changed_key_is_freed_by_the_header_of_its_delete(spark: SparkSession) -> None:
    """K6: facts 15, 17: by the properties, also if columns are named: both messages have one position."""
    source = {"db": "shop", "table": "orders", "file": "binlog.000007", "pos": 500, "row": 0, "server_id": 1}
    images = ({"op": "c", "after": {"id": 2, "mail": "a"}}, {"op": "d", "before": {"id": 1, "mail": "a"}})
    bodies = [json.dumps({"before": None, "after": None, "source": source} | each) for each in images]
    properties = [{"__debezium.oldkey": '{"id":1}'}, {"__debezium.newkey": '{"id":2}'}]
    keys = ('{"id":2}', '{"id":1}')
    data = [(bytearray(body.encode()), *of) for body, *of in zip(bodies, keys, properties, strict=True)]
    df = spark.createDataFrame(data, "body binary, keys string, properties map<string, string>")

    for columns in (None, ["properties", "keys", "body"]):
        changes = rmq.change_columns(df, envelope="debezium", columns=columns, keys=["mail"])
        rows = changes.orderBy("position").collect()
        assert [(row.op, row.position) for row in rows] == [
            ("delete", [0, 7, 499, 0]),
            ("insert", [0, 7, 500, 0]),
        ]


@SIM_ONLY
def test_stream_of_messages_is_a_stream_of_changes(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """K6: on format("rocketmq"), from the producer to the rows."""
    topic = cluster.unique_name("changes")
    cluster.create_topic(topic, queues=1)
    with rmq.Producer(cluster.name_servers, "ChangeProducer") as producer:
        for number in (1, 2):
            producer.send(
                rmq.Message(topic=topic, body=flat(gtid=f"0-1-{number}", data=[{"id": str(number)}]))
            )
    stream = (
        spark.readStream.format("rocketmq")
        .options(nameServers=cluster.name_servers, topic=topic, startingOffsets="earliest")
        .load()
    )
    changes = rmq.change_columns(stream, envelope="canal", source_time_zone="UTC")

    query = (
        changes.writeStream.format("memory")
        .queryName("changes")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)

    rows = spark.table("changes").orderBy("position").collect()
    assert [(row.topic, row.op, row.table, row.after, row.position) for row in rows] == [
        (topic, "insert", "shop.t", '{"id":1}', [1]),
        (topic, "insert", "shop.t", '{"id":2}', [2]),
    ]


def test_mistakes_are_reported_before_anything_is_read(spark: SparkSession) -> None:
    """K6: errors of options and columns."""
    df = messages(spark, (b"", None))

    with pytest.raises(OptionError, match="did you mean 'canal'"):
        rmq.change_columns(df, envelope="canall")
    with pytest.raises(SchemaError, match="needs the column body"):
        rmq.change_columns(df.drop("body"), envelope="debezium")
    unknown = r"names bodi, but format\('rocketmq'\) has no such column\. Choose from topic"
    with pytest.raises(SchemaError, match=unknown):
        rmq.change_columns(df, columns=["bodi"], envelope="debezium")
    with pytest.raises(SchemaError, match=r"already have the column\(s\) op,"):
        rmq.change_columns(df.selectExpr("*", "1 as OP"), envelope="debezium")
