"""The orderly machine, rule by rule and over its whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from pyspark_rocketmq.consume.orderly import (
    Effect,
    NoStatus,
    OrderlyConsumption,
    OrderlyDelivery,
    OrderlyFinish,
    OrderlySettings,
    Outcome,
)
from pyspark_rocketmq.model import ConsumeOrderlyStatus, ReturnType

SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
RAISES = NoStatus.RAISED
"""Stands for a listener that raises."""

START_S = 100.0


def consumption(
    count: int = 5,
    *,
    batch: int = 1,
    retry_counts: Mapping[int, int] | Iterable[tuple[int, int]] = (),
    stored_times: Callable[[int], int] = lambda _: 0,
    **settings: Any,
) -> OrderlyConsumption:
    return OrderlyConsumption(
        count=count,
        settings=OrderlySettings(consume_message_batch_max_size=batch, **settings),
        started_s=START_S,
        retry_counts=dict(retry_counts),
        stored_times=stored_times,
    )


def answer(
    machine: OrderlyConsumption,
    status: object,
    *,
    auto_commit: bool = True,
    suspend_millis: int = -1,
    now_s: float = START_S,
) -> Outcome:
    return machine.answered(status, auto_commit=auto_commit, suspend_millis=suspend_millis, now_s=now_s)


def deliver(machine: OrderlyConsumption, status: object, **how: Any) -> Outcome:
    assert machine.next_delivery(START_S) is not None
    return answer(machine, status, **how)


def test_messages_come_one_batch_after_the_other_in_order() -> None:
    """D1, D2."""
    machine = consumption(5, batch=2)
    deliveries = []
    while (delivery := machine.next_delivery(START_S)) is not None:
        deliveries.append(delivery)
        answer(machine, SUCCESS)

    assert deliveries == [OrderlyDelivery(0, 2), OrderlyDelivery(2, 4), OrderlyDelivery(4, 5)]
    assert machine.finished is OrderlyFinish.EXHAUSTED
    assert machine.committed == 5


def test_no_second_delivery_while_the_listener_has_one() -> None:
    """D1: one listener call at a time."""
    machine = consumption()
    machine.next_delivery(START_S)

    with pytest.raises(RuntimeError, match="Messages 0 to 1 are still with the listener"):
        machine.next_delivery(START_S)


@pytest.mark.parametrize("status", [SUCCESS, RAISES])
def test_an_answer_without_a_delivery_is_refused(status: ConsumeOrderlyStatus | object) -> None:
    """D1."""
    machine = consumption()

    with pytest.raises(RuntimeError, match="next_delivery comes first"):
        answer(machine, status)


def test_with_nothing_to_deliver_the_run_is_exhausted() -> None:
    machine = consumption(0)

    assert (machine.finished, machine.next_delivery(START_S)) == (None, None)
    assert machine.finished is OrderlyFinish.EXHAUSTED
    assert (machine.committed, machine.accumulated) == (0, 0)


@pytest.mark.parametrize("wrong", [{"count": -1}, {"retry_counts": {1: -1}}])
def test_negative_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        consumption(**wrong)


@pytest.mark.parametrize("batch", [0, 1025])
def test_a_batch_size_out_of_range_is_refused(batch: int) -> None:
    """D2: 1..1024."""
    with pytest.raises(ValueError, match="consumeMessageBatchMaxSize must be from 1 to 1024"):
        OrderlySettings(consume_message_batch_max_size=batch)


After = tuple[int, int, dict[int, int], float | None]
"""committed, accumulated, put back, pause."""
COMMITTED: After = (4, 0, {}, None)
"""From two committed, one accumulated, one in hand."""
ACCUMULATED: After = (2, 2, {}, None)
PUT_BACK: After = (2, 1, {3: 1}, 1.0)
ROLLED_BACK: After = (2, 0, {}, 1.0)

PRODUCT = [
    (SUCCESS, True, ReturnType.SUCCESS, Effect.COMMIT, COMMITTED),
    (SUCCESS, False, ReturnType.SUCCESS, Effect.ACCUMULATE, ACCUMULATED),
    (COMMIT, True, ReturnType.SUCCESS, Effect.COMMIT, COMMITTED),
    (COMMIT, False, ReturnType.SUCCESS, Effect.COMMIT, COMMITTED),
    (ROLLBACK, True, ReturnType.SUCCESS, Effect.COMMIT, COMMITTED),
    (ROLLBACK, False, ReturnType.SUCCESS, Effect.ROLL_BACK, ROLLED_BACK),
    (SUSPEND, True, ReturnType.FAILED, Effect.PUT_BACK, PUT_BACK),
    (SUSPEND, False, ReturnType.FAILED, Effect.PUT_BACK, PUT_BACK),
    (None, True, ReturnType.RETURNNULL, Effect.PUT_BACK, PUT_BACK),
    (None, False, ReturnType.RETURNNULL, Effect.PUT_BACK, PUT_BACK),
    (RAISES, True, ReturnType.EXCEPTION, Effect.PUT_BACK, PUT_BACK),
    (RAISES, False, ReturnType.EXCEPTION, Effect.PUT_BACK, PUT_BACK),
    ("CONSUME_SUCCESS", True, ReturnType.FAILED, Effect.PUT_BACK, PUT_BACK),
    ("CONSUME_SUCCESS", False, ReturnType.FAILED, Effect.PUT_BACK, PUT_BACK),
]


@pytest.mark.parametrize("has_accumulated", [True, False])
@pytest.mark.parametrize(("status", "auto_commit", "return_type", "effect", "after"), PRODUCT)
def test_every_answer_with_and_without_accumulated_messages(
    *,
    status: ConsumeOrderlyStatus | object | str | None,
    auto_commit: bool,
    return_type: ReturnType,
    effect: Effect,
    after: After,
    has_accumulated: bool,
) -> None:
    """D3, D4, D5: the whole table."""
    machine = consumption(9)
    deliver(machine, SUCCESS)
    deliver(machine, SUCCESS)
    deliver(machine, SUCCESS, auto_commit=not has_accumulated)
    outcome = deliver(machine, status, auto_commit=auto_commit)
    committed, accumulated, retry_counts, pause_s = after
    if not has_accumulated and committed != 4:
        committed, accumulated = 3, max(0, accumulated - 1)

    assert (outcome.return_type, outcome.effect) == (return_type, effect)
    assert (machine.committed, machine.accumulated) == (committed, accumulated)
    assert machine.retry_counts == retry_counts
    if pause_s is None:
        assert machine.finished is None
        assert machine.goes_on_at_s is None
        assert machine.next_delivery(START_S) == OrderlyDelivery(4, 5)
    else:
        assert machine.finished is OrderlyFinish.SUSPENDED
        assert machine.goes_on_at_s == START_S + pause_s
        assert machine.next_delivery(START_S + 99) is None
        assert machine.finished is OrderlyFinish.SUSPENDED


@pytest.mark.parametrize("finish", list(OrderlyFinish))
@pytest.mark.parametrize("status", [SUCCESS, COMMIT, ROLLBACK, SUSPEND, None, RAISES, "?"])
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_finished_run_takes_no_answer_and_gives_no_delivery(
    finish: OrderlyFinish, status: ConsumeOrderlyStatus | object | str | None, auto_commit: bool
) -> None:
    """D1, D3, D7."""
    machine = consumption(2)
    deliver(machine, SUSPEND if finish is OrderlyFinish.SUSPENDED else SUCCESS)
    if finish is OrderlyFinish.EXHAUSTED:
        deliver(machine, SUCCESS)
    if finish is OrderlyFinish.GIVEN_UP:
        machine.give_up()
    later_s = START_S + 61 if finish is OrderlyFinish.SLICE_USED else START_S
    assert machine.next_delivery(later_s) is None
    assert machine.finished is finish
    before = (machine.committed, machine.accumulated, machine.retry_counts)

    with pytest.raises(RuntimeError, match="No messages are with the listener"):
        answer(machine, status, auto_commit=auto_commit)
    assert machine.next_delivery(START_S) is None
    assert (machine.committed, machine.accumulated, machine.retry_counts) == before


@pytest.mark.parametrize(
    ("suspend_millis", "pause_s"),
    [(-1, 1.0), (0, 0.01), (9, 0.01), (10, 0.01), (500, 0.5), (30_000, 30.0), (30_001, 30.0), (-2, 0.01)],
)
def test_the_pause_is_the_contexts_or_the_default_clamped(suspend_millis: int, pause_s: float) -> None:
    """D3: -1 is the consumer's default, 10..30000 ms."""
    machine = consumption()
    deliver(machine, SUSPEND, suspend_millis=suspend_millis, now_s=START_S + 3)

    assert machine.goes_on_at_s == pytest.approx(START_S + 3 + pause_s)


