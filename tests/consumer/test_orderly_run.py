from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.orderly import OrderlyFinish, OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.orderly import DeadLetters, OrderlyRun, no_dead_letters
from pyspark_rocketmq.errors import (
    ListenerError,
    RequestTimeout,
    SchemaError,
    SchemaRegistryDown,
    SchemaRegistryRefused,
    UndecodableMessage,
)
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.forms import FailedListener
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.schema import EndReason
from tests.helpers import stored_texts
from tests.helpers.emitted import kept_rows
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.range_instructions import GivenUpWhen

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
NOW_S = 1_000.0
OUTPUT = OutputColumns.of(StructType().add("name", "string"))


def run_of(
    listener: Callable[[Sequence[MessageExt], ConsumeOrderlyContext], Any],
    *,
    offsets: Sequence[int] = range(10, 20),
    planned: QueueRange | None = None,
    ended: EndReason = EndReason.WHOLE,
    now_s: Callable[[], float] = lambda: NOW_S,
    dead_letters: DeadLetters = no_dead_letters,
    instructions: RangeInstructions = NO_INSTRUCTIONS,
    **settings: Any,
) -> OrderlyRun:
    planned = planned or QueueRange.between(QUEUE, 10, 20, epoch=3)
    return OrderlyRun(
        planned,
        [message_at(offset) for offset in offsets],
        listener=listener,
        output=OUTPUT,
        settings=OrderlySettings(**settings),
        ended=ended,
        now_s=now_s,
        dead_letters=dead_letters,
        instructions=instructions,
    )


def next_range(run: OrderlyRun, end: int = 20) -> QueueRange:
    """What is planned after a run was acknowledged."""
    ack = run.ack()
    return QueueRange(
        QUEUE,
        QueueState(
            ack.state.next_offset,
            epoch=3,
            reconsume_times=ack.state.reconsume_times,
            retry_counts=ack.state.retry_counts,
        ),
        end,
    )


def emitting(
    status_of: Callable[[MessageExt], ConsumeOrderlyStatus | None], seen: list[int] | None = None
) -> Any:
    def listener(
        messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus | None:
        for message in messages:
            if seen is not None:
                seen.append(message.queue_offset)
            context.emit(name=message.keys)
        return status_of(messages[-1])

    return listener


def test_messages_are_delivered_one_after_the_other_and_acknowledged_to_the_end_of_the_range() -> None:
    """D1, D2: ascending, one listener call per message by default; offsets without a message are passed."""
    seen: list[int] = []
    run = run_of(emitting(lambda _: SUCCESS, seen), offsets=[11, 12, 15])

    rows = kept_rows(run.consume())

    assert seen == [11, 12, 15]
    assert rows == [(11, "key-11"), (12, "key-12"), (15, "key-15")]
    ack = run.ack()
    assert (ack.state.next_offset, ack.state.epoch, ack.consumed, ack.failed, ack.finished) == (
        20,
        3,
        3,
        0,
        "EXHAUSTED",
    )


def test_a_range_without_any_message_is_acknowledged() -> None:
    """A4: a filter may leave nothing, and the range must still advance."""
    run = run_of(emitting(lambda _: SUCCESS), offsets=[])

    assert run.consume() == []
    assert run.ack().state.next_offset == 20


def test_the_listener_gets_batches_of_at_most_the_configured_size() -> None:
    """D2"""
    sizes: list[int] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        sizes.append(len(messages))
        return SUCCESS

    run_of(listener, consume_message_batch_max_size=4).consume()

    assert sizes == [4, 4, 2]


def test_a_row_belongs_to_the_message_the_loop_is_at() -> None:
    """H6: topic + brokerName + queueId + queueOffset identify what produced a row."""
    rows = kept_rows(run_of(emitting(lambda _: SUCCESS), consume_message_batch_max_size=4).consume())

    assert [offset for offset, _ in rows] == list(range(10, 20))


def test_a_row_can_name_its_message() -> None:
    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.emit(messages[0], name="first")
        return SUCCESS

    rows = kept_rows(run_of(listener, consume_message_batch_max_size=10).consume())

    assert rows == [(10, "first")]


def test_rows_of_messages_that_were_given_back_belong_to_the_queue_they_are_read_from() -> None:
    """E3, H6: one delivery may hold messages of several topics then."""
    retry = MessageQueue("%RETRY%g", "broker-a", 3)
    read = [message_at(5, queue=retry).restored("orders"), message_at(6, queue=retry).restored("payments")]
    context = ConsumeOrderlyContext(read, OUTPUT)

    for message in read:
        context.emit(message, name=message.topic)

    assert context.message_queue == retry
    assert context.take_emitted() == [(5, "orders"), (6, "payments")]
    with pytest.raises(ListenerError, match="this delivery is topic=%RETRY%g"):
        context.emit(message_at(5, queue=MessageQueue("orders", "broker-a", 3)), name="another queue's")


def test_suspend_stops_the_queue_before_the_failed_message_and_drops_its_rows() -> None:
    """D3"""
    run = run_of(emitting(lambda message: SUSPEND if message.queue_offset == 13 else SUCCESS))

    rows = kept_rows(run.consume())

    assert [offset for offset, _ in rows] == [10, 11, 12]
    ack = run.ack()
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.state.suspended_until_s) == (
        13,
        1,
        NOW_S + 1.0,
    )
    assert (ack.failed, ack.finished) == (1, "SUSPENDED")


