"""Hooks around the calls of a run, orderly or concurrent."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.listeners.calls import ListenerCall
from pyspark_rocketmq.listeners.context import (
    ConsumeConcurrentlyContext,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeOrderlyContext,
)
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    QueueRange,
    QueueState,
)
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import QUEUE, message_at

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
PLANNED = QueueRange(QUEUE, QueueState(10, epoch=1, reconsume_times=1), 12)

OUTPUT = OutputColumns.of(StructType().add("name", "string"))


class Recording:
    """A hook that notes what it is shown."""

    def __init__(self, name: str, events: list[Any]) -> None:
        self.name = name
        self.events = events

    def hook_name(self) -> str:
        return self.name

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        context.mq_trace_context = self.name
        self.events.append((self.name, "before", context.success, context.status, dict(context.props)))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert context.mq_trace_context is not None
        self.events.append((self.name, "after", context.success, context.status, dict(context.props)))


class Broken:
    """A hook that always fails."""

    def hook_name(self) -> str:
        return "broken"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        raise ValueError("before")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        raise ValueError("after")


def run_of(
    listener: Any, *hooks: Any, auto_commit: bool = True, clock_step_s: float = 0.0, **settings: Any
) -> OrderlyRun:
    clock = itertools.count(1000.0, clock_step_s)

    def listener_with_context(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.auto_commit = auto_commit
        return listener(messages)

    return OrderlyRun(
        PLANNED,
        [message_at(10), message_at(11)],
        listener=listener_with_context,
        output=OUTPUT,
        settings=OrderlySettings(consume_message_batch_max_size=2, **settings),
        now_s=lambda: next(clock),
        hooks=ConsumeHooks(hooks, consumer_group="billing", namespace="shop"),
    )


def raises(messages: Sequence[MessageExt]) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("listener", "auto_commit", "success", "status", "return_type"),
    [
        (lambda messages: SUCCESS, True, True, "SUCCESS", "SUCCESS"),
        (lambda messages: ConsumeOrderlyStatus.COMMIT, False, True, "COMMIT", "SUCCESS"),
        (lambda messages: ConsumeOrderlyStatus.ROLLBACK, False, False, "ROLLBACK", "SUCCESS"),
        (lambda messages: SUSPEND, True, False, str(SUSPEND), "FAILED"),
        (lambda messages: None, True, False, str(SUSPEND), "RETURNNULL"),
        (raises, True, False, str(SUSPEND), "EXCEPTION"),
        (lambda messages: "CONSUME_SUCCESS", True, False, str(SUSPEND), "FAILED"),
    ],
)
def test_hooks_see_each_call_before_and_after(
    *, listener: Any, auto_commit: bool, success: bool, status: str, return_type: str
) -> None:
    """D10: with what Java's hooks get, in its words."""
    events: list[Any] = []
    run_of(listener, Recording("h", events), auto_commit=auto_commit).consume()

    assert events == [
        ("h", "before", False, None, {}),
        ("h", "after", success, status, {"ConsumeContextType": return_type}),
    ]


def test_a_slow_call_is_shown_as_a_time_out() -> None:
    """D8, D10"""
    events: list[Any] = []
    run_of(lambda messages: SUCCESS, Recording("h", events), clock_step_s=900.0).consume()

    assert events[1] == ("h", "after", True, "SUCCESS", {"ConsumeContextType": "TIME_OUT"})


def test_hooks_see_group_queue_and_messages_as_the_listener_does() -> None:
    """D10"""
    seen: list[ConsumeMessageContext] = []

    class Keeping(Recording):
        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            seen.append(context)

    run_of(lambda messages: SUCCESS, Keeping("h", [])).consume()

    (context,) = seen
    assert (context.consumer_group, context.namespace, context.mq) == ("billing", "shop", QUEUE)
    assert [(one.queue_offset, one.reconsume_times) for one in context.msg_list] == [(10, 1), (11, 0)]


def test_an_exception_in_a_hook_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """D10: neither for the messages nor for the other hooks."""
    events: list[Any] = []
    run = run_of(lambda messages: SUCCESS, Broken(), Recording("h", events), Broken())
    with caplog.at_level(logging.ERROR):
        run.consume()

    assert run.ack().state.next_offset == 12
    assert [event[1] for event in events] == ["before", "after"]
    assert len(caplog.records) == 4
    assert (
        "consume message hook failed, nothing changes hook=broken topic=orders broker=broker-a queue=3"
        in caplog.text
    )


# --- around a concurrent listener's calls -------------------------------------------------------------------


def concurrent_call(
    listener: Any, *hooks: Any, is_async: bool, clock: FakeClock | None = None
) -> ListenerCall:
    messages = [message_at(10), message_at(11)]
    call = ListenerCall(messages, ConsumeConcurrentlyContext(messages, OUTPUT), timeout_s=60.0)
    around = ConsumeHooks(hooks, consumer_group="billing", namespace="shop")

    async def awaited(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        await asyncio.sleep(0)
        return listener(messages)

    if is_async:
        asyncio.run(call.run_async(awaited, around, clock or FakeClock(1.0)))
    else:
        call.run(lambda messages, context: listener(messages), around, clock or FakeClock(1.0))
    return call


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("listener", "success", "status", "return_type"),
    [
        (lambda messages: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, True, "CONSUME_SUCCESS", "SUCCESS"),
        (lambda messages: "CONSUME_SUCCESS", True, "CONSUME_SUCCESS", "SUCCESS"),
        (lambda messages: ConsumeConcurrentlyStatus.RECONSUME_LATER, False, "RECONSUME_LATER", "FAILED"),
        (lambda messages: None, False, "RECONSUME_LATER", "RETURNNULL"),
        (lambda messages: "SUCCESS", False, "RECONSUME_LATER", "FAILED"),
        (raises, False, "RECONSUME_LATER", "EXCEPTION"),
    ],
)
def test_hooks_see_each_concurrent_call_before_and_after(
    *, listener: Any, success: bool, status: str, return_type: str, is_async: bool
) -> None:
    """D10, E2: in the thread, or on the loop, where the listener is called."""
    events: list[Any] = []

    concurrent_call(listener, Broken(), Recording("h", events), is_async=is_async)

    assert events == [
        ("h", "before", False, None, {}),
        ("h", "after", success, status, {"ConsumeContextType": return_type}),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_slow_concurrent_call_is_shown_as_a_time_out(is_async: bool) -> None:
    """D10, E7: and how long it took is known."""
    events: list[Any] = []
    clock = FakeClock(1.0)

    def slow(messages: Sequence[MessageExt]) -> object:
        clock.advance(60.0)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    call = concurrent_call(slow, Recording("h", events), is_async=is_async, clock=clock)

    assert events[1] == ("h", "after", True, "CONSUME_SUCCESS", {"ConsumeContextType": "TIME_OUT"})
    assert call.lasted_s == 60.0
