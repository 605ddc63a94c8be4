"""When a task commits by itself, by a clock that is passed in."""

from __future__ import annotations

from math import inf

import pytest

from pyspark_rocketmq.consume.task_commits import LONGEST_WAIT_S, CommitTimes


@pytest.fixture
def commits() -> CommitTimes:
    return CommitTimes()


def test_nothing_is_committed_while_nothing_is_settled(commits: CommitTimes) -> None:
    """I6: an idle task asks its database nothing."""
    assert not commits.rests(1.0)
    assert commits.due_s == inf


def test_a_busy_task_commits_a_while_after_the_first_settled_message(commits: CommitTimes) -> None:
    """I6: later ones do not put it off."""
    assert commits.settled(1.0)
    assert not commits.settled(1.004)

    assert commits.due_s == 1.0 + LONGEST_WAIT_S


def test_a_task_with_nothing_to_deliver_commits_immediately(commits: CommitTimes) -> None:
    """I6"""
    commits.settled(1.0)

    assert commits.rests(1.001)
    assert commits.due_s == 1.001
    assert not commits.rests(1.002), "it is due since"
    assert commits.due_s == 1.001


def test_a_commit_that_is_overdue_is_not_put_off(commits: CommitTimes) -> None:
    """I6: the one before took long, and the task comes to rest after it."""
    commits.settled(1.0)

    assert not commits.rests(2.0)
    assert commits.due_s == 1.0 + LONGEST_WAIT_S


def test_what_is_settled_while_a_commit_runs_is_in_the_next_one(commits: CommitTimes) -> None:
    """I6"""
    commits.settled(1.0)
    commits.begins()
    assert commits.due_s == inf

    assert commits.settled(1.5)
    assert commits.due_s == 1.5 + LONGEST_WAIT_S