def test_the_default_pause_is_clamped_too() -> None:
    """D3."""
    machine = consumption(suspend_current_queue_time_millis=99_000)
    deliver(machine, SUSPEND)

    assert machine.goes_on_at_s == START_S + 30


def test_each_message_of_a_batch_that_is_put_back_counts_on_and_a_commit_forgets_them() -> None:
    """D3, D5: a message that came with a failed batch for the first time begins at 0."""
    failing = consumption(4, batch=3, retry_counts={0: 2, 1: 2})
    deliver(failing, RAISES)
    assert (failing.committed, failing.retry_counts) == (0, {0: 3, 1: 3, 2: 1})

    passing = consumption(4, batch=2, retry_counts=failing.retry_counts)
    assert passing.next_delivery(START_S) == OrderlyDelivery(0, 2, (3, 3))
    answer(passing, SUCCESS)
    assert passing.retry_counts == {2: 1}
    assert passing.next_delivery(START_S) == OrderlyDelivery(2, 4, (1, 0))


def test_a_rollback_does_not_count() -> None:
    """D4"""
    machine = consumption(retry_counts={0: 2})
    deliver(machine, ROLLBACK, auto_commit=False)

    assert machine.retry_counts == {0: 2}


def test_a_rollback_brings_back_what_was_accumulated() -> None:
    """D4: each message as often put back as it was."""
    machine = consumption(5, retry_counts={1: 1, 3: 2})
    for status in (SUCCESS, SUCCESS, SUCCESS, ROLLBACK):
        deliver(machine, status, auto_commit=False)

    assert (machine.committed, machine.accumulated, machine.retry_counts) == (0, 0, {1: 1, 3: 2})


