"""What the driver says of listeners that fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.part import QueueAck, not_begun
from pyspark_rocketmq.consumer.failure_summary import PAUSE_S, FailureSummary, RefusedLetters
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.offsets.rules import new_row
from tests.helpers.fake_clock import FakeClock

Q0, Q1, Q2, Q3 = (MessageQueue("orders", "broker-a", number) for number in range(4))
ERROR = "AttributeError: no attribute 'keyz'"
REFUSED = "No broker accepted a message that was to be sent back or made a dead letter:"


def ack(
    queue: MessageQueue,
    *,
    at: int = 0,
    failed: int = 1,
    finished: str = "SUSPENDED",
    error: str = ERROR,
    times: int = 1,
    refused: str = "",
) -> QueueAck:
    return QueueAck(
        queue=queue, start=0, state=QueueState(at, 1, times), consumed=0, failed=failed, finished=finished,
        last_error=error, refused_letter=refused,
    )  # fmt: skip


def report(*acks: QueueAck, own: Sequence[MessageQueue] = (Q0, Q1, Q2, Q3)) -> BatchReport:
    return BatchReport(
        query_id="q", batch_id=0, acks=acks, rows=0, left_out=0, sink_version=None, refused=(),
        offsets=tuple(new_row("g", queue, 0) for queue in own),
    )  # fmt: skip


def summary_of(clock: FakeClock, *, tries_for_ever: bool = True, drains: bool = False) -> FailureSummary:
    return FailureSummary("g", clock, tries_for_ever=tries_for_ever, drains=drains)


def test_no_summary_while_nothing_fails() -> None:
    assert summary_of(FakeClock()).add(report(ack(Q0, failed=0, finished="EXHAUSTED", error=""))) is None


def test_it_says_which_queues_wait_since_when_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """D5, H4: and that waiting does not help a message that always fails."""
    with caplog.at_level(logging.WARNING):
        summary_of(FakeClock(), drains=True)(report(ack(Q0, at=7), ack(Q1, times=3)))

    (text,) = caplog.messages
    assert text == (
        f"The listener of group g gave back 2 deliveries. 2 queues are suspended since 22:13:20 UTC: {Q0} "
        f"at offset 7; {Q1} at offset 0. Last error: {ERROR}. A message that always fails is delivered for "
        f"ever, and the query never ends, unless "
        "max_reconsume_times (option maxReconsumeTimes) is set."
    )


def test_a_message_that_failed_twice_is_not_yet_one_that_always_fails() -> None:
    """D5: its third attempt may succeed, and nothing is to be done until then."""
    clock = FakeClock()
    summary = summary_of(clock, drains=True)

    said = []
    for times in (1, 2, 3):
        said.append(summary.add(report(ack(Q0, times=times))) or "")
        clock.advance(PAUSE_S)

    assert ["for ever" in text for text in said] == [False, False, True]


def test_what_refuses_failed_messages_is_reported_until_they_are_stored() -> None:
    """D6, E4: by the error of a drain that stands still; a message that is sent back is no dead letter."""
    reported: list[str] = []
    refused = RefusedLetters(reported.append)

    refused(report(ack(Q1, refused="No permission.")))
    refused(report(ack(Q1, refused="No permission.")))
    refused(report(ack(Q2, refused="Too large.")))
    refused(report(ack(Q0)))
    refused(report(ack(Q1), ack(Q2)))

    no_permission = f"{REFUSED} No permission."
    assert reported == [no_permission, f"{no_permission} The same applies to 1 more queue.", ""]


def test_a_refusal_in_a_queue_that_is_another_members_by_now_holds_up_nobody_here() -> None:
    """D6, B5"""
    reported: list[str] = []
    refused = RefusedLetters(reported.append)

    refused(report(ack(Q1, refused="No permission.")))
    refused(report(ack(Q0), own=(Q0, Q2)))

    assert reported == [f"{REFUSED} No permission.", ""]


def test_it_says_so_at_once_and_then_now_and_then() -> None:
    """D5"""
    clock = FakeClock()
    summary = summary_of(clock)
    said = []
    for _ in range(3 * int(PAUSE_S)):
        said.append(summary.add(report(ack(Q0))))
        clock.advance(1)

    assert [at for at, text in enumerate(said) if text] == [0, 60, 120]
    assert "gave back 60 deliveries. 1 queue is suspended since 22:13:20 UTC" in (said[120] or "")


def test_a_queue_that_goes_on_or_goes_away_is_not_named() -> None:
    """B5"""
    clock = FakeClock()
    summary = summary_of(clock, tries_for_ever=False, drains=True)
    summary.add(report(ack(Q0), ack(Q1), ack(Q2)))
    clock.advance(PAUSE_S)

    said = summary.add(report(ack(Q0, finished="EXHAUSTED"), ack(Q2, at=3), own=[Q0, Q2]))

    assert said is not None
    assert f"1 queue is suspended since 22:14:20 UTC: {Q2} at offset 3." in said
    assert said.endswith("The query waits for the suspended queues before it ends.")


def test_a_range_that_was_not_begun_changes_nothing() -> None:
    """D5, D6: the listener was not called, and no dead letter was sent."""
    clock = FakeClock()
    summary, reported = summary_of(clock), list[str]()
    refused = RefusedLetters(reported.append)
    untouched = report(not_begun(QueueRange.between(Q0, 0, 9), clock.now_s()))
    for each in (report(ack(Q0, refused="No permission.")), untouched):
        summary.add(each)
        refused(each)
        clock.advance(PAUSE_S)

    said = summary.add(report(ack(Q1)))

    assert f"2 queues are suspended since 22:13:20 UTC: {Q0} at offset 0; {Q1}" in (said or "")
    assert reported == [
        "No broker accepted a message that was to be sent back or made a dead letter: No permission."
    ]


def test_few_of_many_queues_are_named() -> None:
    said = summary_of(FakeClock()).add(report(*map(ack, (Q0, Q1, Q2, Q3))))

    assert f"{Q2} at offset 0 and 1 more." in (said or "")


def test_messages_that_are_sent_back_suspend_no_queue() -> None:
    """E3"""
    said = summary_of(FakeClock(), tries_for_ever=False).add(report(ack(Q0, failed=3, finished="EXHAUSTED")))

    assert said == f"The listener of group g gave back 3 deliveries. Last error: {ERROR}."
