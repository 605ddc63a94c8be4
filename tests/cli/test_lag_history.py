"""A group's lag over time: from what the store had then, and what the brokers had by then."""

from __future__ import annotations

from typing import Any

from pyspark_rocketmq.cli.offsets.lag_chart import LagHistory, moments_at, sample_times
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.history import Moment, StoredChange
from pyspark_rocketmq.offsets.store import OffsetRow

Q0, Q1 = (MessageQueue("orders", "broker-a", number) for number in (0, 1))


def moment(at_s: float, offsets: dict[MessageQueue, int], **more: Any) -> Moment:
    facts: dict[str, Any] = {
        "consumer_group": "g", "owner": "", "query_id": "", "batch_id": 0, "updated_at_s": at_s,
    }  # fmt: skip
    state = {name: more.pop(name) for name in QueueState._fields if name in more}
    rows = {
        queue: OffsetRow(queue=queue, state=QueueState(offset, **{"epoch": 1} | state), **facts | more)
        for queue, offset in offsets.items()
    }
    return Moment(StoredChange(int(at_s), at_s, "g", "commit"), rows)


def history(
    *moments: Moment | None,
    ends: tuple[dict[MessageQueue, int], ...],
    dead_letters: tuple[int, ...] | None = None,
    resets_s: tuple[float, ...] = (),
) -> LagHistory:
    return LagHistory(
        group="g", times_s=tuple(10.0 * number for number in range(len(moments))), moments=moments, ends=ends,
        dead_letters=dead_letters or (0,) * len(moments), resets_s=resets_s,
    )  # fmt: skip


def column(records: list[dict[str, Any]], name: str, queue_id: int = 0) -> list[Any]:
    return [record[name] for record in records if record["queue"].endswith(f":{queue_id}")]


def test_the_backlog_is_what_was_stored_by_then_and_not_consumed() -> None:
    shown = history(moment(0, {Q0: 5}), moment(10, {Q0: 9}), ends=({Q0: 12}, {Q0: 9})).queue_records()

    assert column(shown, "backlog") == [7, 0]
    assert column(shown, "at") == [0, 10_000]


def test_a_broker_offset_below_the_store_s_makes_no_negative_backlog() -> None:
    """Its index of times is to the millisecond, the store's clock another one."""
    assert column(history(moment(0, {Q0: 5}), ends=({Q0: 4},)).queue_records(), "backlog") == [0]


def test_a_broker_without_an_answer_leaves_a_hole() -> None:
    shown = history(moment(0, {Q0: 5}), moment(10, {Q0: 9}), ends=({}, {Q0: 9})).queue_records()

    assert column(shown, "backlog") == [None, 0]


def test_the_rate_is_messages_a_second_since_the_sample_before() -> None:
    shown = history(moment(0, {Q0: 5}), moment(10, {Q0: 25}), ends=({}, {})).queue_records()

    assert column(shown, "rate") == [None, 2.0]


def test_an_operators_move_is_no_consumption() -> None:
    """F5: neither back nor forward."""
    back = history(moment(0, {Q0: 50}), moment(10, {Q0: 5}), ends=({}, {})).queue_records()
    forward = history(
        moment(0, {Q0: 5}), moment(10, {Q0: 50}), ends=({}, {}), resets_s=(7.0,)
    ).queue_records()

    assert column(back, "rate") == column(forward, "rate") == [None, None]


def test_queues_that_came_later_begin_later() -> None:
    shown = history(None, moment(10, {Q0: 5}), moment(20, {Q0: 5, Q1: 0}), ends=({}, {}, {})).queue_records()

    assert column(shown, "at", 0) == [10_000, 20_000]
    assert column(shown, "at", 1) == [20_000]


def test_suspended_queues_and_messages_tried_again_are_marked() -> None:
    """D5, D6"""
    suspended = moment(0, {Q0: 5}, suspended_until_s=1.0, reconsume_times=1)
    tried_again = moment(10, {Q0: 5}, reconsume_times=2)
    shown = history(suspended, tried_again, moment(20, {Q0: 6}), ends=({}, {}, {})).queue_records()

    assert column(shown, "state") == ["suspended", "retried", None]


def test_dead_letters_are_shown_when_they_came() -> None:
    """E8"""
    shown = history(*[moment(0, {Q0: 5})] * 4, ends=({},) * 4, dead_letters=(3, 3, 5, 5))

    assert shown.dead_letter_records() == [{"at": 20_000, "deadLetters": 2}]


def test_samples_take_the_last_change_before_them() -> None:
    moments = [moment(at_s, {Q0: 0}) for at_s in (5, 6, 30)]

    found = moments_at(sample_times(0, 40, 5), moments)

    assert [each and each.change.at_s for each in found] == [None, 6, 6, 30, 30]
