"""A part of a task's result: its form as JSON, and several of them as one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.part import (
    Group,
    Part,
    QueueAck,
    check_chains,
    joined,
    parts_without,
    reset_after,
)
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.stored_values import NO_MESSAGES, NO_RETRIES, RememberedMessages, RetryCounts

A, B, C, OTHER = (MessageQueue("T", "broker-a", number) for number in range(4))
SECOND = RememberedMessages.from_text("[2, 20, 200]")
RETRIED = RetryCounts.from_text("[[5, 6, 2]]")


def ack(queue: MessageQueue, start: int = 0, end: int = 3) -> QueueAck:
    return QueueAck(
        queue=queue,
        start=start,
        state=QueueState(end, epoch=4, suspended_until_s=1_500.25),
        consumed=end - start,
        failed=1,
        finished="SUSPENDED",
        last_error="ValueError: no such order",
        metrics=ConsumeMetrics(),
    )


def part(part_id: str, *queues: MessageQueue) -> Part:
    return Part(
        id=part_id,
        acks=tuple(map(ack, queues)),
        written=tuple({"path": f"{part_id}-{queue.queue_id}.parquet"} for queue in queues),
        emitted=5,
        left_out=2,
    )


def test_a_part_is_the_same_after_json() -> None:
    """H1"""
    sent = part("p", B, A)

    assert Part.from_facts(json.loads(json.dumps(sent.facts))) == sent
    assert Part.from_facts(sent.facts) == sent
    assert list(sent.facts) == ["id", "written", "acks", "emitted", "left_out"]
    assert sent.queues == {A, B}


def test_a_group_has_everything_of_its_parts_with_acks_by_queue() -> None:
    """H1"""
    whole = Group((part("p", C, A), part("q", B)))

    assert [each.queue for each in whole.acks] == [A, B, C]
    assert [facts["path"] for facts in whole.written] == ["p-2.parquet", "p-0.parquet", "q-1.parquet"]
    assert (whole.emitted, whole.left_out) == (10, 4)


def test_a_queue_whose_parts_do_not_follow_each_other_is_refused() -> None:
    """H1: its rows were copied on the way to the engine."""
    check_chains([part("p", A), Part(id="q", acks=(ack(A, 3, 7),)), part("r", B)])
    with pytest.raises(RocketMQError, match="two ranges of one batch were consumed, 0 to 3 and 0 to 3"):
        check_chains([part("p", A, B), part("q", B)])


@pytest.mark.parametrize(
    ("gone", "kept"),
    [
        ((), "pqrst"),
        ((A,), "qst"),
        ((B,), "prs"),
        ((C,), "pqrs"),
        ((A, B, C), "s"),
    ],
)
def test_parts_go_with_a_queue_and_with_what_they_follow(gone: tuple[MessageQueue, ...], kept: str) -> None:
    """C5: the second part of a queue does not follow when the first one is gone."""
    parts = [part("p", A), part("q", B), part("r", A), part("s", OTHER), part("t", B, C)]

    left, others = parts_without(parts, gone)

    assert "".join(each.id for each in left) == kept
    assert [each for each in parts if each not in left] == list(others)


def test_a_part_that_follows_one_that_shares_files_with_a_lost_queue_goes_with_it() -> None:
    """C5"""
    parts = [part("p", A, B), part("q", B, C), part("r", C), part("s", OTHER)]

    left, _ = parts_without(parts, {A})

    assert [each.id for each in left] == ["s"]


@pytest.mark.parametrize("missing", ["id", "written", "acks", "emitted", "left_out"])
def test_a_part_without_one_of_its_facts_is_refused(missing: str) -> None:
    """H9"""
    facts = {name: value for name, value in part("p", A).facts.items() if name != missing}
    with pytest.raises(KeyError):
        Part.from_facts(facts)


def test_a_group_has_one_ack_for_each_queue_but_those_left_out() -> None:
    first, second = part("one", B, A), part("two", C)
    more = Part(id="more", acks=(ack(A, 3, 7), ack(C, 3, 4)))
    group = Group((first, second, more), without=frozenset({C}))

    assert (group.id, sorted(group.queues)) == ("one", [A, B])
    assert [(each.queue, each.start, each.state.next_offset) for each in group.acks] == [(A, 0, 7), (B, 0, 3)]


def test_a_reset_that_follows_an_ack_changes_nothing_else() -> None:
    """F5"""
    acked = replace(ack(A, 10, 16), dead_letters=1, sent_back=1, read=9, is_another_log=True)
    late = reset_after(acked, 3)

    assert (late.start, late.state, late.consumed, late.counts) == (16, acked.state, 0, True)
    assert joined(acked, late) == replace(acked, reset_to=3)


def test_joined_acks_add_counts_and_keep_the_newest_of_the_rest() -> None:
    first = QueueAck(
        queue=A,
        start=0,
        state=QueueState(3, 1, 0, None, NO_RETRIES, SECOND),
        consumed=3,
        failed=1,
        finished="",
        read=4,
        reset_to=9,
        is_another_log=True,
        dead_letters=1,
        sent_back=2,
        last_error="first",
        refused_letter="gone",
        metrics=ConsumeMetrics(ok=3),
    )
    second = QueueAck(
        queue=A,
        start=3,
        state=QueueState(5, 1, 2, 7.5, RETRIED, NO_MESSAGES),
        consumed=2,
        failed=0,
        finished="SUSPENDED",
        read=2,
        metrics=ConsumeMetrics(ok=2),
    )
    assert joined(first, second) == QueueAck(
        queue=A,
        start=0,
        state=QueueState(5, 1, 2, 7.5, RETRIED, SECOND),
        consumed=5,
        failed=1,
        finished="SUSPENDED",
        read=6,
        reset_to=9,
        is_another_log=True,
        dead_letters=1,
        sent_back=2,
        last_error="first",
        refused_letter="",
        metrics=ConsumeMetrics(ok=5),
    )
