"""Where an operator's words move which queue, without anybody being asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pyspark_rocketmq.cli.offsets.moves import (
    AtTime,
    AtVersion,
    QueueChoice,
    QueueMove,
    ToBound,
    ToOffset,
    ToSink,
    ToTime,
    beyond_the_broker,
    moves_to,
    parse_moment,
    parse_queue,
    parse_target,
    refusal,
    skipped,
)
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueState
from pyspark_rocketmq.offsets.store import OffsetRow
from tests.helpers import stored_texts

A0, A1, B0 = (MessageQueue("orders", broker, queue) for broker, queue in (("a", 0), ("a", 1), ("b", 0)))
RETRY = MessageQueue("%RETRY%etl", "a", 0)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp()


def row(queue: MessageQueue, next_offset: int) -> OffsetRow:
    return OffsetRow(
        consumer_group="etl",
        queue=queue,
        state=QueueState(next_offset, 4),
        owner="me",
        query_id="q",
        batch_id=3,
        updated_at_s=1_700_000_000.5,
    )


def bounds(low: int, high: int) -> QueueBounds:
    return QueueBounds(min_offset=low, max_offset=high)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", ToBound("earliest")), (" LATEST ", ToBound("latest")), ("0", ToOffset(0)),
        ("sink", ToSink()), ("1200", ToOffset(1200)),
        ("2026-11-20T10:00", ToTime(TEN)), ("2026-11-20 10:00Z", ToTime(TEN)),
        ("2026-11-20T11:00+01:00", ToTime(TEN)),
    ],
)  # fmt: skip
def test_a_target_is_an_end_an_offset_or_a_time(
    text: str, target: ToBound | ToOffset | ToSink | ToTime
) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "newest", "-1", "1.5", "10:00"])
def test_anything_else_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="is not earliest, latest"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("20261122100000", "write 2026-11-22T10:00:00 for UTC, or with a zone, as 2026-11-22T10:00:00+08:00"),
        ("1790000000500", "write 2026-09-21T14:13:20.500+00:00"),
    ],
)
def test_a_time_in_digits_is_not_taken_for_an_offset(text: str, instead: str) -> None:
    """F5: as consumeTimestamp has it, and in milliseconds as mqadmin has it."""
    with pytest.raises(ValueError) as caught:
        parse_target(text)

    assert (
        str(caught.value) == f"looks like a time, but a number is a queue offset here; for the time {instead}"
    )
    parse_target(str(caught.value).split()[-1])


@pytest.mark.parametrize("text", ["20261322100000", "202611221000", "99999999999999"])
def test_a_number_that_is_no_time_is_an_offset(text: str) -> None:
    """F5"""
    assert parse_target(text) == ToOffset(int(text))


@pytest.mark.parametrize("text", [str(2**63), "9" * 30, "9" * 5_000])
def test_a_number_that_no_queue_can_reach_is_refused_at_once(text: str) -> None:
    """F5: brokers and offset stores have 64 bits for it."""
    with pytest.raises(ValueError, match=f"^is above {2**63 - 1}, the highest offset"):
        parse_target(text)

    assert parse_target(str(2**63 - 1)) == ToOffset(2**63 - 1)


@pytest.mark.parametrize(
    ("text", "moment"), [("v120", AtVersion(120)), ("V0", AtVersion(0)), ("2026-11-20T10:00", AtTime(TEN))]
)
def test_a_moment_is_a_version_or_a_time(text: str, moment: AtTime | AtVersion) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["120", "v", "v-1", "now"])
def test_anything_else_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a time such as"):
        parse_moment(text)


def test_a_broker_s_name_may_hold_a_colon() -> None:
    assert parse_queue("a:b:3") == ("a:b", 3)


def test_the_retry_topic_is_moved_only_by_its_name() -> None:
    """E3, F5: what was given back is not to be consumed again because the topic is."""
    every, orders, retries = (QueueChoice(frozenset(topics)) for topics in ((), ("orders",), (RETRY.topic,)))
    one = QueueChoice(frozenset(), frozenset({("a", 1)}))

    assert [each.takes(RETRY) for each in (every, orders, retries)] == [False, False, True]
    assert [each.takes(A0) for each in (every, orders, retries)] == [True, True, False]
    assert [one.takes(queue) for queue in (A0, A1, B0)] == [False, True, False]


def test_queues_that_are_there_already_are_not_moved() -> None:
    moves = moves_to({A0: 5, A1: 5}, {A0: row(A0, 5), A1: row(A1, 9)}, {})

    assert [(move.queue, move.target, move.moved) for move in moves] == [(A1, 5, -4)]


def test_a_queue_that_is_there_without_its_sink_is_moved_again_with_it() -> None:
    """H1, F5: the group was moved first, the sink is to follow."""
    rows, marks = {A0: row(A0, 5), A1: row(A1, 5), B0: row(B0, 5)}, {A0: 9, A1: 5}
    targets = dict.fromkeys(rows, 5)

    assert [move.queue for move in moves_to(targets, rows, {}, watermarks=marks, rewinds_sink=True)] == [A0]
    assert moves_to(targets, rows, {}, watermarks=marks) == ()


def test_a_queue_that_stays_is_moved_where_it_is_to_forget_its_sink() -> None:
    """H7: if it knows one."""
    rows = {A0: row(A0, 5)._replace(sinks=stored_texts.sinks('{"/lake": "1"}')), A1: row(A1, 5)}

    [move] = moves_to(dict.fromkeys(rows, 5), rows, {}, forgets_sinks=True)

    assert (move.queue, move.moved, move.note) == (
        A0,
        0,
        "stays; its sink is no longer checked for earlier rows",
    )


def test_a_queue_the_group_has_not_begun_may_be_moved() -> None:
    """F5: skip before the first start."""
    [move] = moves_to({A0: 5}, {}, {A0: bounds(0, 9)})

    assert (move.target, move.moved, move.columns()["nextOffset"]) == (5, None, None)


def test_a_target_whose_messages_are_gone_is_moved_to_the_first_there_is() -> None:
    """F4: below it the query would fail by data loss."""
    [move] = moves_to({A0: 5}, {A0: row(A0, 20)}, {A0: bounds(12, 30)})

    assert move.target == 12


def test_a_queue_that_stays_is_not_moved_over_messages_that_are_gone() -> None:
    """H7: their loss is the query's to report."""
    target = {A0: 5}
    rows = {A0: row(A0, 5)._replace(sinks=stored_texts.sinks('{"/lake/orders": "1"}'))}

    [move] = moves_to(target, rows, {A0: bounds(12, 30)}, forgets_sinks=True, staying=target)
    assert (move.target, move.moved) == (5, 0)


