"""Messages as rows, without a listener: decoded by Spark's own functions, bad ones kept."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

from pyspark_rocketmq.consumer.message_table import json_body
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, Message, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.sending import patient_producer

pytestmark = pytest.mark.spark

TIMEOUT_S = 240
BODIES = [
    b'{"order_id": "o1", "amount": 1.5, "at": "2026-01-02T03:04:05Z"}',
    b"{not json",
    b'{"order_id": "o2", "amount": "much"}',
    b'{"order_id": "o3", "unknown": 7}',
    b" ",
    b"\xff\xfe",
    b'[{"order_id": "o4"}]',
    b"{}",
    b'{"order_id": "o5"}\n{"order_id": "o6"}',
    b'{"order_id": "Jos\xe9"}',
    b'{"order_id": "o7", "amount": 1e400}',
]
ORDER_AVSC = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "order_id", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "notes", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        ],
    }
)


def topic_of(cluster: ClusterUnderTest, bodies: Sequence[bytes]) -> str:
    """A topic of one queue with these messages in their order."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    with patient_producer(cluster.name_servers) as producer:
        for body in bodies:
            producer.send(Message(topic=topic, body=body, properties={"KEYS": "k"}), sharding_key="k")
    return topic


def consumer_of(name_servers: str, group: str, topic: str, folder: Path) -> PushConsumer:
    consumer = PushConsumer(
        consumer_group=group,
        name_servers=name_servers,
        offset_store=DeltaOffsetStore(str(folder / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    return consumer


def drained(consumer: PushConsumer, spark: SparkSession, folder: Path) -> list[Row]:
    """The table's rows in queue order, once ``consumer`` has taken in what is there."""
    query = consumer.start(
        spark,
        sink=DeltaSink(folder / "table"),
        checkpoint=str(folder / "checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(TIMEOUT_S)
    return spark.read.format("delta").load(str(folder / "table")).orderBy("queueOffset").collect()


@SIM_ONLY
def test_bad_records_are_rows_of_their_own_and_stop_no_queue(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, F1: eleven messages, eleven rows, each once; what is no such JSON keeps its body,
    and the query goes on.
    """
    topic = topic_of(cluster, BODIES)
    consumer = consumer_of(cluster.name_servers, cluster.unique_name("group"), topic, tmp_path)
    consumer.register_message_table(
        json_body("order_id string, amount double, at timestamp"), message_columns=["keys", "properties"]
    )

    once = drained(consumer, spark, tmp_path)
    rows = drained(consumer, spark, tmp_path)

    assert rows == once
    assert [(row.queueOffset, row.order_id, row.amount) for row in rows] == [
        (0, "o1", 1.5), (1, None, None), (2, None, None), (3, "o3", None), (4, None, None), (5, None, None),
        (6, None, None),
        (7, None, None), (8, None, None), (9, None, None), (10, None, None),
    ]  # fmt: skip
    bad = {row.queueOffset: bytes(row.badRecord) for row in rows if row.badRecord is not None}
    assert bad == {at: BODIES[at] for at in (1, 2, 4, 5, 6, 7, 8, 9, 10)}
    assert {(row.topic, row.brokerName, row["keys"]) for row in rows} == {(topic, "broker-a", "k")}
    assert rows[0]["at"].isoformat() == "2026-01-02T03:04:05"
    assert rows[0].properties["KEYS"] == "k"


@SIM_ONLY
def test_columns_with_dots_and_backticks_are_written(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1: Spark takes a dot in a column's name for a field's."""
    topic = topic_of(cluster, [b'{"a.b": "1", "x`y": {"p.q": 2}, "c&d": 3}', b"bad"])
    consumer = consumer_of(cluster.name_servers, cluster.unique_name("group"), topic, tmp_path)
    consumer.register_message_table(
        json_body("`a.b` string, `x``y` struct<`p.q`: int>, `c&d` int"), bad_record_column="bad.record"
    )

    good, bad = (row.asDict(recursive=True) for row in drained(consumer, spark, tmp_path))

    assert [good[name] for name in ("a.b", "x`y", "c&d", "bad.record")] == ["1", {"p.q": 2}, 3, None]
    assert bytes(bad["bad.record"]) == b"bad"


@SIM_ONLY
@pytest.mark.parametrize("engine", ["state", "direct"])
def test_a_listener_s_columns_may_have_dots_and_backticks(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, engine: str
) -> None:
    """H1: with either engine."""
    topic = topic_of(cluster, [b"1", b"2"])
    consumer = PushConsumer(
        consumer_group=cluster.unique_name("group"),
        name_servers=cluster.name_servers,
        offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        orderly_engine=engine,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(note_dotted, output_schema="`a.b` string, `x``y` int")

    rows = drained(consumer, spark, tmp_path)

    assert [(row["a.b"], row["x`y"]) for row in rows] == [("1", 1), ("2", 1)]


def note_dotted(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(**{"a.b": message.body.decode(), "x`y": len(messages)})
    return ConsumeOrderlyStatus.SUCCESS


@SIM_ONLY
def test_a_consumer_that_a_thread_of_the_program_starts_has_the_session_it_was_given(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """J5: no session is active there; schemas with structs and tables that Spark writes need one."""
    topic = topic_of(cluster, [b"1", b"2"])
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}/table` (topic STRING, brokerName STRING, queueId INT, "
        "queueOffset BIGINT, v STRING, p STRUCT<length: INT>) USING delta "
        "TBLPROPERTIES ('delta.constraints.known' = 'v is not null')"
    )
    consumer = consumer_of(cluster.name_servers, cluster.unique_name("group"), topic, tmp_path)
    consumer.register_message_listener(note_nested, output_schema="v string, p struct<length: int>")

    with ThreadPoolExecutor(1) as thread:
        rows = thread.submit(drained, consumer, spark, tmp_path).result()

    assert [(row.v, row.p.length) for row in rows] == [("1", 1), ("2", 1)]


def note_nested(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(v=message.body.decode(), p={"length": len(message.body)})
    return ConsumeOrderlyStatus.SUCCESS


def avro_order(order_id: bytes, amount: float, note: bytes = b"ok") -> bytes:
    """A record of ``ORDER_AVSC`` in Avro's binary form, with one note."""

    def text(content: bytes) -> bytes:
        return bytes([2 * len(content)]) + content

    notes = b"\x02" + text(b"by") + b"\x02" + text(note) + b"\x00\x00"
    return text(order_id) + struct.pack("<d", amount) + notes


@SIM_ONLY
def test_avro_bodies_are_decoded_by_sparks_own_function(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, F1: as docs/how-to/decoding.md has it; with a schema registry's header, too, once that is cut off.

    Text that is not UTF-8, which Avro's decoder does not see, is a bad record and ends no query.
    """
    good = [avro_order(b"o1", 1.5), avro_order(b"o2", -0.25)]
    bad = [b"\x08o", b"", avro_order(b"\xff", 1.5), avro_order(b"o3", 1.5, note=b"\xf8")]
    bodies = [good[0], *bad, good[1]]
    topic = topic_of(cluster, [b"\x00\x00\x00\x00\x07" + body for body in bodies])
    consumer = consumer_of(cluster.name_servers, cluster.unique_name("group"), topic, tmp_path)
    consumer.register_message_table(
        lambda body: from_avro(body.substr(6, 2147483647), ORDER_AVSC, {"mode": "PERMISSIVE"})
    )

    rows = drained(consumer, spark, tmp_path)

    nulls = (None, None, None)
    assert [(row.order_id, row.amount, row.notes) for row in rows] == [
        ("o1", 1.5, {"by": ["ok"]}), *[nulls] * 4, ("o2", -0.25, {"by": ["ok"]}),
    ]  # fmt: skip
    assert [row.badRecord and bytes(row.badRecord)[5:] for row in rows] == [None, *bad, None]


def exploded(body: Column) -> Column:
    return sf.explode(sf.from_json(body.cast("string"), "array<struct<id string>>"))


@pytest.mark.parametrize(
    "case",
    [
        (lambda body: body.cast("string"), {}, "returns string, but it must return a struct"),
        (json_body("topic string"), {}, "topic"),
        (json_body("keys string"), {"message_columns": ["keys"]}, "would have column.* keys"),
        (
            json_body("a string"),
            {"message_columns": ["key"]},
            "message_columns names key, but a message has no such column",
        ),
        (json_body("badRecord string"), {}, "badRecord"),
        (exploded, {}, "generator|GENERATOR"),
    ],
    ids=["no struct", "position", "twice", "unknown", "bad record's", "several rows of one"],
)
def test_a_table_that_cannot_be_made_is_refused_before_anything_starts(
    spark: SparkSession,
    tmp_path: Path,
    case: tuple[Callable[[Column], Column], dict[str, Any], str],
) -> None:
    """H1: above all what would take an ack row away."""
    decode, more, problem = case
    consumer = consumer_of("127.0.0.1:1", "group", "orders", tmp_path)
    consumer.register_message_table(decode, **more)

    with pytest.raises(Exception, match=problem) as caught:
        consumer.start(spark, sink=DeltaSink(tmp_path / "table"), checkpoint=str(tmp_path / "c"))

    assert isinstance(caught.value, SchemaError) or "UNSUPPORTED_GENERATOR" in str(caught.value)
    assert not (tmp_path / "table").exists()
