"""Planning: ranges from progress, bounds, limits, suspensions and gaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.planning import Plan, ReadLimits, UncommittedDelivery, plan_ranges, share_limit
from pyspark_rocketmq.consume.positions import EVERY_BROKER, OffsetGap, latest_at, stored_by
from pyspark_rocketmq.errors import DataLoss
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange, QueueState
from tests.helpers import stored_texts

NO_LIMITS = ReadLimits()
NOW_S = 1000.0


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", queue_id)


def bounds(min_offset: int, max_offset: int) -> QueueBounds:
    return QueueBounds(min_offset=min_offset, max_offset=max_offset)


def plan(
    broker: dict[int, tuple[int, int]],
    stored: dict[int, QueueState],
    *,
    limits: ReadLimits = NO_LIMITS,
    caps: dict[int, int] | None = None,
    uncommitted: dict[int, UncommittedDelivery] | None = None,
    skip_gaps: bool = False,
) -> Plan:
    return plan_ranges(
        {queue(i): bounds(*pair) for i, pair in broker.items()},
        {queue(i): progress for i, progress in stored.items()},
        limits=limits,
        now_s=NOW_S,
        caps=None if caps is None else {queue(i): cap for i, cap in caps.items()},
        uncommitted=None if uncommitted is None else {queue(i): count for i, count in uncommitted.items()},
        skip_gaps=skip_gaps,
    )


def spans(made: Plan) -> dict[int, tuple[int, int]]:
    return {r.queue.queue_id: (r.start, r.end) for r in made.ranges}


def test_a_queue_is_read_from_its_stored_offset_to_the_brokers_end() -> None:
    stored = QueueState(20, epoch=3, reconsume_times=2, retry_counts=stored_texts.retries("[[20,22,2]]"))
    made = plan(
        {0: (5, 90)},
        {0: stored._replace(suspended_until_s=NOW_S - 1, last_message=stored_texts.messages("[19,1,1]"))},
    )

    assert made.ranges == (QueueRange(queue(0), stored, 90),)
    assert made.gaps == ()
    assert made.next_due_s is None


def test_ranges_are_sorted_by_queue() -> None:
    made = plan({2: (0, 5), 0: (0, 5), 1: (0, 5)}, {})

    assert [r.queue.queue_id for r in made.ranges] == [0, 1, 2]


def test_a_queue_without_progress_starts_at_its_min_offset() -> None:
    """A2: queues that appear while a query runs are read from their earliest message."""
    assert spans(plan({7: (40, 60)}, {})) == {7: (40, 60)}


def test_a_queue_with_nothing_new_is_left_out() -> None:
    assert plan({0: (0, 20)}, {0: QueueState(20)}).ranges == ()


def test_progress_of_a_queue_not_owned_is_not_planned() -> None:
    """C1: only the queues of ``bounds`` are owned and locked."""
    assert plan({}, {0: QueueState(0)}).ranges == ()


def test_a_queue_that_failed_at_its_first_message_is_tried_with_the_largest_delivery() -> None:
    """D2, D3: its growing backlog takes nothing from the others, and a delivery is as large as it was."""
    stored = {
        0: QueueState(10, reconsume_times=1, suspended_until_s=NOW_S - 1),
        1: QueueState(0),
    }
    made = plan({0: (0, 1_000_000), 1: (0, 5000)}, stored, limits=ReadLimits(max_offsets_per_trigger=6024))

    assert spans(made) == {0: (10, 1034), 1: (0, 5000)}


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(QueueState(0, reconsume_times=1), id="given back, then passed"),
        pytest.param(QueueState(0, suspended_until_s=NOW_S - 1), id="rolled back"),
    ],
)
def test_a_queue_that_may_go_on_beyond_one_delivery_is_not_held_back(stored: QueueState) -> None:
    """D4: a listener that commits later needs the messages before."""
    assert spans(plan({0: (0, 9000)}, {0: stored})) == {0: (0, 9000)}


def test_a_suspended_queue_waits_and_the_others_do_not() -> None:
    """D3: only the suspended queue waits."""
    made = plan(
        {0: (0, 9), 1: (0, 9), 2: (0, 9)},
        {
            0: QueueState(3, suspended_until_s=NOW_S + 5),
            1: QueueState(3),
            2: QueueState(3, suspended_until_s=NOW_S + 2),
        },
    )

    assert spans(made) == {1: (3, 9)}
    assert made.next_due_s == NOW_S + 2


def test_a_suspended_queue_is_planned_at_the_moment_it_is_due() -> None:
    """D3: redelivery is a re-pull with the count of failed deliveries."""
    made = plan({0: (0, 9)}, {0: QueueState(3, reconsume_times=4, suspended_until_s=NOW_S)})

    assert made.ranges == (QueueRange(queue(0), QueueState(3, reconsume_times=4), 9),)
    assert made.next_due_s is None


def test_a_suspension_that_no_listener_can_have_wished_for_is_over() -> None:
    """D3: 30 s, and 30 s between two clocks; a later end was written before the clock was set back."""
    longest = QueueState(3, suspended_until_s=NOW_S + 60)
    stepped = QueueState(3, suspended_until_s=NOW_S + 60.001)

    assert plan({0: (0, 9)}, {0: longest}).ranges == ()
    assert [each.start for each in plan({0: (0, 9)}, {0: stepped}).ranges] == [3]


def test_a_suspended_queue_beyond_its_cap_is_nothing_to_wait_for() -> None:
    """H4: AvailableNow waits for suspended queues, but not for messages that came after it began."""
    made = plan({0: (0, 9)}, {0: QueueState(5, suspended_until_s=NOW_S + 5)}, caps={0: 5})

    assert made.next_due_s is None


def test_caps_end_ranges_and_leave_out_queues_that_were_not_there() -> None:
    """H4: AvailableNow drains exactly what was there at the start."""
    made = plan({0: (0, 90), 1: (0, 90), 2: (0, 90)}, {1: QueueState(50)}, caps={0: 10, 1: 50})

    assert spans(made) == {0: (0, 10)}


def test_the_threshold_bounds_every_queue() -> None:
    """D13: pullThresholdForQueue."""
    made = plan({0: (0, 5000), 1: (0, 30)}, {}, limits=ReadLimits(pull_threshold_for_queue=1000))

    assert spans(made) == {0: (0, 1000), 1: (0, 30)}


def test_the_total_limit_is_shared_in_proportion_to_the_backlog() -> None:
    made = plan({0: (0, 900), 1: (0, 300)}, {}, limits=ReadLimits(max_offsets_per_trigger=120))

    assert spans(made) == {0: (0, 90), 1: (0, 30)}


def test_a_small_backlog_beside_a_huge_one_still_gets_an_offset() -> None:
    made = plan({0: (0, 10**9), 1: (0, 1)}, {}, limits=ReadLimits(max_offsets_per_trigger=10))

    assert spans(made) == {0: (0, 9), 1: (0, 1)}


def test_with_more_queues_than_the_limit_every_queue_gets_one_offset() -> None:
    """As Spark's Kafka source: exceeding a tiny limit starves nobody."""
    made = plan(dict.fromkeys(range(5), (0, 100)), {}, limits=ReadLimits(max_offsets_per_trigger=2))

    assert spans(made) == dict.fromkeys(range(5), (0, 1))


