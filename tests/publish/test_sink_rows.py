from __future__ import annotations

import itertools
import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_rocketmq.errors import OptionError, RowNotSent, SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.batches import BatchBuilder, QueueSelector, SendBatch
from pyspark_rocketmq.publish.keys import MOST_KEYS, KeySampler, keys_of_several_tasks
from pyspark_rocketmq.publish.rows import RowKeys, RowReader, SinkRow, column_positions
from pyspark_rocketmq.wire.compression import decompress
from pyspark_rocketmq.wire.messages import decode_batch
from pyspark_rocketmq.wire.properties import decode_properties

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)


def options(**given: Any) -> WriteOptions:
    return WriteOptions.parse(
        {"nameServers": "h:1", "topic": "t"} | {key: str(text) for key, text in given.items()}
    )


_TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema(ddl: str) -> StructType:
    """Spark itself needs a session to read DDL."""
    fields = (field.split() for field in ddl.split(", "))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in fields])


def row(number: int, body: bytes = b"x", **given: Any) -> SinkRow:
    values = {"topic": "t", "properties_data": b"", "delay": None} | given
    for name in ("sharding_key", "queue_id", "broker_name"):
        values.setdefault(name, None)
    return SinkRow(number=number, body=body, **values)


def read_rows(rows: list[dict[str, Any]], schema: pa.Schema, **given: Any) -> list[SinkRow]:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    reader = RowReader(
        options=options(**given),
        positions={name: at for at, name in enumerate(schema.names)},
        row_keys=RowKeys("write", 3, 1),
    )
    return list(reader.rows(batch, 10))


# --- columns and options ------------------------------------------------------------------------------------


def test_columns_are_found_without_regard_to_case() -> None:
    """G2: as Spark itself does."""
    assert column_positions(
        schema("BODY string, shardingkey string, Properties map<string,string>"), options()
    ) == {
        "body": 0,
        "shardingKey": 1,
        "properties": 2,
    }


