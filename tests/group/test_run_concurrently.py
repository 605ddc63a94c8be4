from __future__ import annotations

import threading

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
