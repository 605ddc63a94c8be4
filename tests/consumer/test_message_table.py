"""Message rows and marker rows of a task into data rows and acks, before and without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.state import ranges_from_rows
from pyspark_rocketmq.consumer.message_table import TableEngine
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange, queue_columns
from pyspark_rocketmq.source.marker_rows import marker_row
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA, RangeEnd

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
SCHEMA = (
    StructType()
    .add("topic", "string")
    .add("brokerName", "string")
    .add("queueId", "integer")
    .add("queueOffset", "long")
    .add("body", "binary")
    .add("keys", "string")
    .add("ack", "string")
)


def message_rows(queue: MessageQueue, *offsets: int) -> pa.RecordBatch:
    rows = [
        dict.fromkeys(CONSUMER_SCHEMA.names)
        | {
            **queue_columns(queue),
            "queueOffset": at,
        }
        | {"body": f"b{at}".encode(), "keys": f"k{at}"}
        for at in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CONSUMER_SCHEMA)


def marker(
    queue: MessageQueue, start: int, end: int, rows: int, reset_to: int | None = None
) -> pa.RecordBatch:
    return marker_row(
        RangeEnd(planned=QueueRange.between(queue, start, end, epoch=7), rows=rows, reset_to=reset_to)
    )


def together(*batches: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def passed(*batches: pa.RecordBatch) -> tuple[list[tuple[Any, ...]], list[QueueAck]]:
    rows = pa.Table.from_batches(list(TableEngine(SCHEMA).rows(ranges_from_rows(batches)))).to_pylist()
    data = [
        (row["queueId"], row["queueOffset"], row["body"], row["keys"]) for row in rows if row["ack"] is None
    ]
    return data, [QueueAck.from_json(row["ack"]) for row in rows if row["ack"] is not None]


def test_every_message_is_a_row_and_every_range_an_ack() -> None:
    """F1, H1: however Spark cuts ranges into batches, and with several in one task."""
    data, acks = passed(
        message_rows(Q0, 5, 6),
        together(message_rows(Q0, 8), marker(Q0, 5, 9, rows=3), message_rows(Q1, 2)),
        marker(Q1, 0, 4, rows=1),
    )

    assert data == [(0, 5, b"b5", "k5"), (0, 6, b"b6", "k6"), (0, 8, b"b8", "k8"), (1, 2, b"b2", "k2")]
    assert [
        (ack.queue, ack.state.epoch, ack.start, ack.state.next_offset, ack.read, ack.consumed) for ack in acks
    ] == [
        (Q0, 7, 5, 9, 3, 3),
        (Q1, 7, 0, 4, 1, 1),
    ]
    assert {
        (ack.state.reconsume_times, ack.state.suspended_until_s, ack.failed, ack.reset_to) for ack in acks
    } == {(0, None, 0, None)}


def test_a_range_without_messages_is_acknowledged() -> None:
    """A4: a filter may leave none."""
    data, [ack] = passed(marker(Q0, 5, 9, rows=0))

    assert (data, ack.state.next_offset, ack.state.suspended_until_s) == ([], 9, None)


def test_a_queue_whose_broker_was_away_may_go_on_at_once() -> None:
    """A2: a range that ended where it began is no end of the queue."""
    _, [ack] = passed(marker(Q0, 5, 5, rows=0))

    assert ack.state.next_offset == 5
    assert ack.state.suspended_until_s is not None


def test_a_range_says_what_reading_it_took() -> None:
    """D11: every row counts as consumed."""
    planned = QueueRange.between(Q0, 5, 9, epoch=7)
    _, [ack] = passed(
        message_rows(Q0, 5, 6), marker_row(RangeEnd(planned=planned, rows=2, pulls=3, pull_ms=4.5))
    )

    assert ack.metrics == ConsumeMetrics(ok=2, pulled=2, pulls=3, pull_ms=4.5)


def test_a_reset_of_an_operator_is_passed_on() -> None:
    """F5"""
    _, [ack] = passed(marker(Q0, 5, 9, rows=0, reset_to=2))

    assert ack.reset_to == 2


@pytest.mark.parametrize(
    "batches",
    [
        [message_rows(Q0, 5), marker(Q0, 5, 9, rows=2)],
        [message_rows(Q0, 5, 5), marker(Q0, 5, 9, rows=1)],
        [message_rows(Q0, 5)],
    ],
    ids=["lost", "doubled", "without its end"],
)
def test_rows_that_were_lost_or_doubled_end_the_task(batches: list[pa.RecordBatch]) -> None:
    """H1: the whole range would be acknowledged."""
    with pytest.raises(RocketMQError, match="topic=orders broker=broker-a queue=0"):
        passed(*batches)


def test_acks_hold_all_that_the_committer_reads() -> None:
    _, [ack] = passed(marker(Q0, 0, 1, rows=0))

    assert json.loads(ack.to_json())["finished"] == "EXHAUSTED"
