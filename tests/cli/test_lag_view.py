"""Lag beside who holds a queue: spans in seconds, the youngest lock counts, totals of what is known."""

from __future__ import annotations

from typing import Any

from pyspark_rocketmq.cli.offsets.records import Holder, LagView, holder_of, totals
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueState
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetRow, new_owner
from pyspark_rocketmq.wire.requests.client_info import ProcessQueueInfo

Q0, Q1 = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1)
NOW_S = 1_700_000_100.0


def row(
    queue: MessageQueue = Q0,
    next_offset: int = 5,
    group: str = "etl",
    owner: str = "me",
    suspended_until_s: float | None = None,
) -> OffsetRow:
    return OffsetRow(
        consumer_group=group,
        queue=queue,
        state=QueueState(next_offset, 3, suspended_until_s=suspended_until_s),
        owner=owner,
        query_id="q",
        batch_id=3,
        updated_at_s=NOW_S,
    )


def view(
    one: OffsetRow | None = None,
    bounds: QueueBounds | None = None,
    next_stored_at_s: float | None = None,
    holder: Holder | None = None,
) -> LagView:
    one = one or row()
    return LagView(
        name=OffsetKey.parse(one.consumer_group), row=one, bounds=bounds or QueueBounds(0, 9),
        next_stored_at_s=next_stored_at_s, holder=holder, now_s=NOW_S,
    )  # fmt: skip


def locked(at_s: float, **facts: Any) -> ProcessQueueInfo:
    return ProcessQueueInfo(locked=True, last_lock_timestamp=int(at_s * 1000), **facts)


def test_a_queue_is_as_far_behind_as_its_next_message_is_old() -> None:
    columns = view(
        next_stored_at_s=NOW_S - 12.34, holder=Holder(client_id="me", locked_at_s=NOW_S - 7)
    ).columns()

    assert (columns["lag"], columns["lagSeconds"], columns["lockAgeSeconds"]) == (4, 12.3, 7.0)
    assert (columns["heldBy"], columns["claimedBy"], columns["epoch"]) == ("me", "me", 3)


def test_a_queue_without_messages_to_come_is_not_behind() -> None:
    columns = view(row(next_offset=9)).columns()

    assert (columns["lag"], columns["lagSeconds"]) == (0, 0.0)


def test_an_offset_beyond_the_end_is_shown_with_the_difference() -> None:
    """F5"""
    beyond = view(row(next_offset=12))

    assert (beyond.columns()["lag"], beyond.columns()["note"]) == (0, "beyond the end by 3")
    assert [total.columns()["beyondEnd"] for total in totals([beyond])] == [1]


def test_clocks_that_differ_never_make_a_span_negative() -> None:
    columns = view(next_stored_at_s=NOW_S + 3, holder=Holder(client_id="me", locked_at_s=NOW_S + 3)).columns()

    assert (columns["lagSeconds"], columns["lockAgeSeconds"]) == (0.0, 0.0)


def test_unknown_values_stay_empty() -> None:
    columns = LagView(
        name=OffsetKey.parse("etl"),
        row=row(owner=""),
        bounds=None,
        next_stored_at_s=None,
        holder=None,
        now_s=NOW_S,
    ).columns()

    empty = (
        "brokerMaxOffset",
        "lag",
        "lagSeconds",
        "heldBy",
        "lockAgeSeconds",
        "claimedBy",
        "suspendedUntil",
    )
    assert {columns[name] for name in empty} == {None}


def test_a_suspension_that_is_over_is_not_shown() -> None:
    """D3."""
    due, over = view(row(suspended_until_s=NOW_S + 1)), view(row(suspended_until_s=NOW_S - 1))

    assert due.columns()["suspendedUntil"] == "2023-11-14T22:15:01.000+00:00"
    assert over.columns()["suspendedUntil"] is None


def test_of_two_members_that_show_a_queue_the_younger_lock_counts() -> None:
    """B5: while a queue changes hands both may show it."""
    members = {"old": {Q0: locked(NOW_S - 40)}, "new": {Q0: locked(NOW_S - 2), Q1: locked(NOW_S)}}

    assert holder_of(OffsetKey.parse("etl"), row(), members) == Holder(client_id="new", locked_at_s=NOW_S - 2)


def test_a_queue_that_a_member_drops_is_not_its_own_any_more() -> None:
    """B5."""
    assert holder_of(OffsetKey.parse("etl"), row(), {"me": {Q0: locked(NOW_S, dropped=True)}}) is None


def test_an_instance_of_a_broadcasting_group_holds_its_own_row_without_a_lock() -> None:
    """B3."""
    members = {"h@i1": {Q0: ProcessQueueInfo()}, "h@i2": {Q0: ProcessQueueInfo()}}

    for client_id, group in (("h@i1", "etl@i1"), ("h@i2", "etl@i2")):
        for owner in (new_owner(client_id), client_id):
            found = holder_of(OffsetKey.parse(group), row(group=group, owner=owner), members)

            assert found == Holder(client_id=client_id, locked_at_s=None)


def test_totals_are_of_a_group_and_topic_and_of_what_is_known() -> None:
    views = [
        view(row(Q0), next_stored_at_s=NOW_S - 5, holder=Holder(client_id="me", locked_at_s=NOW_S)),
        view(row(Q1, suspended_until_s=NOW_S + 9), next_stored_at_s=NOW_S - 8),
        view(row(Q0, group="other"), next_stored_at_s=NOW_S - 1),
    ]

    first, second = (total.columns() for total in totals(views))

    assert first == {
        "consumerGroup": "etl", "topic": "orders", "queues": 2, "lag": 8, "lagSeconds": 8.0,
        "okPerSecond": 0.0, "failedPerSecond": 0.0, "failedInHour": 0, "callMs": 0.0, "members": 1,
        "heldByNobody": 1, "suspended": 1, "beyondEnd": 0, "withoutBroker": 0,
    }  # fmt: skip
    assert (second["consumerGroup"], second["queues"]) == ("other", 1)
