"""The demo's listener: fails the same steps on every machine, once,
and emits nothing of what it gives back.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.cli.demo.orders import (
    DemoFailure,
    InjectedFailure,
    OrderEvent,
    injected_failure,
    on_order,
    order_events,
)
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt
from tests.helpers.emitted import kept_rows

OUTPUT = OutputColumns.of(
    StructType()
    .add("order_id", "string")
    .add("step", "string")
    .add("sequence", "integer")
    .add("reconsume_times", "integer")
    .add("delivered_ns", "long")
)
EVENTS = list(order_events(20_000, seed=7))
FAILING = {
    failure: next(event for event in EVENTS if injected_failure(event.order_id, event.sequence) is failure)
    for failure in InjectedFailure
}
PASSING = next(event for event in EVENTS if injected_failure(event.order_id, event.sequence) is None)


def message_of(event: OrderEvent, reconsume_times: int = 0, queue_offset: int = 0) -> MessageExt:
    body = {"order_id": event.order_id, "step": event.step, "sequence": event.sequence}
    return MessageExt(
        topic="orders", broker_name="broker-a", queue_id=0, queue_offset=queue_offset, commit_log_offset=0,
        msg_id="", keys=event.order_id, tags=event.step, body=json.dumps(body).encode(), properties={},
        born_timestamp=0, born_host="", store_timestamp=0, store_host="", reconsume_times=reconsume_times,
        sys_flag=0, flag=0,
    )  # fmt: skip


def context_for(message: MessageExt) -> ConsumeOrderlyContext:
    return ConsumeOrderlyContext([message], OUTPUT)


def test_the_default_demo_injects_a_few_failures_of_both_kinds() -> None:
    counts = Counter(injected_failure(event.order_id, event.sequence) for event in EVENTS)

    assert 1 <= counts[InjectedFailure.SUSPEND] <= 10
    assert 1 <= counts[InjectedFailure.EXCEPTION] <= 10


def test_an_order_fails_at_one_step_at_most() -> None:
    failing = Counter(event.order_id for event in EVENTS if injected_failure(event.order_id, event.sequence))

    assert set(failing.values()) == {1}


def test_a_message_that_passes_is_emitted() -> None:
    message = message_of(PASSING, queue_offset=17)
    context = context_for(message)

    assert on_order([message], context) is ConsumeOrderlyStatus.SUCCESS
    [row] = kept_rows(context.take_emitted())
    assert row[:5] == (17, PASSING.order_id, PASSING.step, PASSING.sequence, 0)


def test_the_first_attempt_of_a_suspending_step_suspends_for_a_moment() -> None:
    """D3: the pause is the context's, not the consumer's default."""
    message = message_of(FAILING[InjectedFailure.SUSPEND])
    context = context_for(message)

    assert on_order([message], context) is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    assert context.suspend_current_queue_time_millis == 200


def test_the_first_attempt_of_a_raising_step_raises() -> None:
    """D5: an exception is the other way to give a delivery back."""
    message = message_of(FAILING[InjectedFailure.EXCEPTION])

    with pytest.raises(DemoFailure, match=FAILING[InjectedFailure.EXCEPTION].order_id):
        on_order([message], context_for(message))


@pytest.mark.parametrize("failure", InjectedFailure)
def test_the_second_attempt_passes_and_says_that_it_was_one(failure: InjectedFailure) -> None:
    event = FAILING[failure]
    message = message_of(event, reconsume_times=1)
    context = context_for(message)

    assert on_order([message], context) is ConsumeOrderlyStatus.SUCCESS
    [row] = kept_rows(context.take_emitted())
    assert row[:5] == (0, event.order_id, event.step, event.sequence, 1)
