"""A row that breaks the output schema is nobody's message's fault: it ends the query,
whatever the listener is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer.engine.call_pool import CallPool
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentRun
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener, PandasListener
from pyspark_rocketmq.listeners.calls import workers_for
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageExt, QueueRange
from tests.helpers.messages import QUEUE, message_at

POOL = CallPool(4)
OUTPUT = OutputColumns.of(StructType().add("order_id", "string", nullable=False).add("size", "integer"))
PLANNED = QueueRange.between(QUEUE, 10, 20, epoch=3)
MESSAGES = [message_at(offset) for offset in range(10, 20)]
BROKEN_AT = 14
BREAKS = [
    ({"orderid": "a"}, "column(s) orderid, which the output schema does not have; it has order_id, size"),
    ({"order_id": "a", "size": "large"}, " for column 'size', which is of type int "),
    ({"size": 3}, "no value for column(s) order_id, which are NOT NULL in the output schema"),
]


def row_of(message: MessageExt, broken: dict[str, Any]) -> dict[str, Any]:
    return broken if message.queue_offset == BROKEN_AT else {"order_id": message.keys, "size": 1}


def function(broken: dict[str, Any], status: object) -> Any:
    def listener(messages: Sequence[MessageExt], context: Any) -> Any:
        for message in messages:
            context.emit(**row_of(message, broken))
        return status

    return listener


def catching(broken: dict[str, Any], status: object) -> Any:
    def listener(messages: Sequence[MessageExt], context: Any) -> Any:
        for message in messages:
            with suppress(Exception):
                context.emit(**row_of(message, broken))
        return status

    return listener


def generator(broken: dict[str, Any], status: object) -> Any:
    def listener(messages: Sequence[MessageExt], context: Any) -> Generator[Any, None, Any]:
        for message in messages:
            yield row_of(message, broken)
        return status

    return listener


def pandas(broken: dict[str, Any], status: object) -> Any:
    def listener(frame: pd.DataFrame, context: Any) -> Any:
        wanted = [broken if at == BROKEN_AT else {"order_id": "a", "size": 1} for at in frame["queueOffset"]]
        return status, pd.DataFrame(
            [row | {"queueOffset": at} for row, at in zip(wanted, frame["queueOffset"], strict=True)]
        )

    return PandasListener(listener)


def arrow(broken: dict[str, Any], status: object) -> Any:
    def listener(batch: pa.RecordBatch, context: Any) -> Any:
        offsets = batch.column("queueOffset").to_pylist()
        wanted = [broken if at == BROKEN_AT else {"order_id": "a", "size": 1} for at in offsets]
        names = sorted({name for row in wanted for name in row})
        rows = {name: [row.get(name) for row in wanted] for name in names}
        return status, pa.RecordBatch.from_pydict(rows | {"queueOffset": offsets})

    return ArrowListener(listener)


def asynchronous(broken: dict[str, Any], status: object) -> Any:
    async def listener(messages: Sequence[MessageExt], context: Any) -> Any:
        await asyncio.sleep(0)
        return catching(broken, status)(messages, context)

    return listener


def async_generator(broken: dict[str, Any], status: object) -> Any:
    async def listener(messages: Sequence[MessageExt], context: Any) -> AsyncIterator[Any]:
        for message in messages:
            await asyncio.sleep(0)
            yield row_of(message, broken)

    return listener


FORMS = [function, catching, generator, pandas, arrow]
GIVEN_UP: list[MessageExt] = []
"""Dead letters, and messages sent back."""


def consume_orderly(listener: object) -> None:
    with form_of(listener).borrow() as call:
        OrderlyRun(
            PLANNED, MESSAGES, listener=call, output=OUTPUT, settings=OrderlySettings(max_reconsume_times=0),
            now_s=lambda: 0.0, dead_letters=GIVEN_UP.append,
        ).consume()  # fmt: skip


def consume_concurrently(listener: object) -> None:
    with (
        form_of(listener, orderly=False).borrow() as call,
        closing(workers_for(call, POOL.threads)) as workers,
    ):
        ConcurrentRun(
            PLANNED, MESSAGES, listener=call, output=OUTPUT,
            settings=ConcurrentSettings(max_reconsume_times=0),
            workers=workers, pool=POOL,
            send_back=lambda message, level: GIVEN_UP.append(message), clock=SystemClock(),
        ).consume()  # fmt: skip


def check_ends_the_query(consume: Callable[[object], None], listener: object, why: str) -> None:
    """With the place and what to do, and no message is given up."""
    GIVEN_UP.clear()

    with pytest.raises(SchemaError) as raised:
        consume(listener)

    for part in (f"{QUEUE} queueOffset={BROKEN_AT}", why, "start the query again"):
        assert part in str(raised.value)
    assert GIVEN_UP == []


@pytest.mark.parametrize(("broken", "why"), BREAKS, ids=["unknown", "wrong type", "missing"])
@pytest.mark.parametrize("form", FORMS)
def test_an_orderly_listeners_broken_row_ends_the_query_and_gives_no_message_up(
    form: Callable[..., object], broken: dict[str, Any], why: str
) -> None:
    """D5: even if the listener catches what emit() raises; with the place, and what to do."""
    check_ends_the_query(consume_orderly, form(broken, ConsumeOrderlyStatus.SUCCESS), why)


@pytest.mark.parametrize(("broken", "why"), BREAKS, ids=["unknown", "wrong type", "missing"])
@pytest.mark.parametrize("form", [*FORMS, asynchronous, async_generator])
def test_a_concurrent_listeners_broken_row_ends_the_query_and_gives_no_message_up(
    form: Callable[..., object], broken: dict[str, Any], why: str
) -> None:
    """D5, E2"""
    check_ends_the_query(consume_concurrently, form(broken, ConsumeConcurrentlyStatus.CONSUME_SUCCESS), why)


def nothing(messages: object, context: object) -> None:
    """What a listener returns that forgets its status."""


async def nothing_async(messages: object, context: object) -> None:
    """The same."""


@pytest.mark.parametrize("listener", [nothing, PandasListener(nothing)], ids=["function", "pandas"])
def test_the_error_of_an_orderly_listener_without_result_names_what_to_return(
    listener: object, caplog: pytest.LogCaptureFixture
) -> None:
    """D5: once for the listener, and each queue's ack says it too."""
    with caplog.at_level(logging.ERROR), form_of(listener).borrow() as call:
        runs = [
            OrderlyRun(
                PLANNED, MESSAGES, listener=call, output=OUTPUT, settings=OrderlySettings(), now_s=lambda: 0.0
            )
            for _ in range(20)
        ]
        for run in runs:
            run.consume()

    (record,) = caplog.records
    sentence = "The listener returned None, which is not a ConsumeOrderlyStatus; return SUCCESS, SUSPEND_CURRENT_QUEUE"
    assert record.getMessage().startswith(sentence)
    ack = runs[-1].ack()
    assert (ack.finished, ack.failed) == ("SUSPENDED", 1)
    assert ack.last_error.startswith(sentence)


@pytest.mark.parametrize(
    "listener",
    [nothing, PandasListener(nothing), nothing_async, PandasListener(nothing_async)],
    ids=["function", "pandas", "async", "async pandas"],
)
def test_the_error_of_a_concurrent_listener_without_result_names_what_to_return(
    listener: object, caplog: pytest.LogCaptureFixture
) -> None:
    """D5, E2"""
    with (
        caplog.at_level(logging.ERROR),
        form_of(listener, orderly=False).borrow() as call,
        closing(workers_for(call, POOL.threads)) as workers,
    ):
        run = ConcurrentRun(
            PLANNED, MESSAGES, listener=call, output=OUTPUT, settings=ConcurrentSettings(), workers=workers,
            pool=POOL, send_back=lambda message, level: None, clock=SystemClock(),
        )  # fmt: skip
        run.consume()

    (record,) = caplog.records
    sentence = (
        "The listener returned None, which is not a ConsumeConcurrentlyStatus; return CONSUME_SUCCESS or "
        "RECONSUME_LATER"
    )
    assert record.getMessage().startswith(sentence)
    assert run.ack().last_error.startswith(sentence)