def test_a_listener_that_committed_nothing_gets_twice_as_much() -> None:
    """D4: without autoCommit the messages after which the listener commits must come into reach,
    whatever the shares are.
    """
    limits = ReadLimits(max_offsets_per_trigger=20)

    made = plan(
        {0: (0, 1000), 1: (0, 1000), 2: (0, 25)},
        {},
        limits=limits,
        uncommitted={0: UncommittedDelivery(90, rests=True), 2: UncommittedDelivery(20, rests=False)},
    )

    assert spans(made) == {0: (0, 180), 1: (0, 9), 2: (0, 25)}
    assert made.held_up == ()


def test_a_listener_that_committed_nothing_gets_nothing_before_there_is_more() -> None:
    """D4: it has had these messages, and has answered."""
    made = plan(
        {0: (0, 25), 1: (0, 25)}, {0: QueueState(5)}, uncommitted={0: UncommittedDelivery(20, rests=True)}
    )

    assert spans(made) == {1: (0, 25)}
    assert (made.held_up, made.next_due_s) == ((), None)
    assert made.at_rest == {queue(0)}


def test_a_listener_that_committed_nothing_gets_the_same_again_after_a_while() -> None:
    """D4: it may commit for another reason, or what it answered may have been lost."""
    assert spans(
        plan({0: (0, 25)}, {0: QueueState(5)}, uncommitted={0: UncommittedDelivery(20, rests=False)})
    ) == {0: (5, 25)}


def test_the_threshold_bounds_what_a_listener_may_have_without_a_commit() -> None:
    """D4, D13: as in Java; it is said, because the queue goes on no more."""
    limits = ReadLimits(pull_threshold_for_queue=30)

    assert spans(
        plan({0: (0, 100)}, {}, limits=limits, uncommitted={0: UncommittedDelivery(20, rests=True)})
    ) == {0: (0, 30)}

    made = plan({0: (0, 100)}, {}, limits=limits, uncommitted={0: UncommittedDelivery(30, rests=True)})
    assert made.ranges == ()
    assert [(held.queue, held.start, held.end) for held in made.held_up] == [(queue(0), 0, 30)]
    assert made.at_rest == {queue(0)}