@pytest.mark.parametrize(
    ("asked_ms", "pause_s"),
    [
        (-1, 1.0),
        (0, 0.01),
        (250, 0.25),
        (99_999_999, 30.0),
        (10**400, 30.0),
        (math.nan, 0.01),
        (np.int64(250), 0.25),
        (np.float32(250), 0.25),
    ],
    ids=lambda each: f"{each!r:.20}",
)
def test_the_context_names_the_pause_within_its_bounds(asked_ms: Any, pause_s: float) -> None:
    """D3: -1 is the consumer's default, everything else is clamped to 10..30000 ms."""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.suspend_current_queue_time_millis = asked_ms
        return SUSPEND

    run = run_of(listener)
    run.consume()

    assert run.ack().state.suspended_until_s == pytest.approx(NOW_S + pause_s)


def test_a_queue_waits_from_the_moment_on_at_which_its_listener_failed() -> None:
    """D3, D8: a call that took long before it raised is over then, not when it began."""
    clock = FakeClock()

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        clock.advance(10.0)
        raise ValueError("the database is away")

    run = run_of(listener, now_s=clock.monotonic_s)
    run.consume()

    assert run.pause_left_s() == pytest.approx(1.0)
    assert run.ack().metrics.call_ms == pytest.approx(10_000.0)


def test_rows_of_a_rolled_back_transaction_are_not_there_when_the_same_run_goes_on() -> None:
    """D4: everything accumulated is delivered again, and its rows are only those of the second time."""
    seen: list[int] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        seen.append(messages[0].queue_offset)
        context.emit(name=f"{messages[0].keys} for the {len(seen)}. call")
        if len(seen) == 2:
            return ConsumeOrderlyStatus.ROLLBACK
        return ConsumeOrderlyStatus.COMMIT if messages[0].queue_offset == 12 else SUCCESS

    run = run_of(listener, offsets=[10, 11, 12])
    assert run.consume() == []
    assert run.finished == "SUSPENDED"

    rows = kept_rows(run.consume())

    assert seen == [10, 11, 10, 11, 12]
    assert rows == [(at, f"key-{at} for the {call}. call") for call, at in enumerate((10, 11, 12), start=3)]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("ending", ["success", "suspend", "raise", "none"])
