"""What a slave can show while its master is down, and what it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.slave_reads import ends_in_doubt, has_range, offsets_in_doubt, starts_in_doubt
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.options.positions import EARLIEST_OFFSET, LATEST_OFFSET, QueuePositions

A0 = MessageQueue("orders", "broker-a", 0)
A1 = MessageQueue("orders", "broker-a", 1)
B0 = MessageQueue("orders", "broker-b", 0)
NOON = 1_000_000


@pytest.mark.parametrize(
    ("start", "end", "is_there"),
    [(10, 20, True), (12, 12, True), (9, 20, False), (10, 21, False), (20, 20, True), (21, 21, False),
     (12, OPEN_END, True), (9, OPEN_END, False), (21, OPEN_END, False)],
)  # fmt: skip
def test_a_range_is_there_if_all_of_it_is_within_the_slaves_bounds(
    start: int, end: int, is_there: bool
) -> None:
    """L3"""
    assert has_range(QueueBounds(10, 20), QueueRange.between(A0, start, end)) is is_there


@pytest.mark.parametrize("word", [EARLIEST_OFFSET, LATEST_OFFSET])
def test_words_mean_what_the_slave_has(word: int) -> None:
    """L3"""
    bounds = {A0: QueueBounds(10, 20)}
    assert offsets_in_doubt(QueuePositions(word), bounds) == ()
    assert starts_in_doubt(QueuePositions(word), {A0: 10}, bounds) == ()
    assert ends_in_doubt(QueuePositions(word), {A0: 20}, bounds) == ()


@given(st.integers(0, 30), st.integers(0, 10), st.integers(0, 20))
def test_an_offset_is_in_doubt_if_a_longer_log_could_have_it(wanted: int, low: int, length: int) -> None:
    """L3: below the slave's beginning or beyond its end."""
    bounds = QueueBounds(low, low + length)
    doubts = offsets_in_doubt(QueuePositions(wanted), {A0: bounds})
    assert doubts == (() if low <= wanted <= low + length else (A0,))


@pytest.mark.parametrize(
    ("low", "found", "is_in_doubt"), [(0, 0, False), (0, 5, False), (10, 10, True), (10, 11, False)]
)
def test_a_beginning_by_time_is_shown_by_an_earlier_message_or_the_queues_first(
    low: int, found: int, is_in_doubt: bool
) -> None:
    """L3"""
    doubts = starts_in_doubt(QueuePositions(NOON), {A0: found}, {A0: QueueBounds(low, 20)})
    assert doubts == ((A0,) if is_in_doubt else ())


def test_an_end_by_time_is_shown_by_a_message_as_late_in_any_queue_of_the_broker() -> None:
    """L3: the log is copied in order."""
    times = QueuePositions(NOON)
    quiet, late = QueueBounds(0, 5, NOON - 1), QueueBounds(0, 9, NOON)
    assert ends_in_doubt(times, {A0: 5}, {A0: quiet}) == (A0,)
    assert ends_in_doubt(times, {A0: 5, A1: 8}, {A0: quiet, A1: late}) == ()
    assert ends_in_doubt(times, {A0: 5, B0: 8}, {A0: quiet, B0: late}) == (A0,)
    assert ends_in_doubt(times, {A0: 4}, {A0: QueueBounds(0, 5)}) == ()


@given(
    log=st.lists(st.integers(0, 20), min_size=1, max_size=30).map(sorted),
    copied=st.integers(0, 30),
    dropped=st.integers(0, 30),
    start=st.integers(0, 25),
    end=st.integers(0, 25),
)
def test_a_slave_read_between_allowed_times_misses_nothing(
    log: list[int], copied: int, dropped: int, start: int, end: int
) -> None:
    """L3: whatever window of the log the slave has,
    a read between two times that it allows misses nothing of it.
    """
    high = min(copied, len(log))
    low = min(dropped, high)
    bounds = {A0: QueueBounds(low, high, log[high - 1] if high > low else 0)}

    def first_from(time: int) -> int:
        return next((at for at in range(low, high) if log[at] >= time), high)

    begins, ends = {A0: first_from(start)}, {A0: first_from(end)}
    if starts_in_doubt(QueuePositions(start), begins, bounds) or ends_in_doubt(
        QueuePositions(end), ends, bounds
    ):
        return
    wanted = [at for at, time in enumerate(log) if start <= time < end]
    assert list(range(begins[A0], ends[A0])) == wanted
