"""What is left to replay, in which steps, and where it goes: every offset in exactly one place."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import OptionError, TargetQueueAway
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.options.positions import parse_starting_offsets
from pyspark_rocketmq.replay.ranges import (
    Sending,
    away_error,
    check_recorded_targets,
    recorded_targets,
    steps_of,
    target_queue,
    without,
)

A0, A1, B0 = (MessageQueue("orders", broker, queue) for broker, queue in (("a", 0), ("a", 1), ("b", 0)))

spans = st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda one: (one[0], one[0] + one[1]))


def planned(queue: MessageQueue, start: int, end: int) -> QueueRange:
    return QueueRange.between(queue, start, end)


def offsets(ranges: list[QueueRange]) -> list[tuple[MessageQueue, int]]:
    return [(one.queue, at) for one in ranges for at in range(one.start, one.end)]


@given(
    st.dictionaries(st.sampled_from([A0, A1, B0]), spans),
    st.dictionaries(st.sampled_from([A0, A1]), st.lists(spans)),
)
def test_the_remaining_ranges_are_those_not_yet_replayed(
    wanted: dict[MessageQueue, tuple[int, ...]], done: dict[MessageQueue, Any]
) -> None:
    """H3"""
    ranges = [planned(queue, *span) for queue, span in wanted.items()]

    left = without(ranges, [planned(queue, *span) for queue, spans in done.items() for span in spans])

    gone = {(queue, at) for queue, parts in done.items() for start, end in parts for at in range(start, end)}
    assert offsets(left) == [one for one in offsets(ranges) if one not in gone]
    assert all(one.count > 0 for one in left)


@given(st.dictionaries(st.sampled_from([A0, A1, B0]), st.lists(spans, max_size=3)), st.integers(1, 30))
def test_steps_hold_every_offset_once_and_each_queue_in_order(
    wanted: dict[MessageQueue, Any], most: int
) -> None:
    """H3"""
    ranges = [
        one
        for queue, parts in wanted.items()
        for one in without([planned(queue, 0, 60)], [planned(queue, *span) for span in parts])
    ]

    steps = steps_of(ranges, most)

    for queue in wanted:
        in_steps = [one for step in steps for one in offsets(step) if one[0] == queue]
        assert in_steps == [one for one in offsets(ranges) if one[0] == queue]
    for step in steps:
        assert len({one.queue for one in step}) == len(step)
        # Each queue's part is rounded by itself.
        assert 0 < sum(one.count for one in step) < most + len(step)


def test_queues_move_together() -> None:
    """H3: a long queue beside a short one does not wait until that is done."""
    steps = steps_of([planned(A0, 0, 90), planned(A1, 5, 15)], 25)

    assert [[one.count for one in step] for step in steps] == [[22, 2], [23, 3], [22, 2], [23, 3]]


def test_a_queue_goes_to_its_namesake_or_always_to_the_same_other_one() -> None:
    """H3, G2: else its messages would change places."""
    targets = [MessageQueue("copy", broker, queue) for broker, queue in (("a", 0), ("a", 1), ("c", 0))]

    assert target_queue(A1, targets) == targets[1]
    assert target_queue(B0, targets) == target_queue(B0, targets[::-1])
    assert target_queue(B0, targets) in targets


def sent(source: QueueRange, target: MessageQueue, messages: int | None) -> Sending:
    return Sending(run="r", source=source, target=target, target_offset=0, sent=messages)


TO_A, TO_B = (MessageQueue("copy", broker, 0) for broker in "ab")


@pytest.mark.parametrize("last", [3, None], ids=["counted", "in a record of an earlier release"])
def test_a_queue_stays_where_its_newest_messages_are(last: int | None) -> None:
    """H3, G2: a step without messages shows nothing: brokers create a topic with its first message."""
    done = [
        sent(planned(A0, 5, 9), TO_B, 4),
        sent(planned(A0, 0, 5), TO_A, last),
        sent(planned(A0, 9, 12), TO_B, 0),
        sent(planned(B0, 0, 5), TO_B, 0),
    ]

    assert recorded_targets(done) == {A0: TO_A}


def test_a_queue_whose_target_is_away_waits_for_it_if_it_has_new_messages() -> None:
    """H3, G2: in another queue these would overtake those of their sharding key."""
    done = [sent(planned(A0, 0, 5), TO_A, 5), sent(planned(B0, 0, 5), TO_B, 5)]

    starts = dict.fromkeys((A0, A1, B0), 0)
    ranges = [planned(A0, 0, 9), planned(B0, 0, 5), planned(A1, 0, 9)]

    check_recorded_targets(ranges, starts, done, [TO_A])
    check_recorded_targets([planned(B0, 0, 9)], starts, done, [TO_A, TO_B])
    with pytest.raises(
        TargetQueueAway, match=r"of topic=orders broker=b .* in topic=copy broker=b"
    ) as raised:
        check_recorded_targets([planned(A0, 0, 9), planned(B0, 0, 9)], starts, done, [TO_A])
    assert raised.value.retryable


@given(
    st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 40)),
    st.dictionaries(st.sampled_from([A0, A1, B0, MessageQueue("sales", "a", 0)]), st.lists(spans)),
)
def test_a_new_record_begins_in_each_queue_of_the_run_at_the_first_offset_that_is_not_recorded(
    starts: dict[MessageQueue, int], done: dict[MessageQueue, Any]
) -> None:
    """H3: no message from the run's start on is left out, and none before it is sent.

    The record may have other queues: of another source topic, or gone. The run could not begin in them.
    """
    recorded = [sent(planned(queue, *span), TO_B, None) for queue, spans in done.items() for span in spans]

    error = away_error(B0, TO_B, starts, recorded)

    named = parse_starting_offsets(error.starting_offsets).by_queue if error.starting_offsets else {}
    gone = {(queue, at) for queue, parts in done.items() for start, end in parts for at in range(start, end)}
    assert named == {
        queue: next(at for at in count(start) if (queue, at) not in gone) for queue, start in starts.items()
    }


def test_more_steps_than_can_be_done_are_refused_before_they_are_made() -> None:
    """H9: a broker may report any offset."""
    with pytest.raises(OptionError, match="offsets_per_step=10 would need more than 1000000 steps"):
        steps_of([planned(A0, 0, 1 << 62)], 10)