def test_queues_at_the_end_of_a_drain_and_those_made_later_wait_by_right() -> None:
    """B6, H4."""
    made = plan({0: (0, 9), 1: (0, 9), 2: (0, 9)}, {0: QueueState(5)}, caps={0: 5, 1: 5})

    assert spans(made) == {1: (0, 5)}
    assert made.at_rest == {queue(0), queue(2)}


@given(share=st.integers(1, 50), needed=st.integers(1, 5000))
def test_ranges_grow_until_the_listener_can_commit(share: int, needed: int) -> None:
    """D4: and all deliveries together are at most four times the messages."""
    limits = ReadLimits(max_offsets_per_trigger=share)
    had, delivered = 0, 0
    while had < needed:
        (planned,) = plan(
            {0: (0, 10_000)},
            {},
            limits=limits,
            uncommitted={0: UncommittedDelivery(had, rests=True)} if had else None,
        ).ranges
        had = planned.count
        delivered += had

    assert delivered <= 4 * max(needed, share)


def test_deleted_messages_are_a_gap_and_the_queue_is_left_out() -> None:
    """F4: failOnDataLoss=true."""
    made = plan({0: (50, 90), 1: (0, 5)}, {0: QueueState(20)})

    assert spans(made) == {1: (0, 5)}
    assert made.gaps == (OffsetGap(queue=queue(0), wanted=20, min_offset=50, max_offset=90, corrected=50),)


def test_deleted_messages_are_skipped_when_configured_so() -> None:
    """F4: failOnDataLoss=false; the count of failed deliveries was that of a message that is gone."""
    made = plan({0: (50, 90)}, {0: QueueState(20, epoch=3, reconsume_times=2)}, skip_gaps=True)

    assert made.ranges == (QueueRange.between(queue(0), 50, 90, epoch=3),)
    assert [gap.corrected for gap in made.gaps] == [50]


@pytest.mark.parametrize("skip_gaps", [True, False])
def test_an_offset_beyond_the_end_is_a_gap_corrected_to_the_end(skip_gaps: bool) -> None:
    """F4: a broker that lost its tail never makes a consumer read everything again."""
    made = plan({0: (0, 30)}, {0: QueueState(31)}, skip_gaps=skip_gaps)

    assert made.ranges == ()
    assert made.gaps == (OffsetGap(queue=queue(0), wanted=31, min_offset=0, max_offset=30, corrected=30),)


def test_the_end_itself_is_no_gap() -> None:
    made = plan({0: (30, 30)}, {0: QueueState(30)})

    assert made == Plan(ranges=(), gaps=(), readable=0, next_due_s=None)


def test_a_suspended_queue_reports_its_gap_when_it_is_due() -> None:
    suspended = {0: QueueState(20, suspended_until_s=NOW_S + 1)}

    assert plan({0: (50, 90)}, suspended).gaps == ()
    assert plan({0: (50, 90)}, {0: QueueState(20, suspended_until_s=NOW_S)}).gaps


def test_a_gap_as_an_error_names_queue_wanted_available_and_remedy() -> None:
    """F4."""
    gap = OffsetGap.between(queue(3), 20, bounds(50, 90))
    assert gap is not None

    error = gap.to_error()

    assert isinstance(error, DataLoss)
    for part in ("topic=orders broker=broker-a queue=3", "offset 20", "offsets 50 to 90", "failOnDataLoss"):
        assert part in str(error)
    assert "continues at 50" in str(gap)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=30), st.integers(1, 3000))
def test_a_shared_limit_is_used_up_and_each_queue_gets_some_and_no_more_than_it_wants(
    wanted: list[int], limit: int
) -> None:
    shares = share_limit(wanted, limit)

    assert sum(shares) == max(min(limit, sum(wanted)), len(wanted))
    assert all(1 <= share <= demand for share, demand in zip(shares, wanted, strict=True))


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=30), st.integers(1, 3000))
def test_a_longer_backlog_never_gets_less(wanted: list[int], limit: int) -> None:
    shares = share_limit(wanted, limit)
    by_demand = sorted(zip(wanted, shares, strict=True))

    assert all(a[1] <= b[1] + 1 for a, b in pairwise(by_demand))


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.1, 5000)), min_size=1, max_size=12),
    st.integers(1, 1_000_000),
)
def test_a_limit_in_bytes_holds_but_for_one_message_of_each_queue(
    queues: list[tuple[int, float]], limit: int
) -> None:
    """maxBytesPerTrigger: and it is used up, to less than a message of each queue."""
    sizes = {queue(number): max(1.0, size) for number, (_, size) in enumerate(queues)}

    made = plan_ranges(
        {queue(number): bounds(0, length) for number, (length, _) in enumerate(queues)},
        {queue(number): QueueState(0) for number in range(len(queues))},
        limits=ReadLimits(max_bytes_per_trigger=limit),
        now_s=NOW_S,
        message_bytes=sizes.__getitem__,
    )

    taken = sum(sizes[each.queue] * each.count for each in made.ranges)
    waiting = sum(sizes[queue(number)] * length for number, (length, _) in enumerate(queues))
    assert len(made.ranges) == len(queues)
    assert taken <= limit + sum(sizes.values())
    assert taken >= min(limit, waiting) - sum(sizes.values()) - len(queues)
    assert made.readable == sum(length for length, _ in queues)


