"""Which silence ends a connection."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.silence import Sent, Silence


def silence_of(*sent_s: float) -> Silence:
    """Requests were sent at these moments, and nothing came."""
    silence = Silence()
    for at_s in sent_s:
        silence.sent(Sent(at_s, 0))
    return silence


@pytest.mark.parametrize(("waited_s", "is_one"), [(0.05, False), (0.1, True), (3.0, True)])
def test_a_request_that_had_hardly_any_time_is_no_witness(waited_s: float, is_one: bool) -> None:
    """A7: as in Java."""
    assert silence_of(0.0).is_suspicious([Sent(0.0, 0)], waited_s) is is_one


def test_the_request_that_waited_longest_decides() -> None:
    """A7: several are given up at the same time."""
    assert silence_of(0.0, 1.0).is_suspicious([Sent(1.0, 0), Sent(0.0, 0)], 1.05)
    assert not silence_of(0.0).is_suspicious([], 9.0)


def test_a_request_after_which_something_came_is_no_witness() -> None:
    """A7: the broker has dropped it, and serves the others."""
    silence = silence_of(0.0)
    silence.came()

    assert not silence.is_suspicious([Sent(0.0, 0)], 9.0)
    assert silence.over_after_s(9.0, has_others=False) is None


@pytest.mark.parametrize(
    ("took_s", "waited_s", "is_one"), [(1.0, 0.9, False), (1.0, 1.0, True), (9.0, 2.5, True)]
)
def test_a_server_that_was_slow_gets_as_long_but_never_longer_than_a_request(
    took_s: float, waited_s: float, is_one: bool
) -> None:
    """A7: one that is gone must be noticed within a time-out."""
    silence = silence_of(0.0)
    silence.answered_after(took_s)
    silence.answered_after(0.01)

    assert silence.is_suspicious([Sent(0.0, 0)], waited_s) is is_one


@pytest.mark.parametrize(
    ("now_s", "has_others", "lasted_s"), [(1.0, False, 1.0), (2.9, True, None), (3.0, True, 3.0)]
)
def test_requests_with_more_time_keep_a_silent_connection_for_three_seconds(
    now_s: float, has_others: bool, lasted_s: float | None
) -> None:
    """A7: then they fail with it."""
    assert silence_of(0.0, 1.5).over_after_s(now_s, has_others=has_others) == lasted_s


def test_silence_begins_with_the_first_request_after_the_last_answer() -> None:
    """A7: whatever was sent before."""
    silence = silence_of(0.0)
    silence.came()
    silence.sent(Sent(5.0, 1))
    silence.sent(Sent(6.0, 1))

    assert silence.over_after_s(8.0, has_others=True) == 3.0


def test_a_request_that_is_noted_late_does_not_hide_a_silence() -> None:
    """A7: two threads send, and something comes between the two."""
    silence = Silence()
    silence.came()
    silence.sent(Sent(5.0, 1))
    silence.sent(Sent(4.9, 0))

    assert silence.over_after_s(8.0, has_others=False) == 3.0