def test_a_listener_may_take_its_messages_out_of_their_list(ending: str, size: int) -> None:
    """D5, D6, D11: the list is the listener's; what becomes of the messages goes by the engine's own."""
    dead: list[int] = []

    def listener(messages: list[MessageExt], context: ConsumeOrderlyContext) -> Any:
        while messages:
            messages.pop(0)
        if ending == "raise":
            raise ValueError("the database is away")
        return {"success": SUCCESS, "suspend": SUSPEND, "none": None}[ending]

    run = run_of(
        listener,  # type: ignore[arg-type] # as a user may write it
        consume_message_batch_max_size=size,
        dead_letters=lambda message: dead.append(message.queue_offset),
        max_reconsume_times=0,
    )
    run.consume()

    ack, is_success = run.ack(), ending == "success"
    assert (ack.state.next_offset, ack.finished) == (20, "EXHAUSTED")
    assert dead == ([] if is_success else list(range(10, 20)))
    assert (ack.metrics.ok, ack.metrics.failed) == ((10, 0) if is_success else (0, 10))


@pytest.mark.parametrize("asked", ["20000", None, dt.timedelta(seconds=20)], ids=repr)
@pytest.mark.parametrize("raises", [False, True])
def test_a_wrong_suspend_time_is_reported_and_the_consumer_s_own_counts(
    asked: Any, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """D3, D5: it is the message's fault no more than its task's, which must not fail for it."""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.suspend_current_queue_time_millis = asked
        if raises:
            raise ValueError("the database is away")
        return SUSPEND

    run = run_of(listener, suspend_current_queue_time_millis=2000)
    run.consume()

    assert run.ack().state.suspended_until_s == pytest.approx(NOW_S + 2.0)
    assert f"suspend_current_queue_time_millis to a {type(asked).__name__}; it must be" in caplog.text


@pytest.mark.parametrize("ending", ["raise", "cancelled", "none", "unknown"])
def test_an_exception_none_and_nonsense_count_as_suspend(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D5: with the traceback in the log, and an error where the listener broke its contract."""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.emit(name="void")
        if ending == "raise":
            raise ValueError("the database is away")
        if ending == "cancelled":
            raise asyncio.CancelledError
        return None if ending == "none" else "RECONSUME_LATER"

    run = run_of(listener)
    with caplog.at_level(logging.ERROR):
        rows = kept_rows(run.consume())

    assert rows == []
    assert (run.ack().state.next_offset, run.ack().state.reconsume_times, run.ack().finished) == (
        10,
        1,
        "SUSPENDED",
    )
    if ending == "raise":
        assert "the database is away" in caplog.text
        assert "queue=3 queueOffset=10" in caplog.text
    if ending == "cancelled":
        assert "CancelledError" in caplog.text
    if ending == "unknown":
        assert "'RECONSUME_LATER' of type str, which is not a ConsumeOrderlyStatus" in caplog.text


@pytest.mark.parametrize("error", [SchemaRegistryDown, SchemaRegistryRefused])
def test_a_registry_that_is_away_counts_no_attempt(error: type[SchemaRegistryDown]) -> None:
    """K4, D6: the message waits, however long, and becomes no dead letter; then it is consumed."""
    clock = FakeClock()
    seen: list[int] = []
    is_away = [True] * 5

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        seen.append(messages[0].reconsume_times)
        context.emit(name=messages[0].keys)
        if is_away and messages[0].queue_offset == 12:
            is_away.pop()
            raise error("http://registry", "refused")
        return SUCCESS

    run = run_of(listener, now_s=clock.monotonic_s, max_reconsume_times=1)
    run.consume()
    assert (run.ack().finished, run.ack().state.next_offset) == ("SUSPENDED", 12)
    assert run.ack().state.reconsume_times == 0
    assert "Schema registry http://registry" in (run.ack().last_error or "")
    while run.finished is OrderlyFinish.SUSPENDED:
        clock.advance(1.0)
        run.consume()

    assert [row[0] for row in kept_rows(run.consume())] == list(range(10, 20))
    assert seen == [0] * 15
    assert (run.ack().finished, run.ack().state.next_offset) == ("EXHAUSTED", 20)


def test_a_listener_that_could_not_be_opened_counts_no_attempt() -> None:
    """D6: while its database is away, the queue waits, and no message becomes a dead letter."""
    clock = FakeClock()
    run = run_of(FailedListener(ConnectionError("refused")), now_s=clock.monotonic_s, max_reconsume_times=1)

    for _ in range(5):
        run.consume()
        assert (run.ack().finished, run.ack().state.next_offset) == ("SUSPENDED", 10)
        assert run.ack().state.reconsume_times == 0
        clock.advance(1.0)

    assert "The listener's open() failed" in (run.ack().last_error or "")


def test_what_accumulated_before_waits_with_it() -> None:
    """K4, D4: a failure that is not the message's fault rolls nothing back."""
    clock = FakeClock()
    seen: list[int] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        context.emit(name=messages[0].keys)
        seen.append(messages[0].queue_offset)
        if messages[0].queue_offset == 11 and seen.count(11) == 1:
            raise SchemaRegistryDown("http://registry", "refused")
        return ConsumeOrderlyStatus.COMMIT if messages[0].queue_offset == 12 else SUCCESS

    run = run_of(listener, offsets=[10, 11, 12], now_s=clock.monotonic_s)
    run.consume()
    clock.advance(1.0)

    assert [row[0] for row in kept_rows(run.consume())] == [10, 11, 12]
    assert seen == [10, 11, 11, 12]


def test_a_redelivered_message_shows_how_often_it_was_given_back() -> None:
    """D3: reconsumeTimes grows with each retry of the first message and is 0 for those after it."""
    seen: list[int] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        seen.append(messages[0].reconsume_times)
        return SUCCESS

    run_of(listener, planned=QueueRange(QUEUE, QueueState(10, epoch=3, reconsume_times=2), 20)).consume()

    assert seen == [2] + [0] * 9


def test_a_queue_yields_after_its_time_slice() -> None:
    """D7: what is done is acknowledged, the rest is planned next."""
    clock = itertools.count(NOW_S, 7.0)
    run = run_of(emitting(lambda _: SUCCESS), now_s=lambda: next(clock))

    rows = kept_rows(run.consume())

    assert 0 < len(rows) < 10
    assert run.ack().finished == "SLICE_USED"
    assert run.ack().state.next_offset == 10 + len(rows)
    assert run.ack().state.suspended_until_s is None


def test_a_queue_that_is_taken_away_makes_no_further_delivery() -> None:
    """D7: between two of them; what is done is acknowledged, as rows in their order."""
    seen: list[int] = []
    run = run_of(emitting(lambda _: SUCCESS, seen), instructions=GivenUpWhen(lambda: len(seen) == 3))

    rows = kept_rows(run.consume())

    assert [row[0] for row in rows] == seen == [10, 11, 12]
    ack = run.ack()
    assert (ack.finished, ack.state.next_offset, ack.state.suspended_until_s) == ("GIVEN_UP", 13, None)


def test_a_queue_that_is_taken_away_before_its_first_delivery_stays_where_it_is() -> None:
    """D7"""
    seen: list[int] = []
    run = run_of(emitting(lambda _: SUCCESS, seen), instructions=GivenUpWhen(lambda: True))

    assert run.consume() == seen == []
    assert (run.ack().finished, run.ack().state.next_offset, run.ack().consumed) == ("GIVEN_UP", 10, 0)


def test_a_range_that_is_over_is_not_given_up_any_more() -> None:
    """D7"""
    seen: list[int] = []
    run = run_of(
        emitting(lambda message: SUSPEND if message.queue_offset == 12 else SUCCESS, seen),
        instructions=GivenUpWhen(lambda: len(seen) == 3),
    )
    run.consume()

    ack = run.ack()
    assert (ack.finished, ack.state.next_offset, ack.state.reconsume_times) == ("SUSPENDED", 12, 1)


def without_auto_commit(status_of: Callable[[MessageExt], ConsumeOrderlyStatus]) -> Any:
    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        context.emit(name=messages[0].keys)
        return status_of(messages[0])

    return listener


def test_without_auto_commit_rows_wait_for_the_commit() -> None:
    """D4: SUCCESS accumulates, COMMIT commits all accumulated; uncommitted rows are not emitted."""
    run = run_of(
        without_auto_commit(lambda m: ConsumeOrderlyStatus.COMMIT if m.queue_offset == 14 else SUCCESS)
    )

    rows = kept_rows(run.consume())

    assert [offset for offset, _ in rows] == [10, 11, 12, 13, 14]
    assert run.ack().state.next_offset == 15
    assert run.ack().state.suspended_until_s is None


def test_a_range_that_ends_without_a_commit_leaves_nothing_behind() -> None:
    """D4: the next one begins at the committed offset and delivers everything again;
    each row reaches the sink once.
    """
    seen: list[int] = []

    def commit_at_19(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        seen.append(messages[0].queue_offset)
        context.auto_commit = False
        context.emit(name=messages[0].keys)
        return ConsumeOrderlyStatus.COMMIT if messages[0].queue_offset == 19 else SUCCESS

    first = run_of(commit_at_19, offsets=range(10, 15), planned=QueueRange.between(QUEUE, 10, 15))
    assert first.consume() == []
    assert (first.ack().state.next_offset, first.ack().consumed) == (10, 0)

    rows = kept_rows(run_of(commit_at_19, planned=next_range(first)).consume())

    assert seen == [*range(10, 15), *range(10, 20)]
    assert [offset for offset, _ in rows] == list(range(10, 20))


def test_rollback_puts_everything_accumulated_back() -> None:
    """D4: nothing leaves, and it is not counted as a reconsumption."""
    run = run_of(
        without_auto_commit(lambda m: ConsumeOrderlyStatus.ROLLBACK if m.queue_offset == 14 else SUCCESS)
    )

    assert run.consume() == []
    assert (run.ack().state.next_offset, run.ack().state.reconsume_times) == (10, 0)
    assert run.ack().state.suspended_until_s is not None


def test_emitting_an_unknown_column_is_the_listeners_error() -> None:
    context = ConsumeOrderlyContext([message_at(1)], OUTPUT)

    with pytest.raises(
        SchemaError, match="column\\(s\\) nam, which the output schema does not have; it has name"
    ):
        context.emit(nam="x")


def test_a_failure_behind_uncommitted_messages_is_counted_for_the_message_that_failed() -> None:
    """D4, D5: the store's count belongs to the message at next_offset, which did not fail."""
    run = run_of(without_auto_commit(lambda m: SUSPEND if m.queue_offset == 12 else SUCCESS))

    run.consume()

    assert (run.ack().state.next_offset, run.ack().state.reconsume_times) == (10, 0)
    assert run.ack().state.retry_counts.to_text() == "[[12,13,1]]"

    seen: list[tuple[int, int]] = []

    def look(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        seen.append((messages[0].queue_offset, messages[0].reconsume_times))
        return ConsumeOrderlyStatus.COMMIT

    run_of(look, planned=next_range(run)).consume()
    assert seen[:4] == [(10, 0), (11, 0), (12, 1), (13, 0)]


def rows_of(listener: Any) -> list[Any]:
    """What reaches the sink of one delivery of three messages."""
    return run_of(listener, offsets=[10, 11, 15], consume_message_batch_max_size=3).consume()


def by_index(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for at in range(len(messages)):
        context.emit(name=messages[at].keys)
    return SUCCESS


def by_copy(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in list(messages):
        context.emit(name=message.keys)
    return SUCCESS


def by_slice(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages[1:]:
        context.emit(name=message.keys)
    return SUCCESS


def backwards(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in reversed(messages):
        context.emit(name=message.keys)
    return SUCCESS


def after_the_loop(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    names = [message.keys for message in messages]
    context.emit(name=names[0])
    return SUCCESS


@pytest.mark.parametrize("listener", [by_index, by_copy, by_slice, backwards, after_the_loop])
def test_a_row_is_refused_rather_than_given_to_the_wrong_message(
    listener: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """D5, H6: outside a loop over the delivery nobody knows which message a row belongs to."""
    with caplog.at_level(logging.ERROR):
        assert rows_of(listener) == []

    assert "say which message the row belongs to: context.emit(message, …)" in caplog.text


def test_a_loop_that_was_left_stays_at_its_message() -> None:
    """H6"""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        for message in messages:
            if message.queue_offset == 11:
                break
        context.emit(name="found")
        return SUCCESS

    assert rows_of(listener) == [(11, "found")]


def test_the_only_message_of_a_delivery_needs_no_loop() -> None:
    """H6"""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        list(messages)
        context.emit(name=messages[0].keys)
        return SUCCESS

    assert run_of(listener, offsets=[10, 11]).consume() == [(10, "key-10"), (11, "key-11")]


@pytest.mark.parametrize(
    "stranger",
    [message_at(9), message_at(12), message_at(11, queue=QUEUE._replace(queue_id=4))],
    ids=["before", "after", "of another queue"],
)
def test_a_row_cannot_belong_to_a_message_of_another_delivery(stranger: MessageExt) -> None:
    """H6: it would leave, or be dropped, with a message it does not come from."""
    context = ConsumeOrderlyContext([message_at(10), message_at(11)], OUTPUT)

    with pytest.raises(
        ListenerError, match=r"but this delivery is .* queueOffset=10 to 11\. Emit a row only with"
    ):
        context.emit(stranger, name="x")
    with pytest.raises(ListenerError, match="a dict where a message belongs"):
        context.emit({"name": "x"}, name="x")  # type: ignore[arg-type]
    assert context.take_emitted() == []


def test_a_queue_does_not_yield_before_it_has_committed_what_it_consumed() -> None:
    """D4, D7: a listener that takes longer than 60 s to its COMMIT would begin again for ever."""
    clock = itertools.count(NOW_S, 7.0)
    run = run_of(
        without_auto_commit(lambda m: ConsumeOrderlyStatus.COMMIT if m.queue_offset == 17 else SUCCESS),
        now_s=lambda: next(clock),
    )

    assert [offset for offset, _ in kept_rows(run.consume())] == list(range(10, 18))

    assert (run.ack().finished, run.ack().state.next_offset) == ("SLICE_USED", 18)


@pytest.mark.parametrize("offsets", [[], [10, 11]])
def test_a_queue_whose_range_ended_early_is_not_taken_for_one_that_waits_for_messages(
    offsets: list[int],
) -> None:
    """D4: the planner gives a queue nothing before there is more than its listener has had."""
    planned = QueueRange.between(QUEUE, 10, 10 + len(offsets), epoch=3)
    run = run_of(
        without_auto_commit(lambda _: SUCCESS), offsets=offsets, planned=planned, ended=EndReason.EARLY
    )

    assert run.consume() == []
    assert (run.ack().state.next_offset, run.ack().state.suspended_until_s) == (10, NOW_S)


def test_a_listener_that_never_commits_is_warned_when_the_buffer_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D4, D13: it will never get more; tried again after the longest pause,
    for its COMMIT may hang on something else.
    """
    run = run_of(without_auto_commit(lambda _: SUCCESS), ended=EndReason.FULL)
    with caplog.at_level(logging.ERROR):
        run.consume()

    assert run.ack().state.suspended_until_s == NOW_S + 30
    assert "has had 10 messages without a COMMIT, and pullThresholdSizeForQueue allows no more" in caplog.text


def test_a_listener_that_waits_for_a_message_that_cannot_be_decoded_ends_its_query() -> None:
    """L7, D4: nothing is committed, so that the next range would be this one again, without end."""
    planned = QueueRange.between(QUEUE, 10, 14, epoch=3)
    # A filter has left out messages.
    waiting: dict[str, Any] = {"offsets": [10, 12], "planned": planned, "ended": EndReason.UNDECODABLE}
    run = run_of(without_auto_commit(lambda _: SUCCESS), **waiting)
    run.consume()

    with pytest.raises(
        UndecodableMessage, match=r"offset 14 .*without a COMMIT, and waits for more\. .*undecodableMessages"
    ) as found:
        run.ack()
    assert "and the messages before it that wait for a COMMIT" in str(found.value)
    assert "`pyspark-rocketmq offsets skip --messages 5 " in str(found.value)
    run = run_of(emitting(lambda _: SUCCESS), **waiting)
    run.consume()
    assert run.ack().state.next_offset == 14


def test_a_queue_whose_listener_waits_for_more_messages_is_not_suspended() -> None:
    """D4"""
    run = run_of(without_auto_commit(lambda _: SUCCESS))
    run.consume()

    assert (run.ack().finished, run.ack().state.suspended_until_s) == ("EXHAUSTED", None)


@pytest.mark.parametrize(
    ("answer", "auto_commit", "ok", "failed"),
    [
        (SUCCESS, True, 10, 0),
        (SUCCESS, False, 10, 0),
        (ConsumeOrderlyStatus.COMMIT, False, 10, 0),
        (ConsumeOrderlyStatus.ROLLBACK, True, 10, 0),
        (ConsumeOrderlyStatus.ROLLBACK, False, 0, 0),
        (SUSPEND, True, 0, 4),
        (None, True, 0, 4),
        ("nonsense", True, 0, 4),
    ],
)
def test_answers_are_counted_as_java_counts_them(
    answer: object, auto_commit: bool, ok: int, failed: int
) -> None:
    """D11: messages by their answer, and the time of each call."""
    clock = itertools.count(NOW_S, 0.25)

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.auto_commit = auto_commit
        return answer

    run = run_of(listener, now_s=lambda: next(clock), consume_message_batch_max_size=4)
    run.consume()

    calls = 3 if ok else 1
    assert run.ack().metrics == ConsumeMetrics(ok, failed, calls, calls * 250.0)


@pytest.mark.parametrize("suspended_until_s", [None, 1_700_000_000.123457])
def test_an_ack_survives_the_way_to_the_driver(suspended_until_s: float | None) -> None:
    ack = run_of(emitting(lambda _: SUCCESS)).ack()
    ack = replace(ack, state=ack.state._replace(suspended_until_s=suspended_until_s))

    assert QueueAck.from_json(ack.to_json()) == ack
    assert "\n" not in ack.to_json()


def test_a_range_cut_short_before_its_first_message_may_be_planned_again_at_once() -> None:
    """B6: its broker was away; the planner must not take it for a
    queue whose listener waits for more messages.
    """
    run = run_of(lambda m, c: SUCCESS, offsets=[], planned=QueueRange.between(QUEUE, 10, 10, epoch=3))

    assert run.consume() == []
    assert (run.ack().state.next_offset, run.ack().state.suspended_until_s) == (10, NOW_S)


class Sent:
    """Takes dead letters, except those at some queue offsets."""

    def __init__(self, refused: Sequence[int] = ()) -> None:
        self.refused = set(refused)
        self.letters: list[tuple[int, int]] = []

    def __call__(self, message: MessageExt) -> None:
        if message.queue_offset in self.refused:
            raise RequestTimeout("127.0.0.1:1", "SEND_MESSAGE_V2", 3.0)
        self.letters.append((message.queue_offset, message.reconsume_times))


def failing_at(*offsets: int) -> Any:
    """Emits a row per message, and fails batches that hold one of ``offsets``."""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        for message in messages:
            context.emit(name=message.keys)
        return SUSPEND if any(message.queue_offset in offsets for message in messages) else SUCCESS

    return listener


def test_a_message_without_reconsumptions_left_is_sent_and_passed_without_its_rows() -> None:
    """D6: the queue goes on at once."""
    sent = Sent()
    run = run_of(
        failing_at(10, 13),
        planned=QueueRange(QUEUE, QueueState(10, epoch=3, reconsume_times=2), 20),
        max_reconsume_times=2,
        dead_letters=sent,
    )

    rows = kept_rows(run.consume())

    assert sent.letters == [(10, 2)]
    assert [offset for offset, _ in rows] == [11, 12]
    ack = run.ack()
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.failed, ack.dead_letters) == (13, 1, 2, 1)


def test_a_dead_letter_that_cannot_be_sent_keeps_its_queue_suspended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D6: a message is never lost, and the log says which and why."""
    sent = Sent(refused=[10])
    run = run_of(failing_at(10), max_reconsume_times=0, dead_letters=sent)
    with caplog.at_level(logging.WARNING):
        rows = kept_rows(run.consume())

    assert rows == []
    ack = run.ack()
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.finished, ack.dead_letters) == (
        10,
        1,
        "SUSPENDED",
        0,
    )
    assert ack.state.suspended_until_s == NOW_S + 1.0
    assert (
        "dead letter not sent, its queue stays suspended topic=orders broker=broker-a queue=3" in caplog.text
    )
    assert "queueOffset=10" in caplog.text
    assert "queueOffset=10" in ack.refused_letter

    sent.refused.clear()
    assert run._is_dead_letter(message_at(10))
    assert run.ack().refused_letter == "", "in real time the run goes on"
    again = run_of(
        failing_at(10), planned=next_range(run), max_reconsume_times=0, dead_letters=sent, offsets=[10, 11]
    )
    assert again.consume() == [(11, "key-11")]
    assert sent.letters == [(10, 0), (10, 1)]


def test_a_message_that_joined_a_failed_batch_late_has_all_its_reconsumptions() -> None:
    """D6: the dead letter comes back with it, and is sent each time the batch fails."""
    sent = Sent()
    settings: dict[str, Any] = {
        "max_reconsume_times": 1,
        "dead_letters": sent,
        "consume_message_batch_max_size": 2,
    }
    before = run_of(failing_at(10), offsets=[10], **settings)
    before.consume()
    joined = run_of(failing_at(10), offsets=[10, 11], planned=next_range(before), **settings)
    assert joined.consume() == []
    assert sent.letters == [(10, 1)]

    last = run_of(failing_at(10), offsets=[10, 11], planned=next_range(joined), **settings)
    assert last.consume() == []
    assert sent.letters == [(10, 1), (10, 1), (11, 1)]
    assert last.ack().state.next_offset == 20


def test_without_auto_commit_the_rows_of_a_dead_letter_are_void_and_the_others_wait() -> None:
    """D4, D6"""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        context.emit(name=messages[0].keys)
        answers = {11: SUSPEND, 13: ConsumeOrderlyStatus.COMMIT}
        return answers.get(messages[0].queue_offset, SUCCESS)

    run = run_of(listener, max_reconsume_times=0, dead_letters=Sent(), offsets=[10, 11, 12, 13, 14])

    assert [offset for offset, _ in kept_rows(run.consume())] == [10, 12, 13]
    assert run.ack().state.next_offset == 14


def test_without_a_way_to_send_dead_letters_no_message_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """D6"""
    run = run_of(failing_at(10), max_reconsume_times=0)
    with caplog.at_level(logging.ERROR):
        assert run.consume() == []

    assert (run.ack().state.next_offset, run.ack().finished) == (10, "SUSPENDED")
    assert "no SendBackSettings were given" in caplog.text


def test_messages_put_back_behind_a_shortened_range_stay_known() -> None:
    """D6: the batch had reached further than the next range does."""
    run = run_of(
        failing_at(12),
        offsets=range(10, 15),
        planned=QueueRange(
            QUEUE,
            QueueState(10, epoch=3, reconsume_times=2, retry_counts=stored_texts.retries("[[10,20,2]]")),
            15,
        ),
    )
    run.consume()

    assert (run.ack().state.next_offset, run.ack().state.reconsume_times) == (12, 3)
    assert json.loads(run.ack().state.retry_counts.to_text()) == [[12, 13, 3], [13, 15, 2], [15, 20, 2]]
