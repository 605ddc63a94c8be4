"""Every form a concurrent listener may have, through the engine, as a task of Spark uses it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.listeners import event_loop as listener_loop
from pyspark_rocketmq.listeners.arrow_listener import PandasListener
from pyspark_rocketmq.listeners.calls import LoopWorkers
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.listeners.event_loop import is_async, run_on_loop
from pyspark_rocketmq.listeners.forms import ListenerContext, form_of
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, MessageExt, MessageModel, QueueRange, QueueState
from tests.helpers import stored_texts
from tests.helpers.messages import QUEUE
from tests.helpers.source_rows import rows_of, source_of
from tests.helpers.wait import PATIENCE_S

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
OUTPUT = StructType().add("name", "string")
PLANNED = QueueRange(
    QUEUE, QueueState(10, epoch=4, reconsume_times=1, retry_counts=stored_texts.retries("[[10,12,1]]")), 16
)
Context = ConsumeConcurrentlyContext


def consumed(listener: object, model: MessageModel = MessageModel.CLUSTERING) -> tuple[list[Any], QueueAck]:
    """Offsets and names of a range's rows, and its ack; there is no broker to send anything back to."""
    engine = ConcurrentEngine(
        form_of(listener, "billing", orderly=False),
        OUTPUT,
        ConcurrentSettings(consume_message_batch_max_size=2, message_model=model),
        SendBackSettings(name_servers=("nowhere:1",), consumer_group="billing"),
    )
    sent = cloudpickle.loads(cloudpickle.dumps(engine))
    [brought] = sent(source_of(rows_of(PLANNED), 4))
    data = [row for rows in brought.batches() for row in rows.to_pylist()]
    return [(row["queueOffset"], row["name"]) for row in data], brought.ack


def function(messages: Sequence[MessageExt], context: Context) -> object:
    for message in messages:
        context.emit(name=message.keys)
    return SUCCESS


async def coroutine(messages: Sequence[MessageExt], context: Context) -> object:
    await asyncio.sleep(0)
    return function(messages, context)


def generator(messages: Sequence[MessageExt], context: Context) -> Iterator[Any]:
    for message in messages:
        yield {"name": message.keys}


async def async_generator(messages: Sequence[MessageExt], context: Context) -> AsyncIterator[Any]:
    for message in messages:
        await asyncio.sleep(0)
        yield message, {"name": message.keys}


def frame(messages: pd.DataFrame, context: Context) -> object:
    return SUCCESS, messages[["queueOffset"]].assign(name=messages["keys"])


async def frame_later(messages: pd.DataFrame, context: Context) -> object:
    await asyncio.sleep(0)
    return frame(messages, context)


OPENED: list[Any] = []


class Opened:
    """Holds what is used by several threads."""

    def open(self, context: ListenerContext) -> None:
        OPENED.append(context.consumer_group)

    def consume_message(self, messages: Sequence[MessageExt], context: Context) -> object:
        return function(messages, context)


class OpenedOnTheLoop:
    """Holds what belongs to an event loop, as pools of connections do."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    async def open(self, context: ListenerContext) -> None:
        self.loop = asyncio.get_running_loop()
        OPENED.append(context.consumer_group)

    async def consume_message(self, messages: Sequence[MessageExt], context: Context) -> object:
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return function(messages, context)


@pytest.fixture(autouse=True)
def _forget() -> None:
    OPENED.clear()


FORMS = [
    function, coroutine, generator, async_generator, PandasListener(frame), PandasListener(frame_later),
    Opened, Opened(),
    OpenedOnTheLoop, f"{__name__}:coroutine", f"{__name__}:OpenedOnTheLoop",
]  # fmt: skip


@pytest.mark.parametrize("listener", FORMS, ids=lambda form: getattr(form, "__qualname__", repr(form)))
def test_every_form_consumes_a_range(listener: object) -> None:
    """E1, E2: each message's rows, and success without saying so where rows are yielded."""
    rows, ack = consumed(listener)

    assert rows == [(offset, f"key-{offset}") for offset in range(10, 16)]
    assert (ack.state.next_offset, ack.failed, ack.finished) == (16, 0, "EXHAUSTED")


@pytest.mark.parametrize("listener", [Opened, OpenedOnTheLoop])
def test_a_listener_is_opened_once_for_all_ranges(listener: type) -> None:
    """E1: and an asynchronous one has the same event loop in all of them."""
    form = form_of(listener, "billing", orderly=False)
    for _ in range(3):
        assert consumed(form)[1].failed == 0

    assert OPENED == ["billing"]


@pytest.mark.parametrize(
    "listener", [coroutine, async_generator, PandasListener(frame_later), OpenedOnTheLoop]
)
def test_callables_that_return_awaitables_are_recognised(listener: object) -> None:
    """E1: threads would hand the coroutine on as an answer."""
    with form_of(listener, orderly=False).borrow() as call:
        assert is_async(call)
    with form_of(Opened, orderly=False).borrow() as call:
        assert not is_async(call)


class NeverOpened:
    async def open(self, context: ListenerContext) -> None:
        raise ConnectionError("the database is away")

    async def consume_message(self, messages: Sequence[MessageExt], context: Context) -> object:
        raise AssertionError


@pytest.mark.parametrize("model", list(MessageModel))
def test_while_a_listener_cannot_be_opened_nothing_is_sent_back_or_dropped(
    model: MessageModel, caplog: pytest.LogCaptureFixture
) -> None:
    """E4, E5: or a database that is away would turn a backlog into dead letters."""
    with caplog.at_level(logging.ERROR):
        rows, ack = consumed(NeverOpened, model)

    assert rows == []
    assert (ack.start, ack.state.next_offset, ack.read, ack.consumed) == (10, 10, 6, 0)
    assert (ack.sent_back, ack.finished) == (0, "SUSPENDED")
    assert (ack.state.reconsume_times, ack.state.retry_counts) == (
        PLANNED.state.reconsume_times,
        PLANNED.state.retry_counts,
    )
    assert ack.state.suspended_until_s is not None
    assert "The listener's open() failed" in caplog.text
    assert "the database is away" in caplog.text


def test_a_loop_that_a_call_blocks_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: the next range's calls have another one."""
    monkeypatch.setattr("pyspark_rocketmq.listeners.calls._LOOP_END_S", 0.01)
    blocked, may_end = listener_loop.listener_loop(), threading.Event()
    blocks = threading.Event()

    async def blocking() -> bool:
        blocks.set()
        may_end.wait(PATIENCE_S)
        return False

    workers = LoopWorkers()
    workers.call(0, blocking)
    try:
        assert blocks.wait(PATIENCE_S)
        workers.close()

        assert run_on_loop(_running_loop, PATIENCE_S) is not blocked
    finally:
        may_end.set()


def test_a_loop_that_lives_stays_however_long_somebody_waited_for_a_call() -> None:
    """E7: a process that stood still has overrun every time-out; what listeners opened is on this loop."""
    loop = listener_loop.listener_loop()

    listener_loop.leave_loop_if_blocked(loop, PATIENCE_S)

    assert run_on_loop(_running_loop, PATIENCE_S) is loop


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
