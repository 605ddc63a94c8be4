"""Commits of a Delta table: their actions, and the loop that follows other writers; no table, no delta-rs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta import commit as delta_commit
from pyspark_rocketmq.delta.commit import CommitNote, FileCommit, StoredFile, commit_on_top
from pyspark_rocketmq.delta.files import WrittenFile


class Attempts:
    """Commits that end as the test lists: an error, or the version that is made."""

    def __init__(self, *outcomes: Exception | int) -> None:
        self._outcomes = list(outcomes)
        self.followed: list[Exception | None] = []
        self.paused_s: list[float] = []

    def follow(self, failure: Exception | None) -> Callable[[], int]:
        self.followed.append(failure)
        return self._commit

    def _commit(self) -> int:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def run(self, *pauses_s: float) -> int:
        return commit_on_top("a commit", self.follow, pauses_s=pauses_s, sleep=self.paused_s.append)


def test_another_commit_is_followed_at_once() -> None:
    first, second = FileExistsError("first"), FileExistsError("second")
    attempts = Attempts(first, second, 7)

    assert attempts.run() == 7
    assert (attempts.followed, attempts.paused_s) == ([None, first, second], [])


def test_an_unknown_outcome_is_followed_after_a_pause() -> None:
    lost = DeltaError("no answer")
    attempts = Attempts(lost, FileExistsError(), 7)

    assert attempts.run(0.5) == 7
    assert (attempts.followed[:2], attempts.paused_s) == ([None, lost], [0.5])


def test_the_last_error_is_raised_when_the_pauses_are_used_up() -> None:
    last = DeltaError("second")
    attempts = Attempts(DeltaError("first"), last)

    with pytest.raises(DeltaError) as raised:
        attempts.run(0.5)

    assert raised.value is last


def test_a_commit_that_is_no_longer_possible_is_not_tried_again() -> None:
    def follow(_: Exception | None) -> Callable[[], int]:
        raise ValueError

    with pytest.raises(ValueError):
        commit_on_top("a commit", follow, pauses_s=(1.0,), sleep=lambda _: pytest.fail("waited"))


def test_conflicts_without_end_are_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_commit, "_MAX_CONFLICTS", 2)
    conflicts = [FileExistsError(str(number)) for number in range(6)]
    attempts = Attempts(*conflicts)

    with pytest.raises(FileExistsError, match="5"):
        attempts.run(0.5)

    assert attempts.paused_s == [0.5]


ADDED = WrittenFile(
    path="day=a b/part-1.parquet", size=10, num_records=2, stats_json="{}", partition_values={"day": "a b"}
)


def test_an_append_lists_its_information_its_files_and_its_transaction_ids() -> None:
    append = FileCommit(
        operation="WRITE",
        parameters={"mode": "Append"},
        added=[ADDED],
        note=CommitNote(metadata={"userMetadata": "mine"}, transactions={"app": 3}),
    )

    about, add, txn = append.actions(1_000)

    assert isinstance(about, dict)
    about["commitInfo"].pop("engineInfo")
    assert about["commitInfo"] == {
        "timestamp": 1_000,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "isBlindAppend": True,
        "userMetadata": "mine",
    }
    assert add == {
        "add": {
            "path": "day=a%20b/part-1.parquet",
            "partitionValues": {"day": "a b"},
            "size": 10,
            "modificationTime": 1_000,
            "dataChange": True,
            "stats": "{}",
        }
    }
    assert txn == '{"txn": {"appId": "app", "version": 3, "lastUpdated": 1000}}'


def test_a_compaction_changes_no_rows() -> None:
    compaction = FileCommit(
        operation="OPTIMIZE",
        parameters={},
        added=[ADDED],
        removed=[StoredFile("day=a%20b/part-0.parquet", 5, (("day", "a b"),))],
        changes_rows=False,
        note=CommitNote(),
    )

    about, remove, add = compaction.actions(1_000)

    assert isinstance(about, dict)
    assert isinstance(add, dict)
    assert about["commitInfo"]["isBlindAppend"] is False
    assert add["add"]["dataChange"] is False
    assert remove == {
        "remove": {
            "path": "day=a%20b/part-0.parquet",
            "deletionTimestamp": 1_000,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": {"day": "a b"},
            "size": 5,
        }
    }
