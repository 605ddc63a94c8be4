"""A listener of record batches, through each engine: what it gets, what it may answer, and what is no row."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

import pyspark_rocketmq
from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed, listener_schema
from pyspark_rocketmq.consumer.engine.state import OrderlyEngine, spark_batches
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener, PandasListener
from pyspark_rocketmq.listeners.context import (
    ConsumeConcurrentlyContext,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeOrderlyContext,
)
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.messages import ArrowMessages
from pyspark_rocketmq.listeners.row_buffer import to_rows
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    TIME_COLUMNS,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageModel,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA, spark_schema
from tests.docs.pages import blocks
from tests.helpers import stored_texts
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import rows_of, source_of

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
OUTPUT = StructType().add("name", "string").add("size", "integer")
PLANNED = QueueRange.between(QUEUE, 10, 20, epoch=4)
RETRY_QUEUE = MessageQueue("%RETRY%billing", "broker-a", 0)

Orderly = Callable[[pa.RecordBatch, ConsumeOrderlyContext], Any]


def rows_of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each message."""
    return pa.RecordBatch.from_arrays(
        [batch.column("queueOffset"), batch.column("keys")], names=["queueOffset", "name"]
    )


def a_row_each(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
    return SUCCESS, rows_of_batch(batch)


def consumed(
    listener: Orderly,
    planned: QueueRange = PLANNED,
    *,
    at_once: int = 4,
    kind: type[ArrowListener] = ArrowListener,
    **changes: object,
) -> tuple[list[tuple[Any, ...]], QueueAck]:
    """What a task of the direct engine gives out, pickled as for an executor: offset, name and size of rows,
    and the ack.
    """
    settings = OrderlySettings(consume_message_batch_max_size=at_once)
    engine = DirectEngine(RangeConsumer(kind(listener), OutputColumns.of(OUTPUT), settings))
    sent = cloudpickle.loads(cloudpickle.dumps(engine))
    # Batches of the source end elsewhere than deliveries.
    return taken_apart(sent(source_of(rows_of(planned, **changes), 3)))


def taken_apart(brought: Iterator[Consumed]) -> tuple[list[tuple[Any, ...]], QueueAck]:
    *data, last = [row for each in brought for batch in spark_batches(each) for row in batch.to_pylist()]
    assert all((row["topic"], row["queueId"]) == (last["topic"], last["queueId"]) for row in data)
    return [(row["queueOffset"], row["name"], row["size"]) for row in data], QueueAck.from_json(last["ack"])


def test_a_delivery_is_a_batch_with_the_columns_of_the_source() -> None:
    """D1, D2, H12: whatever batches the messages came in, in order, at most as many as a delivery has."""
    seen: list[pa.RecordBatch] = []

    def look(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        seen.append(batch)
        assert (context.message_queue, context.attempt) == (QUEUE, 1)
        return SUCCESS

    form = form_of(ArrowListener(look))
    consumer = RangeConsumer(
        form, OutputColumns.of(OUTPUT), OrderlySettings(consume_message_batch_max_size=4)
    )
    _, ack = taken_apart(DirectEngine(consumer)(source_of(rows_of(PLANNED), 3)))

    assert [batch.column("queueOffset").to_pylist() for batch in seen] == [
        [10, 11, 12, 13], [14, 15, 16, 17], [18, 19],
    ]  # fmt: skip
    assert seen[0].schema.names == spark_schema(consumer_mode=False).fieldNames()
    assert seen[0].column("body").to_pylist() == [b"body-10", b"body-11", b"body-12", b"body-13"]
    assert seen[0].column("bornTimestamp")[0].as_py() == dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert (ack.state.next_offset, ack.consumed, ack.finished) == (20, 10, "EXHAUSTED")


@pytest.mark.parametrize("at_once", [1, 3, 4, 1024])
def test_its_rows_are_given_out_in_order(at_once: int) -> None:
    """D1, H6, H12"""
    rows, ack = consumed(a_row_each, at_once=at_once)

    assert rows == [(offset, f"key-{offset}", None) for offset in range(10, 20)]
    assert ack.state.next_offset == 20


def test_a_message_may_have_any_number_of_rows() -> None:
    """H6, H12: a table will do, and rows without an offset are those of the one message."""

    def of_the_even(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        even = [offset for offset in batch.column("queueOffset").to_pylist() if offset % 2 == 0]
        return SUCCESS, pa.table({"size": pa.array(2 * even, pa.int64()), "queueOffset": 2 * even})

    assert [(at, size) for at, _, size in consumed(of_the_even)[0]] == [
        (10, 10), (12, 12), (10, 10), (12, 12), (14, 14), (16, 16), (14, 14), (16, 16), (18, 18), (18, 18),
    ]  # fmt: skip
    two = pa.RecordBatch.from_pydict({"name": ["a", "b"]})
    only = QueueRange.between(QUEUE, 7, 8, epoch=1)
    assert consumed(lambda batch, context: (SUCCESS, two), only)[0] == [(7, "a", None), (7, "b", None)]
    assert consumed(lambda batch, context: (SUCCESS, two.slice(0, 0)), only)[0] == []


def test_a_batch_that_is_given_back_comes_again_without_its_rows() -> None:
    """D3, D5: with an attempt counted for each of its messages."""
    seen: list[tuple[list[int], list[int], int]] = []

    def fails_once(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        offsets, times = (batch.column(name).to_pylist() for name in ("queueOffset", "reconsumeTimes"))
        seen.append((offsets, times, context.attempt))
        # Not over before the range has been read, however long that takes.
        context.suspend_current_queue_time_millis = 30_000
        return SUSPEND if 14 in offsets else SUCCESS, rows_of_batch(batch)

    settings = OrderlySettings(consume_message_batch_max_size=4)
    consumer = RangeConsumer(ArrowListener(fails_once), OutputColumns.of(OUTPUT), settings)
    rows, ack = taken_apart(DirectEngine(consumer)(source_of(rows_of(PLANNED), 3)))
    again = QueueRange(
        QUEUE, QueueState(14, epoch=4, reconsume_times=1, retry_counts=ack.state.retry_counts), 20
    )
    taken_apart(DirectEngine(consumer)(source_of(rows_of(again), 3)))

    assert [row[0] for row in rows] == [10, 11, 12, 13]
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.failed) == (14, 1, 1)
    assert seen == [
        ([10, 11, 12, 13], [0] * 4, 1),
        ([14, 15, 16, 17], [0] * 4, 1),
        ([14, 15, 16, 17], [1] * 4, 2),
    ]


def raises(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("listener", "error"),
    [
        (raises, "ValueError: no luck"),
        (lambda batch, context: None, "The listener returned None"),
        (
            lambda batch, context: (SUCCESS, {"name": ["a"]}),
            "of type tuple, which is not a ConsumeOrderlyStatus",
        ),
    ],
)
def test_an_invalid_return_value_gives_the_batch_back(listener: Orderly, error: str) -> None:
    """D5"""
    rows, ack = consumed(listener)

    assert (rows, ack.state.next_offset) == ([], 10)
    assert error in ack.last_error


@pytest.mark.parametrize(
    ("last", "reached", "given_out"),
    [(ConsumeOrderlyStatus.COMMIT, 20, 10), (SUCCESS, 10, 0), (ConsumeOrderlyStatus.ROLLBACK, 10, 0)],
)
def test_batches_are_accumulated_until_a_commit(
    last: ConsumeOrderlyStatus, reached: int, given_out: int
) -> None:
    """D4: with their rows."""

    def listener(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        context.auto_commit = False
        assert context.accumulated == batch.column("queueOffset")[0].as_py() - 10
        return last if batch.num_rows < 4 else SUCCESS, rows_of_batch(batch)

    rows, ack = consumed(listener)

    assert (ack.state.next_offset, len(rows)) == (reached, given_out)


NO_ROWS: list[tuple[type[ArrowListener], Any]] = [
    (ArrowListener, pa.RecordBatch.from_arrays([pa.array([], pa.int64())], names=["queueOffset"])),
    (ArrowListener, pa.RecordBatch.from_pydict({"queueOffset": [], "name": []})),
    (ArrowListener, pa.Table.from_pylist([])),
    (PandasListener, pd.DataFrame([])),
    (PandasListener, pd.DataFrame({"queueOffset": [], "name": []})),
]


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize(("kind", "no_rows"), NO_ROWS)
def test_a_result_without_rows_needs_no_columns(
    kind: type[ArrowListener], no_rows: Any, at_once: int
) -> None:
    """H6, H12: tables that are made from an empty list have no columns, or columns without a type."""
    rows, ack = consumed(lambda batch, context: (SUCCESS, no_rows), at_once=at_once, kind=kind)

    assert (rows, ack.finished, ack.state.next_offset, ack.failed) == ([], "EXHAUSTED", 20, 0)


def test_messages_of_the_retry_topic_have_the_topic_they_were_sent_to_first() -> None:
    """E3: and the context the queue that they were read from."""
    seen: list[Any] = []

    class Looking:
        def hook_name(self) -> str:
            return "looking"

        def consume_message_before(self, context: ConsumeMessageContext) -> None:
            seen.append([(one.topic, one.queue_topic, one.keys) for one in context.msg_list])

        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            seen.append(context.status)

    def look(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        seen.append((batch.column("topic").to_pylist(), context.message_queue))
        return SUCCESS

    planned = QueueRange.between(RETRY_QUEUE, 0, 2, epoch=1)
    rows = rows_of(planned)
    rows[0]["originTopic"] = "orders"
    consumer = RangeConsumer(
        ArrowListener(look),
        OutputColumns.of(OUTPUT),
        OrderlySettings(consume_message_batch_max_size=2),
        hooks=ConsumeHooks([Looking()]),
    )
    taken_apart(DirectEngine(consumer)(source_of(rows, 9)))

    assert seen == [
        [("orders", "%RETRY%billing", "key-0"), ("%RETRY%billing", None, "key-1")],
        (["orders", "%RETRY%billing"], RETRY_QUEUE),
        "SUCCESS",
    ]


def test_the_state_engine_gives_it_batches_too() -> None:
    """D1, H12"""
    consumer = RangeConsumer(
        ArrowListener(a_row_each), OutputColumns.of(OUTPUT), OrderlySettings(consume_message_batch_max_size=4)
    )
    frame = pd.DataFrame(
        [
            row | {name: round(row[name].timestamp() * 1000) for name in TIME_COLUMNS}
            for row in rows_of(PLANNED)
        ],
        columns=CONSUMER_SCHEMA.names,
    )

    class NoState:
        exists = False

    (given,) = OrderlyEngine(consumer)(tuple(QUEUE), [frame], NoState())  # type: ignore[arg-type]

    assert given["queueOffset"].tolist() == [*range(10, 20), 20]
    assert given["name"].tolist() == [*(f"key-{at}" for at in range(10, 20)), None]


def test_a_message_that_is_an_object_and_one_of_a_batch_are_the_same() -> None:
    """D1: hooks, dead letters and messages that go back see no difference."""
    messages = [
        message_at(7)._replace(properties={"a": "b"}, tags="T"),
        message_at(9)._replace(topic="other", queue_topic="orders"),
    ]
    in_arrow = ArrowMessages.of(messages)
    again = ArrowMessages(in_arrow.batch.slice(0, 1), QUEUE, in_arrow.queue_offsets[:1], {})

    assert list(in_arrow) == messages
    assert list(again) == messages[:1]


# ------------------------------------------------------------------------------------------------- concurrent


def concurrently(
    listener: Callable[[pa.RecordBatch, Any], Any], planned: QueueRange = PLANNED
) -> tuple[list[tuple[Any, ...]], QueueAck]:
    engine = ConcurrentEngine(
        form_of(ArrowListener(listener), "billing", orderly=False),
        OUTPUT,
        ConcurrentSettings(consume_message_batch_max_size=4, message_model=MessageModel.BROADCASTING),
        SendBackSettings(name_servers=("nowhere:1",), consumer_group="billing"),
    )
    sent = pickle.loads(cloudpickle.dumps(engine))
    return taken_apart(sent(source_of(rows_of(planned), 3)))


def test_rows_of_messages_that_failed_are_dropped() -> None:
    """E2: ackIndex counts the messages of the batch; rows are given out in the order of the queue."""

    def listener(batch: pa.RecordBatch, context: ConsumeConcurrentlyContext) -> Any:
        context.ack_index = 1
        rows = rows_of_batch(batch)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS, rows.take(pa.array(range(rows.num_rows))[::-1])

    rows, ack = concurrently(listener)

    assert [row[0] for row in rows] == [10, 11, 14, 15, 18, 19]
    assert ack.state.next_offset == 20


def test_an_async_def_is_awaited() -> None:
    """E1, E2"""

    async def listener(batch: pa.RecordBatch, context: ConsumeConcurrentlyContext) -> Any:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS, rows_of_batch(batch)

    rows, ack = concurrently(listener)

    assert [row[0] for row in rows] == list(range(10, 20))
    assert (ack.state.next_offset, ack.failed) == (20, 0)


def test_a_concurrent_batch_has_the_attempts_of_messages_that_could_not_go_back() -> None:
    """E4"""

    def listener(batch: pa.RecordBatch, context: ConsumeConcurrentlyContext) -> Any:
        columns = [batch.column(name) for name in ("queueOffset", "reconsumeTimes")]
        rows = pa.RecordBatch.from_arrays(columns, names=["queueOffset", "size"])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS, rows

    given_back = PLANNED.state._replace(reconsume_times=2, retry_counts=stored_texts.retries("[[10,12,2]]"))
    rows, _ = concurrently(listener, replace(PLANNED, state=given_back))

    assert [(at, times) for at, _, times in rows][:4] == [(10, 2), (11, 2), (12, 0), (13, 0)]


# ------------------------------------------------------------------------------------------------------ what

TYPES = (
    StructType().add("text", "string").add("data", "binary").add("whole", "integer").add("real", "float").add("price", "decimal(6,2)")
    .add("at", "timestamp").add("day", "date").add("parts", ArrayType(LongType()))
    .add("map", MapType(StringType(), StringType())).add("pair", StructType().add("a", "integer").add("b", "string"))
)  # fmt: skip


def fitted(name: str, column: pa.Array) -> Any:
    columns = OutputColumns.of(TYPES)
    rows = pa.RecordBatch.from_arrays([pa.array([1], pa.int64()), column], names=["queueOffset", name])
    batch = columns.fitted(rows)
    assert batch.schema == columns.rows.schema
    return dict(zip(batch.schema.names, to_rows(batch)[0], strict=True))[name]


NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("text", pa.array(["a"], pa.large_string()), "a"),
        ("text", pa.array(["a"]).dictionary_encode(), "a"),
        ("text", pa.array(["a"], pa.string_view()), "a"),
        ("data", pa.array([b"ab"], pa.binary(2)), b"ab"),
        ("whole", pa.array([7], pa.uint64()), 7),
        ("whole", pa.array([7], pa.int8()), 7),
        ("real", pa.array([1.5], pa.float64()), 1.5),
        ("real", pa.array([3], pa.int32()), 3.0),
        ("price", pa.array([Decimal("1.50")], pa.decimal128(3, 2)), Decimal("1.50")),
        ("at", pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")), NOON),
        ("day", pa.array([NOON.date()], pa.date32()), NOON.date()),
        ("parts", pa.array([[1, None]], pa.large_list(pa.int32())), [1, None]),
        ("pair", pa.array([{"a": 1, "b": "x"}]), {"a": 1, "b": "x"}),
        ("text", pa.nulls(1), None),
    ],
)
def test_types_that_mean_the_same_are_taken(name: str, column: pa.Array, value: Any) -> None:
    """H12"""
    assert fitted(name, column) == value


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("text", pa.array([b"a"])),
        ("text", pa.array([1])),
        ("data", pa.array(["a"])),
        ("whole", pa.array([2**31])),
        ("whole", pa.array([1.0])),
        ("whole", pa.array([True])),
        ("real", pa.array(["1.5"])),
        ("price", pa.array([Decimal("1.555")])),
        ("price", pa.array([1.5])),
        ("at", pa.array([NOON.replace(tzinfo=None)])),
        ("at", pa.array([1])),
        ("day", pa.array([NOON])),
        ("parts", pa.array([["a"]])),
        ("map", pa.array([["a"]])),
        ("pair", pa.array([{"b": "x", "a": 1}], pa.struct({"b": pa.string(), "a": pa.int64()}))),
        ("pair", pa.array([{"a": 1}])),
        ("nam", pa.array(["a"])),
    ],
)
def test_values_that_would_be_altered_are_refused(name: str, column: pa.Array) -> None:
    """D5, H12"""
    with pytest.raises(SchemaError, match=f"{name}"):
        fitted(name, column)


def test_a_column_that_must_not_be_null_is_asked_for() -> None:
    """D5"""
    columns = OutputColumns.of(StructType().add("name", "string", nullable=False).add("size", "integer"))
    offsets = pa.array([1, 2], pa.int64())

    whole = pa.RecordBatch.from_arrays([offsets, pa.array(["a", "b"])], names=["queueOffset", "name"])
    assert to_rows(columns.fitted(whole)) == [(1, "a", None), (2, "b", None)]
    for names, arrays in (
        (["queueOffset"], [offsets]),
        (["queueOffset", "name"], [offsets, pa.array(["a", None])]),
    ):
        with pytest.raises(SchemaError, match=r"no value for column\(s\) name"):
            columns.fitted(pa.RecordBatch.from_arrays(arrays, names=names))
    with pytest.raises(SchemaError, match="more than once: queueOffset, name, name"):
        columns.fitted(
            pa.RecordBatch.from_arrays(
                [offsets, *[pa.array(["a", "b"])] * 2], names=["queueOffset", "name", "name"]
            )
        )


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({"name": ["a"]}, "rows without column 'queueOffset' for a delivery of 4 messages"),
        (
            {"queueOffset": [20], "name": ["a"]},
            "is not the offset of a delivered message: the delivery has the offsets 10 to 13",
        ),
        (
            {"queueOffset": [None], "name": ["a"]},
            "is not the offset of a delivered message: the delivery has the offsets 10 to 13",
        ),
        (
            {"queueOffset": ["10"], "name": ["a"]},
            "is not the offset of a delivered message: the delivery has the offsets 10 to 13",
        ),
    ],
)
def test_a_row_of_no_message_of_the_delivery_gives_the_batch_back(
    rows: dict[str, Any], complaint: str
) -> None:
    """D5, H6"""
    _, ack = consumed(lambda batch, context: (SUCCESS, pa.RecordBatch.from_pydict(rows)))

    assert complaint in ack.last_error
    assert ack.state.next_offset == 10


def test_the_example_in_the_pages_does_what_it_says() -> None:
    """H12"""
    (example,) = [block.text for block in blocks("python") if "rmq.ArrowListener(" in block.text]
    registered: list[tuple[Any, dict[str, Any]]] = []
    consumer = SimpleNamespace(
        register_message_listener=lambda listener, **settings: registered.append((listener, settings))
    )
    exec(compile(example, "docs/listeners.md", "exec"), {"rmq": pyspark_rocketmq, "consumer": consumer})

    ((listener, settings),) = registered
    output = listener_schema(StructType().add("order_id", "string").add("bytes", "long"))
    assert settings == {"output_schema": "order_id string, bytes bigint"}
    engine = DirectEngine(
        RangeConsumer(listener, OutputColumns.of(output), OrderlySettings(consume_message_batch_max_size=4))
    )
    rows = [
        row
        for consumed in engine(source_of(rows_of(PLANNED, tags="paid"), 9))
        for batch in consumed.batches()
        for row in batch.to_pylist()
    ]
    assert [(row["order_id"], row["bytes"]) for row in rows] == [(f"key-{at}", 7) for at in range(10, 20)]