def test_a_message_is_delivered_once_more_than_it_may_be_reconsumed() -> None:
    """D6: reconsumeTimes 0..max, then it is to be sent, without another pause."""
    retry_counts: Mapping[int, int] = {}
    for times in range(3):
        machine = consumption(retry_counts=retry_counts, max_reconsume_times=3)
        outcome = deliver(machine, SUSPEND)
        assert (outcome.effect, outcome.dead_letters) == (Effect.PUT_BACK, ())
        assert machine.retry_counts == {0: times + 1}
        retry_counts = machine.retry_counts

    machine = consumption(retry_counts=retry_counts, max_reconsume_times=3)
    assert deliver(machine, SUSPEND)[:2] == (ReturnType.FAILED, Effect.SEND_BACK)

    assert machine.sent_back([0], START_S).effect is Effect.COMMIT
    assert (machine.committed, machine.retry_counts, machine.goes_on_at_s) == (1, {}, None)
    assert machine.next_delivery(START_S) == OrderlyDelivery(1, 2)


@pytest.mark.parametrize("failure", [SUSPEND, None, RAISES, "?"])
def test_without_any_reconsumption_every_failure_is_a_dead_letter(
    failure: ConsumeOrderlyStatus | object | str | None,
) -> None:
    """D5, D6: maxReconsumeTimes=0 means one delivery."""
    machine = consumption(3, batch=3, max_reconsume_times=0)

    outcome = deliver(machine, failure)

    assert (outcome.effect, outcome.dead_letters) == (Effect.SEND_BACK, (0, 1, 2))
    assert machine.sent_back([2, 1, 0], START_S).effect is Effect.COMMIT
    assert machine.committed == 3


