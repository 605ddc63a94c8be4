from __future__ import annotations

import pytest

from broker_sim.message_store import ConsumeQueue, PullLimits, Run, Scan

_LIMITS = PullLimits()


def _queue(sizes: list[int], *, tags: list[int] | None = None, gap: int = 0) -> ConsumeQueue:
    queue = ConsumeQueue()
    offset = 0
    for index, size in enumerate(sizes):
        queue.extend([offset], [size], [tags[index] if tags else 0])
        offset += size + gap
    return queue


def test_a_pull_gets_at_most_32_messages_however_many_it_asks_for() -> None:
    scan = _queue([10] * 100).scan(0, 1024, _LIMITS, None)
    assert scan == Scan([Run(0, 320)], 32, 32)


def test_a_pull_gets_no_more_messages_than_it_asks_for() -> None:
    assert _queue([10] * 100).scan(5, 7, _LIMITS, None) == Scan([Run(50, 70)], 7, 12)


@pytest.mark.parametrize("asked", [0, -1, 1])
def test_a_pull_for_no_message_gets_one(asked: int) -> None:
    assert _queue([10] * 3).scan(0, asked, _LIMITS, None).message_count == 1


def test_a_pull_stops_before_the_message_that_would_exceed_256_kib() -> None:
    scan = _queue([100_000] * 5).scan(0, 32, _LIMITS, None)
    assert (scan.message_count, scan.next_begin_offset) == (2, 2)


def test_a_pull_may_fill_256_kib_exactly() -> None:
    assert _queue([131_072] * 3).scan(0, 32, _LIMITS, None).message_count == 2


def test_the_first_message_comes_whatever_its_size() -> None:
    scan = _queue([4_000_000, 10]).scan(0, 32, _LIMITS, None)
    assert scan == Scan([Run(0, 4_000_000)], 1, 1)


def test_the_size_is_checked_before_the_filter_so_an_unwanted_large_message_ends_the_pull() -> None:
    queue = _queue([10, 300_000, 10], tags=[1, 2, 1])
    assert queue.scan(0, 32, _LIMITS, frozenset({1})) == Scan([Run(0, 10)], 1, 1)


def test_messages_that_lie_apart_are_taken_in_several_runs() -> None:
    assert _queue([10, 20, 30], gap=5).scan(0, 32, _LIMITS, None).runs == [
        Run(0, 10),
        Run(15, 20),
        Run(40, 30),
    ]


def test_unwanted_tags_are_left_out_and_still_passed() -> None:
    """A4: the next offset lies behind every message looked at, matching or not."""
    queue = _queue([10] * 6, tags=[1, 2, 1, 1, 2, 2])
    scan = queue.scan(0, 32, _LIMITS, frozenset({1}))
    assert scan == Scan([Run(0, 10), Run(20, 20)], 3, 6)


def test_a_range_without_a_wanted_tag_still_advances() -> None:
    """A4: nothing is found, and the offset moves on."""
    assert _queue([10] * 6, tags=[2] * 6).scan(1, 32, _LIMITS, frozenset({1})) == Scan([], 0, 6)


def test_a_pull_looks_at_800_entries_at_most_or_at_as_many_as_it_asks_for() -> None:
    queue = _queue([10] * 2000, tags=[2] * 2000)
    assert queue.scan(0, 32, _LIMITS, frozenset({1})).next_begin_offset == 800
    assert queue.scan(0, 1000, _LIMITS, frozenset({1})).next_begin_offset == 1000


def test_dropping_raises_the_minimum_and_keeps_the_other_offsets() -> None:
    queue = _queue([10] * 10)
    for drop_before, lowest in ((20, 2), (30, 3), (61, 7), (100, 10)):
        queue.drop_before(drop_before)
        assert (queue.min_offset, queue.max_offset) == (lowest, 10)
        assert all(queue.entry(offset).commit_log_offset == offset * 10 for offset in range(lowest, 10))


def test_an_emptied_queue_goes_on_where_it_was() -> None:
    queue = _queue([10] * 3)
    queue.drop_before(1000)
    queue.extend([1000], [10], [0])
    assert (queue.min_offset, queue.max_offset) == (3, 4)
    assert queue.scan(3, 32, _LIMITS, None) == Scan([Run(1000, 10)], 1, 4)
