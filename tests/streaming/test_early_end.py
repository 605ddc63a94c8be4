"""The engine with a range that ended before the offset it was planned to."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from pyspark.sql.types import StringType, StructType

from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.datasource.schema import CONSUMER_SCHEMA, marker_row
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, QueueRange
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener import ConsumeOrderlyContext
from pyspark_rocketmq.streaming.orderly_engine import OrderlyEngine
from pyspark_rocketmq.streaming.range_consumer import RangeConsumer
from tests.helpers.messages import QUEUE, message_at

PLANNED = QueueRange(queue=QUEUE, start=10, end=20, epoch=3)
OUTPUT = OutputColumns.of(StructType().add("name", StringType()))


class State:
    """A group's state as Spark hands it over."""

    def __init__(self, *values: Any) -> None:
        self.get = values

    @property
    def exists(self) -> bool:
        return bool(self.get)

    def update(self, values: tuple[Any, ...]) -> None:
        self.get = values


def consume(reached: int, state: State, reset_to: int | None = None) -> tuple[list[int], dict[str, Any]]:
    """Offsets delivered to a listener that accumulates, and the ack, when the range ended at ``reached``."""
    seen: list[int] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        seen.extend(message.queue_offset for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    messages = [message_at(offset) for offset in range(10, reached)]
    rows = [dict(zip(CONSUMER_SCHEMA.names, (*message, None, None), strict=True)) for message in messages]
    rows += marker_row(replace(PLANNED, end=reached), rows=len(messages), reset_to=reset_to).to_pylist()
    engine = OrderlyEngine(RangeConsumer(listener, OUTPUT, OrderlySettings()))
    (frame,) = engine(tuple(QUEUE), iter([pd.DataFrame(rows)]), state)  # type: ignore[arg-type]
    return seen, json.loads(frame["ack"].iloc[-1])


def test_a_queue_of_which_nothing_was_read_is_due_at_once_and_does_not_look_stalled() -> None:
    """D4, A2: a queue that stands still without a suspension counts as waiting for more messages."""
    seen, ack = consume(10, State())

    assert (seen, ack["next_offset"], ack["consumed"]) == ([], 10, 0)
    assert 0 < ack["suspended_until_s"] <= time.time()


def test_what_was_accumulated_past_the_early_end_is_neither_forgotten_nor_delivered_again() -> None:
    """D4: rows of messages that were accumulated must reach the sink once."""
    accumulated = (10, 3, 18, "[[18,19,1]]", pickle.dumps([(10, "a"), (17, "b")]))
    state = State(*accumulated)

    seen, ack = consume(15, state)

    assert (seen, ack["next_offset"]) == ([], 10)
    assert state.get == accumulated
    assert consume(20, state)[0] == [18, 19]


def test_where_an_operator_wants_to_go_on_is_passed_to_the_committer() -> None:
    """F5: beside what was consumed until then."""
    seen, ack = consume(12, State(), reset_to=4)

    assert (seen, ack["reset_to"]) == ([10, 11], 4)
    assert consume(12, State())[1]["reset_to"] is None