def test_without_a_limit_no_message_is_given_up() -> None:
    """D6: -1."""
    machine = consumption(retry_counts={0: 2**31}, max_reconsume_times=-1)

    assert deliver(machine, SUSPEND).effect is Effect.PUT_BACK


def test_a_rollback_makes_no_dead_letters() -> None:
    """D4, D6"""
    machine = consumption(retry_counts={0: 9}, max_reconsume_times=1)

    assert deliver(machine, ROLLBACK, auto_commit=False).effect is Effect.ROLL_BACK


def test_reconsume_times_of_the_broker_are_added() -> None:
    """D6: a message that comes through the retry topic brings its reconsumeTimes along."""
    machine = consumption(
        2, batch=2, retry_counts={1: 1}, stored_times=[3, 1].__getitem__, max_reconsume_times=3
    )

    assert deliver(machine, SUSPEND).dead_letters == (0,)


def test_a_batch_with_one_message_that_may_be_tried_again_comes_back_as_a_whole() -> None:
    """D6: the dead letter with it, uncounted, as in the Java client; it is sent again when it fails again."""
    machine = consumption(2, batch=2, retry_counts={0: 2, 1: 1}, max_reconsume_times=2)
    assert deliver(machine, SUSPEND, suspend_millis=500).dead_letters == (0,)

    outcome = machine.sent_back([0], START_S + 7)

    assert (outcome.effect, outcome.dead_letters) == (Effect.PUT_BACK, ())
    assert (machine.committed, machine.retry_counts) == (0, {0: 2, 1: 2})
    assert (machine.finished, machine.goes_on_at_s) == (OrderlyFinish.SUSPENDED, START_S + 7.5)


@pytest.mark.parametrize(("stored", "retry_counts"), [([], {0: 3, 1: 3}), ([1], {0: 3, 1: 2})])
def test_a_dead_letter_that_no_broker_stored_keeps_its_queue_suspended(
    stored: list[int], retry_counts: dict[int, int]
) -> None:
    """D6: a message is never lost."""
    machine = consumption(3, batch=2, retry_counts={0: 2, 1: 2}, max_reconsume_times=2)
    deliver(machine, SUSPEND)

    assert machine.sent_back(stored, START_S).effect is Effect.PUT_BACK
    assert (machine.committed, machine.retry_counts) == (0, retry_counts)
    assert machine.goes_on_at_s == START_S + 1.0

    again = consumption(3, batch=2, retry_counts=machine.retry_counts, max_reconsume_times=2)
    assert deliver(again, SUSPEND).dead_letters == (0, 1)


def test_without_auto_commit_a_dead_letter_waits_for_the_commit() -> None:
    """D4, D6: Java leaves it among the messages consumed; a roll-back brings it back."""
    machine = consumption(max_reconsume_times=0)
    deliver(machine, SUCCESS, auto_commit=False)
    deliver(machine, SUSPEND, auto_commit=False)

    assert machine.sent_back([1], START_S).effect is Effect.ACCUMULATE
    assert (machine.committed, machine.accumulated, machine.finished) == (0, 2, None)

    deliver(machine, ROLLBACK, auto_commit=False)
    assert (machine.committed, machine.accumulated) == (0, 0)


def test_dead_letters_that_were_not_asked_for_change_nothing() -> None:
    """D6: a message must not pass because of a wrong report."""
    machine = consumption(2, batch=2, retry_counts={0: 1}, max_reconsume_times=1)
    deliver(machine, SUSPEND)

    assert machine.sent_back([0, 1], START_S).effect is Effect.PUT_BACK


def test_nothing_goes_on_before_the_dead_letters_are_sent() -> None:
    """D1, D6"""
    machine = consumption(max_reconsume_times=0)
    with pytest.raises(RuntimeError, match="There are no dead letters to send"):
        machine.sent_back([0], START_S)
    deliver(machine, SUSPEND)

    with pytest.raises(RuntimeError, match="still with the listener"):
        machine.next_delivery(START_S)
    with pytest.raises(RuntimeError, match="No messages are with the listener"):
        answer(machine, SUCCESS)
    machine.sent_back([0], START_S)
    with pytest.raises(RuntimeError, match="There are no dead letters to send"):
        machine.sent_back([0], START_S)