_PROGRESS = st.builds(
    QueueState,
    st.integers(0, 120),
    epoch=st.integers(0, 9),
    reconsume_times=st.integers(0, 3),
    suspended_until_s=st.none() | st.floats(NOW_S - 5, NOW_S + 5),
)
_LIMITS = st.builds(
    ReadLimits,
    max_offsets_per_trigger=st.none() | st.integers(1, 200),
    pull_threshold_for_queue=st.none() | st.integers(1, 60),
)
_QUEUES = st.integers(0, 12)


@given(
    broker=st.dictionaries(
        _QUEUES, st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda p: (p[0], sum(p)))
    ),
    stored=st.dictionaries(_QUEUES, _PROGRESS),
    limits=_LIMITS,
    caps=st.none() | st.dictionaries(_QUEUES, st.integers(0, 120)),
    skip_gaps=st.booleans(),
)
def test_invariants_of_any_plan(
    broker: dict[int, tuple[int, int]],
    stored: dict[int, QueueState],
    limits: ReadLimits,
    caps: dict[int, int] | None,
    skip_gaps: bool,
) -> None:
    """A2, C1, D3, D13, F4, H4."""
    made = plan(broker, stored, limits=limits, caps=caps, skip_gaps=skip_gaps)
    taken = spans(made)

    for i, (start, end) in taken.items():
        low, high = broker[i]
        progress = stored.get(i, QueueState(low))
        assert low <= start < end <= high
        assert caps is None or end <= caps[i]
        assert end - start <= (limits.pull_threshold_for_queue or 10**9)
        assert progress.suspended_until_s is None or progress.suspended_until_s <= NOW_S
        assert start == progress.next_offset or (skip_gaps and start in {low, high})
    if limits.max_offsets_per_trigger is not None:
        assert sum(r.count for r in made.ranges) <= max(limits.max_offsets_per_trigger, len(made.ranges))
    assert made.next_due_s is None or made.next_due_s > NOW_S
    assert not taken.keys() & {gap.queue.queue_id for gap in made.gaps} or skip_gaps


A0, A1 = (MessageQueue("orders", "broker-a", queue_id) for queue_id in (0, 1))
B0 = MessageQueue("orders", "broker-b", 0)


def test_each_broker_has_its_own_time_of_what_was_stored() -> None:
    """F4: one whose clock is ahead hides no other's topic that is made again."""
    bounds = {A0: QueueBounds(0, 3, 1_000), B0: QueueBounds(0, 3, 90_000)}

    times = stored_by({}, bounds, ())
    assert times == {"broker-a": 1_000, "broker-b": 90_000}
    assert stored_by(times, {A0: QueueBounds(0, 9, 2_000)}, [A0, B0]) == {
        "broker-a": 2_000,
        "broker-b": 90_000,
    }
    assert latest_at(times, "broker-c") == 0


def test_a_time_that_is_not_known_of_one_broker_is_known_of_the_others() -> None:
    """F4: it shows none, or was away when the stream began."""
    bounds = {A0: QueueBounds(0, 3, 0), B0: QueueBounds(0, 3, 500), A1: QueueBounds(2, 2, 0)}

    assert stored_by({}, bounds, ()) == {"broker-b": 500}
    assert stored_by({}, {A0: QueueBounds(0, 3, 700)}, [A0, B0]) == {"broker-a": 700}


def test_the_one_time_of_an_earlier_release_holds_for_every_broker() -> None:
    """F4"""
    assert latest_at({EVERY_BROKER: 800}, "broker-b") == 800
    assert stored_by({EVERY_BROKER: 800}, {A0: QueueBounds(0, 3, 700)}, [A0, B0]) == {
        "broker-a": 800,
        "broker-b": 800,
    }