def test_an_option_is_in_place_of_the_column() -> None:
    """G2: as Kafka's option topic."""
    fixed = {"tags": "a", "keys": "k", "shardingKey": "s", "delayLevel": "1"}
    rows = schema("body binary, topic string, tags string, keys string, shardingKey string, delayLevel int")

    assert column_positions(rows, options(**fixed)) == {"body": 0}


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("tags string", "there is no column 'body'"),
        ("body int", "column 'body' is int, but must be binary or string"),
        ("body string, tag string", "column 'tag' means nothing here; did you mean 'tags'?"),
        ("body string, queueOffset bigint", "column 'queueOffset' means nothing here"),
        ("body string, queueId string", "column 'queueId' is string, but must be int"),
        ("body string, deliverTimestamp bigint", "must be timestamp"),
        ("body string, properties map<string,int>", r"must be map<string,string>"),
        ("body string, brokerName string", "no queue id: add a column 'queueId', or drop 'brokerName'"),
        ("body string, Body string", "column 'body' occurs twice"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused_before_any_task(ddl: str, said: str) -> None:
    """G2: a column that means nothing may be one that was meant."""
    with pytest.raises(SchemaError, match=said):
        column_positions(schema(ddl), options())


def test_all_problems_of_the_columns_are_reported_at_once() -> None:
    with pytest.raises(SchemaError) as caught:
        column_positions(schema("keys int, colour string"), WriteOptions.parse({"nameServers": "h:1"}))

    assert str(caught.value).count("\n  - ") == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queueId": "1", "shardingKey": "k"}, "'queueId' and 'shardingKey' exclude each other"),
        ({"properties": "[1]"}, "is not a JSON object of strings"),
        ({"properties": "{"}, "is not a JSON object"),
        ({"properties": '{"a": 1}'}, "is not a JSON object of strings"),
        ({"properties": '{"a": "1", "a": "2"}'}, "has the name 'a' twice"),
        ({"properties": "[" * 100_000}, "is nested too deeply"),
        ({"properties": '{"region": ""}'}, "has an empty name or value at 'region'"),
        ({"properties": '{"": "eu"}'}, "has an empty name or value at ''"),
        ({"properties": '{"a": "1", "UNIQ_KEY": "2"}'}, "has the property 'UNIQ_KEY', which clients and"),
        ({"delayLevel": "-1"}, "is not 0 or more"),
        ({"compressionType": "gzip"}, "is none of none, zlib, lz4, zstd"),
        ({"batchBytes": str(2**23)}, "is not between"),
        ({"accessKey": "a"}, "'accessKey' needs 'secretKey'"),
        ({"topic": "t" * 125, "namespace": "shop"}, "together with its namespace"),
        ({"batchsizes": "1"}, "did you mean 'batchSize'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options(**given)


@pytest.mark.parametrize(
    "name", ["DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TRAN_MSG"]
)
def test_properties_that_a_broker_reads_only_in_single_messages_are_no_option(name: str) -> None:
    """G2: rows in batches would ignore them, and those that are too large for one obey."""
    wanted = f"has the property '{name}'.* use option 'delayLevel' or a column 'deliverTimestamp'"

    with pytest.raises(OptionError, match=wanted):
        options(properties=json.dumps({"source": "lake", name: "1"}))


# --- rows ---------------------------------------------------------------------------------------------------

ALL = pa.schema(
    [
        ("body", pa.string()),
        ("topic", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("shardingKey", pa.string()),
        ("queueId", pa.int32()),
        ("brokerName", pa.string()),
        ("delayLevel", pa.int32()),
        ("deliverTimestamp", pa.timestamp("us", tz="UTC")),
        ("msgId", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


def test_a_row_says_everything_of_its_message() -> None:
    """G2."""
    (found,) = read_rows(
        [
            {
                "body": "größe",
                "topic": "t",
                "keys": "k1 k2",
                "tags": "paid",
                "shardingKey": "s",
                "delayLevel": 3,
                "msgId": "id-1",
                "properties": [("a", "1"), ("none", None), ("UNIQ_KEY", ""), ("TAGS", "old")],
            }
        ],
        ALL,
        properties='{"a": "0", "b": "2"}',
    )

    assert (found.number, found.topic, found.body.decode(), found.sharding_key) == (10, "t", "größe", "s")
    assert decode_properties(found.properties_data) == {
        "a": "1", "b": "2", "KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "id-1",
    }  # fmt: skip
    assert found.delay == ("DELAY", "3")
    assert found.shown == "row 10 of the task (keys='k1 k2', shardingKey='s', msgId='id-1')"


@pytest.mark.parametrize("level", [18, 19, 22, 2**31 - 1])
def test_brokers_decide_which_delay_levels_they_have(level: int) -> None:
    """G2: messageDelayLevel may have more than 18; a broker takes its last one for any beyond."""
    (by_column,) = read_rows([{"body": "x", "topic": "t", "delayLevel": level}], ALL)

    assert by_column.delay == ("DELAY", str(level))
    assert options(delayLevel=level).delay_level == level


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("data", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_rows_are_the_same_whatever_arrow_type_spark_gives_their_strings(
    text: pa.DataType, data: pa.DataType
) -> None:
    """G2: ``spark.sql.execution.arrow.useLargeVarTypes`` chooses the large ones."""
    values = {"keys": "k", "tags": "größe", "shardingKey": "s", "brokerName": "a", "msgId": "m"}
    rows: list[dict[str, Any]] = [
        {"body": body, **values, "properties": [("a", "é")]} for body in ("größe", "x")
    ]
    columns = [*((name, text) for name in values), ("properties", pa.map_(text, text))]

    (usual, second) = read_rows(rows, pa.schema([("body", pa.string()), *columns]))
    found = read_rows(rows, pa.schema([("body", text), *columns]))
    for each in rows:
        each["body"] = each["body"].encode()

    assert (usual.body, second.body) == ("größe".encode(), b"x")
    assert found == read_rows(rows, pa.schema([("body", data), *columns])) == [usual, second]


def test_properties_a_broker_adds_at_delivery_are_not_sent() -> None:
    """G2: of properties that were read with TIMER_OUT_MS in them, a broker would not delay the message."""
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    written = {
        "TIMER_OUT_MS": "1",
        "TIMER_ENQUEUE_MS": "2",
        "__transactionId__": "3",
        "POP_CK": "4",
        "__CRC32#": "5",
        "_SYS_MSG_PRIORITY_": "6",
    }
    (found,) = read_rows(
        [
            {
                "body": "x",
                "topic": "t",
                "deliverTimestamp": moment,
                "properties": [*written.items(), ("a", "1")],
            }
        ],
        ALL,
    )

    assert decode_properties(found.properties_data).keys() == {"a", "UNIQ_KEY"}
    assert found.delay is not None


@pytest.mark.parametrize(
    ("kind", "key", "place"),
    [(pa.int64(), -7, 6), (pa.int32(), -7, 0), (pa.int16(), -7, 0), (pa.int64(), 5_000_000_000, 6), (pa.int64(), 0, 0)],
    ids=str,
)  # fmt: skip
def test_a_key_that_is_a_number_goes_where_java_sends_the_number(
    kind: pa.DataType, key: int, place: int
) -> None:
    """G1: by the column's type, as long and int are Long and Integer."""
    schema = pa.schema([("body", pa.string()), ("shardingKey", kind)])
    sampler = KeySampler()
    selector = QueueSelector(
        lambda topic: tuple(A0._replace(queue_id=number) for number in range(7)), sampler
    )
    found, without = read_rows([{"body": "x", "shardingKey": key}, {"body": "x"}], schema)
    queue = selector.of(found)

    assert isinstance(queue, MessageQueue)
    assert queue.queue_id == place
    assert found.sharding_key == key
    assert found.shown == f"row 10 of the task (shardingKey={key})"
    assert selector.of(without) == "t"
    assert list(sampler.sample().keys.values()) == [str(key)]


def test_a_moment_is_shown_in_milliseconds() -> None:
    """G2: TIMER_DELIVER_MS."""
    moment = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    (found,) = read_rows([{"body": "x", "topic": "t", "deliverTimestamp": moment}], ALL)

    assert found.delay == ("TIMER_DELIVER_MS", str(int(moment.timestamp() * 1000)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"body": None}, "its column 'body' is null"),
        ({"body": ""}, "has an empty body"),
        ({"body": "x" * (4 * 1024 * 1024 + 1)}, "has a body of 4194305 bytes; 4194304 can be sent"),
        ({"topic": None}, "its column 'topic' is null"),
        ({"tags": "a\x02b"}, "contains U\\+0001 or U\\+0002"),
        ({"properties": [("a", "x" * 33_000)]}, "properties take 33"),
        ({"tags": "\N{PACKAGE}" * 8_100}, "properties take 32"),
        ({"properties": [("region", "")]}, "property 'region' has an empty value; every consumer would drop"),
        ({"properties": [("", "eu")]}, "property has an empty name; every consumer would drop"),
        ({"delayLevel": -1}, "its delayLevel is -1; it must be 1 or more"),
        ({"delayLevel": 1, "deliverTimestamp": datetime(2030, 1, 1, tzinfo=UTC)}, "leave one of them null"),
    ],
)
def test_a_row_that_is_no_message_is_reported_with_its_keys(given: dict[str, Any], said: str) -> None:
    """G2: before anything of it is sent."""
    with pytest.raises(RowNotSent, match=rf"row 11 of the task \(keys='k'\): .*{said}"):
        read_rows([{"body": "x", "topic": "t"}, {"body": "x", "topic": "t", "keys": "k"} | given], ALL)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a b", "its topic 'a b' is not a topic name: only letters, digits"),
        ("a\nb", r"its topic 'a.*nb' is not a topic name"),
        (" ", "its topic ' ' is empty"),
        ("x" * 128, "is longer than the 127 characters"),
        ("x" * 123, "is longer than 127 characters together with its namespace 'shop%'"),
    ],
)
def test_a_topic_of_a_row_is_looked_at_as_strictly_as_the_option(name: str, said: str) -> None:
    """G2: brokers would refuse it in words of their own, for the whole request."""
    rows = [{"body": "x", "topic": name}]
    with pytest.raises(RowNotSent, match=f"{said}.*fails at this row: correct it, or leave it out"):
        read_rows(rows, ALL, namespace="shop")


def test_a_topic_of_a_row_may_have_blanks_around_it() -> None:
    """G2: as the option."""
    assert read_rows([{"body": "x", "topic": " orders "}], ALL)[0].topic == "orders"


def test_only_an_invalid_row_is_reported_to_fail_again() -> None:
    """G2"""
    assert str(RowNotSent("row 1 of the task", "the broker is busy")) == (
        "Not sent: row 1 of the task: the broker is busy. Earlier rows of the task may be stored, and a "
        "retry sends them again."
    )


@given(*[st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))] * 2)
def test_keys_and_tags_are_read_back_or_refused(keys: str | None, tags: str | None) -> None:
    """G2: also by the quick way for rows without other properties."""
    rows = [{"body": "x", "topic": "t", "keys": keys, "tags": tags, "msgId": "i"}]
    if {"\1", "\2"} & set((keys or "") + (tags or "")):
        with pytest.raises(RowNotSent, match="contains U"):
            read_rows(rows, ALL)
        return
    (usual,), (other,) = read_rows(rows, ALL), read_rows(rows, ALL, properties='{"a": "1"}')

    own = {name: text for name, text in (("KEYS", keys), ("TAGS", tags), ("UNIQ_KEY", "i")) if text}
    assert decode_properties(usual.properties_data) == own
    assert decode_properties(other.properties_data) == own | {"a": "1"}


def test_row_keys_have_the_place_and_the_content_in_them_and_look_like_javas() -> None:
    """H6, G2: 32 upper-case hexadecimal digits; write, batch, partition, row and content each make another
    one.
    """
    keys = {
        RowKeys(write, batch, partition).of_batch([content])(number)
        for write in ("a", "b")
        for batch in (0, 1)
        for partition in (0, 1)
        for number in (0, 1, 2**40)
        for content in (b"x", b"y")
    }

    assert len(keys) == 48
    assert {len(key) for key in keys} == {32}
    assert all(key == key.upper() and int(key, 16) for key in keys)
    # The same in every process and on every machine.
    assert RowKeys("a", 1, 2).of_batch([b"t", b"x"])(7) == "2E4EF3DF1C72D9726621000000000007"


def unique_key(place: int = 0, write: str = "write", **given: Any) -> str:
    """Return the UNIQ_KEY of a row with these columns at this place."""
    batch = pa.RecordBatch.from_pylist([{"body": "x", "topic": "t"} | given], schema=ALL)
    reader = RowReader(
        options=options(),
        positions={name: at for at, name in enumerate(ALL.names)},
        row_keys=RowKeys(write, 0, 0),
    )
    (found,) = reader.rows(batch, place)
    return decode_properties(found.properties_data)["UNIQ_KEY"]


def test_another_row_at_the_same_place_has_another_id() -> None:
    """H6: a repeated batch or task may have another order; a reader that ignores known ids would lose rows."""
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    others: list[dict[str, Any]] = [
        {},
        {"body": "y"},
        {"topic": "u"},
        {"keys": "k"},
        {"tags": "k"},
        {"shardingKey": "k"},
        {"shardingKey": "None"},
        {"brokerName": "k", "queueId": 1},
        {"queueId": 1},
        {"delayLevel": 1},
        {"deliverTimestamp": moment},
        {"properties": [("k", "1")]},
        {"properties": [("k", "2")]},
        {"properties": [("k", "1"), ("l", "1")]},
        {"keys": "None"},
        {"body": "kx"},
        {"body": "x", "shardingKey": "kx"},
    ]

    assert len({unique_key(**row) for row in others}) == len(others)


def test_an_equal_row_keeps_its_id_at_its_place_and_two_equal_rows_have_two() -> None:
    """H6: properties are a map, which has no order, and those of one delivery are not sent."""
    first, second = (
        {"a": "1", "b": "2"},
        {"b": "2", "none": None, "a": "1", "MIN_OFFSET": "7", "UNIQ_KEY": "u"},
    )

    assert unique_key(properties=[*first.items()]) == unique_key(properties=[*second.items()])
    assert len({unique_key(place, write) for place in (0, 1) for write in ("a", "b")}) == 4


def test_rows_in_another_order_have_other_ids() -> None:
    """H6: none gets the id that another row had."""
    rows = [{"body": f"{number}", "topic": "t"} for number in range(4)]

    def ids(given: list[dict[str, str]]) -> dict[str, str]:
        batch = pa.RecordBatch.from_pylist(given, schema=ALL)
        reader = RowReader(
            options=options(),
            positions={name: at for at, name in enumerate(ALL.names)},
            row_keys=RowKeys("write", 0, 0),
        )
        return {
            decode_properties(row.properties_data)["UNIQ_KEY"]: row.body.decode()
            for row in reader.rows(batch, 0)
        }

    found = ids(rows)
    for order in itertools.permutations(rows):
        other = ids(list(order))
        assert len(other) == 4
        assert all(found.get(key, body) == body for key, body in other.items())
    # Values that run into each other are other rows.
    assert (
        not ids([{"body": "ab", "topic": "t"}, {"body": "c", "topic": "t"}]).keys()
        & ids([{"body": "a", "topic": "t"}, {"body": "bc", "topic": "t"}]).keys()
    )


# --- selector -----------------------------------------------------------------------------------------------


@pytest.fixture
def selector() -> QueueSelector:
    return QueueSelector(lambda topic: (A0, A1, B0))


def test_a_row_goes_to_its_queue_its_key_s_queue_or_any(selector: QueueSelector) -> None:
    """G1: Java's hash ("order-1" is 1 of 3)."""
    assert selector.of(row(0)) == "t"
    assert selector.of(row(0, queue_id=1)) == A1
    assert selector.of(row(0, queue_id=0, broker_name="b")) == B0
    assert selector.of(row(0, sharding_key="order-1")) in (A0, A1, B0)
    assert selector.of(row(0, sharding_key="a")) == (A0, A1, B0)[97 % 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue_id": 0}, "queue 0 of topic t exists on a, b: choose one in a column brokerName"),
        (
            {"queue_id": 7},
            "there is no queue 7 of topic t to write to; choose one of the topic's queues: a/0, a/1, b/0",
        ),
        ({"queue_id": 1, "broker_name": "b"}, "there is no queue 1 of topic t on b"),
        ({"queue_id": 1, "sharding_key": "k"}, "it has both a queueId and a shardingKey"),
    ],
)
def test_a_row_whose_queue_is_not_clear_is_refused(
    selector: QueueSelector, given: dict[str, Any], said: str
) -> None:
    """G5: it goes nowhere else."""
    with pytest.raises(RowNotSent, match=said):
        selector.of(row(0, **given))