def test_a_target_beyond_the_end_is_found() -> None:
    moves = moves_to(
        {A0: 31, A1: 30}, {A0: row(A0, 20), A1: row(A1, 20)}, {A0: bounds(12, 30), A1: bounds(12, 30)}
    )

    assert [move.queue for move in beyond_the_broker(moves)] == [A0]


def test_messages_are_skipped_up_to_the_end() -> None:
    """F5: skip."""
    rows, held = {A0: row(A0, 5), A1: row(A1, 9)}, {A0: bounds(0, 10), A1: bounds(0, 10)}

    assert skipped(rows, held, 2) == {A0: 7, A1: 10}
    assert skipped(rows, held, None) == {A0: 10, A1: 10}


def move(queue: MessageQueue, target: int, **more: Any) -> QueueMove:
    return QueueMove(queue=queue, row=row(queue, 20), target=target, bounds=bounds(0, 30), **more)


def test_active_consumers_are_named() -> None:
    """F5, C5"""
    assert refusal([move(A0, 5)]) is None

    sentence = refusal([move(A0, 5, held_by="host@one"), move(A1, 5), move(B0, 5, held_by="host@two")])

    assert sentence is not None
    assert sentence.startswith("2 of 3 queues are being consumed by host@one, host@two. Nothing was changed.")


def test_rows_that_the_sink_would_drop_are_reported() -> None:
    """H1, F5: below its watermark it has them already."""
    assert move(A0, 5, watermark=20).note == "the sink drops rows below 20"
    assert move(A0, 20, watermark=20).note == ""
