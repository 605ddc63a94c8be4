from __future__ import annotations

import threading
from functools import partial

import pytest

from pyspark_rocketmq.client.cluster import run_concurrently


def test_calls_are_made_at_the_same_time() -> None:
    """Each waits for the others, so one after the other they would never end."""
    meeting = threading.Barrier(3, timeout=30.0)
    done: list[int] = []

    def call(number: int) -> None:
        meeting.wait()
        done.append(number)

    run_concurrently([lambda number=number: call(number) for number in range(3)])  # type: ignore[misc]

    assert sorted(done) == [0, 1, 2]


def test_no_call_is_no_work() -> None:
    run_concurrently([])


def test_a_process_that_starts_no_threads_any_more_makes_them_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From Python 3.12 on, in whatever runs at the end of the process."""
    done: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    run_concurrently([lambda number=number: done.append(number) for number in range(3)])  # type: ignore[misc]

    assert sorted(done) == [0, 1, 2]


def test_results_are_in_the_order_of_the_calls_however_few_threads_there_are() -> None:
    names: set[str] = set()

    def call(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    calls = [partial(call, number) for number in range(100)]

    assert run_concurrently(calls, at_most=3) == list(range(100))
    assert len(names) <= 3


def test_an_error_is_raised_when_all_that_were_begun_have_ended_and_no_more_begin() -> None:
    is_refused = threading.Event()
    done: list[int] = []

    def refuse() -> int:
        is_refused.set()
        raise ValueError("no")

    def wait() -> int:
        assert is_refused.wait(30.0)
        done.append(1)
        return 1

    def never() -> int:
        done.append(2)
        return 2

    with pytest.raises(ValueError, match="no"):
        run_concurrently([wait, refuse], at_most=2)
    with pytest.raises(ValueError, match="no"):
        run_concurrently([refuse, never], at_most=1)

    assert done == [1]