def test_a_limit_below_minus_one_is_refused() -> None:
    """D6"""
    with pytest.raises(ValueError, match="maxReconsumeTimes must be -1 \\(no limit\\) or more, not -2"):
        OrderlySettings(max_reconsume_times=-2)


def test_rollback_with_auto_commit_commits_and_warns_the_user() -> None:
    """D4: Java logs "the message queue consume result is illegal" and commits."""
    outcome = deliver(consumption(), ROLLBACK)

    assert outcome.effect is Effect.COMMIT
    assert outcome.problem is not None
    assert "auto_commit = False" in outcome.problem


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("RECONSUME_LATER", "'RECONSUME_LATER' of type str"),
        ("x" * 500, "type str"),
        (0, "0 of type int"),
        (True, "True of type bool"),
        ([SUCCESS], "returned of type list"),
        ({}, "returned of type dict"),
        (
            None,
            (
                "returned None, which is not a ConsumeOrderlyStatus; return SUCCESS, "
                "SUSPEND_CURRENT_QUEUE_A_MOMENT, COMMIT"
            ),
        ),
    ],
)
def test_an_invalid_return_value_is_logged_and_suspends_the_queue(returned: object, shown: str) -> None:
    """D5."""
    machine = consumption()
    outcome = deliver(machine, returned)

    assert outcome.problem is not None
    assert shown in outcome.problem
    assert "not a ConsumeOrderlyStatus" in outcome.problem
    assert len(outcome.problem) < 300
    assert machine.retry_counts == {0: 1}
    assert machine.finished is OrderlyFinish.SUSPENDED


def test_the_name_of_a_status_is_that_status() -> None:
    assert deliver(consumption(), "SUCCESS").effect is Effect.COMMIT


def test_a_run_yields_after_sixty_seconds() -> None:
    """D7: more than 60 s, tested between deliveries."""
    machine = consumption()
    deliver(machine, SUCCESS)
    assert machine.next_delivery(START_S + 60.0) is not None
    answer(machine, SUCCESS, now_s=START_S + 500)

    assert machine.next_delivery(START_S + 60.1) is None
    assert machine.finished is OrderlyFinish.SLICE_USED
    assert machine.committed == 2
    assert machine.goes_on_at_s is None


def test_a_late_start_still_delivers_once() -> None:
    """D7: a queue whose data took more than a minute to arrive must not starve."""
    machine = consumption()

    assert machine.next_delivery(START_S + 1000) == OrderlyDelivery(0, 1)


@pytest.mark.parametrize(
    ("status", "duration_s", "return_type"),
    [
        (SUCCESS, 899.9, ReturnType.SUCCESS),
        (SUCCESS, 900.0, ReturnType.TIME_OUT),
        (SUSPEND, 900.0, ReturnType.TIME_OUT),
        (None, 900.0, ReturnType.RETURNNULL),
        (RAISES, 900.0, ReturnType.EXCEPTION),
    ],
)
def test_a_slow_call_is_a_time_out_in_the_statistics_only(
    status: ConsumeOrderlyStatus | object | None, duration_s: float, return_type: ReturnType
) -> None:
    """D8."""
    machine = consumption()
    outcome = deliver(machine, status, now_s=START_S + duration_s)

    assert outcome.return_type is return_type
    assert machine.committed == (1 if status is SUCCESS else 0)


def test_a_run_is_given_up_between_two_deliveries_only() -> None:
    """D7"""
    machine = consumption(3)
    deliver(machine, SUCCESS)
    assert machine.next_delivery(START_S) is not None
    with pytest.raises(RuntimeError, match="still with the listener"):
        machine.give_up()
    answer(machine, SUCCESS)

    machine.give_up()

    assert machine.next_delivery(START_S) is None
    assert (machine.finished, machine.committed) == (OrderlyFinish.GIVEN_UP, 2)
