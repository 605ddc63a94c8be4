from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import ChannelClosed, NoPermission, RocketMQError, SystemBusy
from pyspark_rocketmq.retry import RetryPolicy, call_with_retry, commit_with_retry
from tests.helpers.fake_clock import FakeClock

POLICY = RetryPolicy(attempts=4, first_pause_s=0.1, max_pause_s=0.3)


class Flaky:
    """Fails with the given errors, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        """One call."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_retryable_errors_are_retried_with_growing_pauses() -> None:
    """Broker answers: SYSTEM_BUSY passes."""
    clock = FakeClock()
    pauses: list[float] = []
    operation = Flaky(SystemBusy(2, "busy"), ChannelClosed("b:1", "gone"), SystemBusy(2, "busy"))

    assert call_with_retry(operation, POLICY, Deadline.after(clock, 60), pauses.append) == "done"
    assert pauses == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("error", [NoPermission(16, "no"), ValueError("a bug")])
def test_other_errors_surface_at_once(error: Exception) -> None:
    """Broker answers: only ``retryable`` decides."""
    operation = Flaky(error)

    with pytest.raises(type(error)) as caught:
        call_with_retry(operation, POLICY, Deadline.after(FakeClock(), 60), lambda _pause: None)
    assert caught.value is error
    assert operation.calls == 1


def test_the_last_error_surfaces_when_attempts_are_used_up() -> None:
    """F3: an error stays an error."""
    errors = [SystemBusy(2, str(number)) for number in range(9)]
    operation = Flaky(*errors)

    with pytest.raises(SystemBusy) as caught:
        call_with_retry(operation, POLICY, Deadline.after(FakeClock(), 60), lambda _pause: None)
    assert caught.value is errors[3]
    assert operation.calls == 4


def test_no_pause_reaches_beyond_the_deadline() -> None:
    """F3: the caller's time budget holds."""
    clock = FakeClock()
    operation = Flaky(*[SystemBusy(2, "busy")] * 9)

    with pytest.raises(SystemBusy):
        call_with_retry(operation, POLICY, Deadline.after(clock, 0.25), clock.advance)
    assert operation.calls == 2
    assert clock.monotonic_s() == pytest.approx(0.1)


@given(failures=st.integers(1, 10_000))
def test_pauses_grow_up_to_the_maximum(failures: int) -> None:
    """Broker answers: a pause is never longer than the policy says, and never shorter than the one before."""
    policy = RetryPolicy(attempts=3, first_pause_s=0.5, max_pause_s=8.0)

    assert 0.5 <= policy.pause_s(failures) <= policy.pause_s(failures + 1) <= 8.0


def test_every_error_says_whether_it_may_be_retried() -> None:
    """Broker answers: the default is no."""
    assert not RocketMQError().retryable


# ------------------------------------------------------------------------------------------ commits


class FlakyCommit:
    """Raises these errors one after the other, then commits."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.told: list[Exception | None] = []

    def __call__(self, failure: Exception | None) -> str:
        self.told.append(failure)
        if self.errors:
            raise self.errors.pop(0)
        return "committed"


def commit(attempt: FlakyCommit, pauses: list[float]) -> str:
    return commit_with_retry(
        "rows", attempt, (0.0, 0.5), pauses.append, unknown=OSError, refused=(FileExistsError, KeyError)
    )


def test_each_further_attempt_of_a_commit_gets_what_became_of_the_one_before() -> None:
    """H1: it may have been stored, so the attempt looks for it."""
    first, second = OSError("reset"), TimeoutError("late")
    attempt, pauses = FlakyCommit(first, second), list[float]()

    assert commit(attempt, pauses) == "committed"
    assert attempt.told == [None, first, second]
    assert pauses == [0.0, 0.5]


@pytest.mark.parametrize("error", [FileExistsError("refused"), KeyError("refused"), ValueError("a bug")])
def test_an_error_that_shows_the_outcome_of_a_commit_surfaces_at_once(error: Exception) -> None:
    attempt, pauses = FlakyCommit(error), list[float]()

    with pytest.raises(type(error)) as caught:
        commit(attempt, pauses)
    assert (caught.value, attempt.told, pauses) == (error, [None], [])


def test_the_last_error_of_a_commit_surfaces_when_attempts_are_used_up() -> None:
    errors = [OSError(str(number)) for number in range(9)]
    attempt, pauses = FlakyCommit(*errors), list[float]()

    with pytest.raises(OSError) as caught:
        commit(attempt, pauses)
    assert caught.value is errors[2]
    assert pauses == [0.0, 0.5]