# --- requests -----------------------------------------------------------------------------------------------


def numbers(batch: SendBatch) -> list[int]:
    if batch.single is not None:
        return [int(batch.single.body)]
    return [int(decompress(member.body, batch.sys_flag)) for member in decode_batch(b"".join(batch.parts))]


@given(
    rows=st.lists(st.tuples(st.sampled_from([A0, A1, "t"]), st.integers(1, 60), st.booleans()), max_size=40),
    most=st.integers(1, 5),
    compression=st.sampled_from(["none", "zlib", "lz4", "zstd"]),
)
def test_every_row_is_in_one_request_and_in_order(
    rows: list[tuple[Any, int, bool]], most: int, compression: str
) -> None:
    """G1, G2: by destination; requests are as small as they must be, delayed messages by themselves, bodies whole."""
    builder = BatchBuilder(
        options(batchSize=most, batchBytes=2_000, compressionType=compression, compressOverBytes=30)
    )
    sent: list[SendBatch] = []
    expected: dict[Any, list[int]] = defaultdict(list)
    for number, (destination, width, is_delayed) in enumerate(rows):
        delay = ("DELAY", "1") if is_delayed else None
        body = f"{number:0{width}}".encode()
        expected[destination].append(number)
        sent += builder.add(row(number, body, delay=delay, properties_data=b"a\x01b\x02"), destination)
    sent += builder.rest()

    found: dict[Any, list[int]] = defaultdict(list)
    for batch in sent:
        found[batch.destination] += numbers(batch)
        assert 1 <= batch.count == len(numbers(batch)) <= most
        assert batch.size <= 2_000
        assert batch.single is None or dict(batch.single.properties) == {"a": "b", "DELAY": "1"}
    assert found == expected


