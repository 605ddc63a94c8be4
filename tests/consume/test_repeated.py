"""How often something that happens again is reported."""

from __future__ import annotations

from pyspark_rocketmq.listeners.errors import LONGEST_PAUSE_S, MOST_KEYS, RateLimiter


def test_it_is_logged_in_full_once_and_then_counted_at_growing_intervals() -> None:
    """D5: a message that fails comes again each second."""
    repeated = RateLimiter()

    told = {
        second: count
        for second in range(200)
        if (count := repeated.happened("error", float(second))) is not None
    }

    assert told == {0: 0, 10: 10, 30: 20, 70: 40, 150: 80}


def test_the_intervals_stop_growing() -> None:
    repeated, now_s = RateLimiter(), 0.0
    repeated.happened("error", now_s)
    for _ in range(20):
        now_s += LONGEST_PAUSE_S
        assert repeated.happened("error", now_s) == 1


def test_something_else_is_reported_at_once() -> None:
    repeated = RateLimiter()
    repeated.happened("error", 0.0)

    assert repeated.happened("another", 0.0) == 0


def test_no_more_is_remembered_than_is_of_use() -> None:
    """H9: what goes wrong is up to others."""
    repeated = RateLimiter()
    for key in range(MOST_KEYS + 1):
        repeated.happened(key, 0.0)

    assert repeated.happened(MOST_KEYS, 0.0) is None
    assert repeated.happened(0, 0.0) == 0, "forgotten, so counted again"
