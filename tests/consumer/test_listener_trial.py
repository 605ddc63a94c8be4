"""Listeners tried as their own tests do: without Spark and brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Never

import pyarrow as pa
import pytest

import pyspark_rocketmq as rmq
from pyspark_rocketmq import Message
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
SCHEMA = "order_id string, attempt int"


def orders(count: int) -> list[Message]:
    return [
        Message(topic="orders", body=b"paid", properties={"KEYS": f"o{number}"}) for number in range(count)
    ]


def on_orders(messages: list[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        context.emit(order_id=message.keys, attempt=context.attempt)
        if message.keys == "o1" and context.attempt < 3:
            return SUSPEND
    return SUCCESS


def test_a_listener_gets_messages_again_that_it_gave_back_and_rows_of_these_are_void() -> None:
    run = rmq.run_listener(on_orders, orders(3), output_schema=SCHEMA)

    assert run.rows == [
        {"queueOffset": 0, "order_id": "o0", "attempt": 1},
        {"queueOffset": 1, "order_id": "o1", "attempt": 3},
        {"queueOffset": 2, "order_id": "o2", "attempt": 1},
    ]
    assert (run.consumed, run.failed, run.dead_letters) == (3, 2, [])


def test_a_message_that_always_fails_is_a_dead_letter_or_ends_the_run() -> None:
    def broken(messages: list[MessageExt], context: ConsumeOrderlyContext) -> Never:
        raise KeyError(messages[0].keyz)  # type: ignore[attr-defined]

    given_up = rmq.run_listener(broken, orders(2), output_schema=SCHEMA, max_reconsume_times=1)
    assert [message.keys for message in given_up.dead_letters] == ["o0", "o1"]
    assert (given_up.consumed, given_up.failed, given_up.rows) == (2, 4, [])

    endless = rmq.run_listener(broken, orders(2), output_schema=SCHEMA, max_suspensions=4)
    assert (endless.consumed, endless.failed) == (0, 5)
    assert "'MessageExt' object has no attribute 'keyz'" in endless.last_error


def test_a_row_that_breaks_the_schema_ends_the_run() -> None:
    with pytest.raises(rmq.RocketMQError, match="orderid"):
        rmq.run_listener(
            lambda messages, context: context.emit(orderid="x"), orders(1), output_schema="order_id string"
        )


def test_every_form_is_tried_and_nothing_for_no_messages() -> None:
    def rows(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Iterator[dict[str, Any]]:
        for message in messages:
            yield {"order_id": message.keys}

    run = rmq.run_listener(
        rows, orders(5), output_schema="order_id STRING, at timestamp", consume_message_batch_max_size=4
    )

    assert [row["order_id"] for row in run.rows] == ["o0", "o1", "o2", "o3", "o4"]
    assert rmq.run_listener(rows, [], output_schema=SCHEMA).rows == []


def test_rows_of_a_record_batch_are_shown_as_any_others() -> None:
    """H12"""

    def on_batch(
        batch: pa.RecordBatch, context: ConsumeOrderlyContext
    ) -> tuple[ConsumeOrderlyStatus, pa.RecordBatch]:
        columns = [batch.column("queueOffset"), batch.column("keys")]
        return SUCCESS, pa.RecordBatch.from_arrays(columns, names=["queueOffset", "order_id"])

    run = rmq.run_listener(
        rmq.ArrowListener(on_batch), orders(2), output_schema=SCHEMA, consume_message_batch_max_size=8
    )

    assert run.rows == [
        {"queueOffset": 0, "order_id": "o0", "attempt": None},
        {"queueOffset": 1, "order_id": "o1", "attempt": None},
    ]