def test_short_bodies_join_a_compressed_batch() -> None:
    """G2: rows of long and short bodies in turn would make a request each."""
    builder = BatchBuilder(options(batchSize=50, compressionType="zlib", compressOverBytes=100))
    bodies = [b"%d" % number + b" " * (200 * (number % 2)) for number in range(200)]
    sent = [batch for at, body in enumerate(bodies) for batch in builder.add(row(at, body), A0)]
    sent += builder.rest()

    assert len(sent) <= 2 * 200 / 50
    assert [number for batch in sent for number in numbers(batch)] == list(range(200))


def test_a_message_larger_than_a_request_goes_by_itself() -> None:
    """G2: the broker then decides."""
    builder = BatchBuilder(options(batchBytes=1_000))
    sent = [
        batch for number in range(3) for batch in builder.add(row(number, b"%d" % number + b" " * 5_000), A0)
    ]

    assert [batch.count for batch in sent] == [1, 1, 1]
    assert all(batch.single is not None for batch in sent), "a batch's frame around it may be too much"
    assert list(builder.rest()) == []


# --- the sample of keys -------------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 60)), max_size=4))
def test_few_keys_are_compared_exactly(tasks: list[set[int]]) -> None:
    """G6."""
    samples = []
    for keys in tasks:
        sampler = KeySampler()
        for key in keys:
            sampler.add("t", str(key))
            sampler.add("t", str(key))
        samples.append(sampler.sample())

    every = [key for keys in tasks for key in keys]
    assert set(keys_of_several_tasks(samples)) == {str(key) for key in every if every.count(key) > 1}


def test_of_many_keys_those_in_two_tasks_are_found_and_no_others() -> None:
    """G6: samples of a bounded size, of which each key is in both or in none."""
    first, second, apart = KeySampler(), KeySampler(), KeySampler()
    for number in range(5 * MOST_KEYS):
        first.add("t", f"key-{number}")
        second.add("t", f"key-{number + 4 * MOST_KEYS}")
        apart.add("other", f"key-{number}")

    found = keys_of_several_tasks([first.sample(), second.sample()])
    assert len(first.sample().keys) <= MOST_KEYS
    assert {int(key.removeprefix("key-")) for key in found} <= set(range(4 * MOST_KEYS, 5 * MOST_KEYS))
    assert len(found) > MOST_KEYS / 20
    assert keys_of_several_tasks([first.sample(), apart.sample()]) == []
