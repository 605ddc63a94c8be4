"""How far a group's rows go, by transaction ids or by a catalog's history; tables in memory, no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.delta.features import TRANSACTION_RETENTION
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import TableForm
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.sinks.delta.rules import (
    CHANGED_SINCE,
    NUMBER,
    REACHED,
    WATERMARKS,
    WHOLE_AT,
    SinkCommit,
    app_id,
    group_app_id,
)
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog
from pyspark_rocketmq.sinks.delta.task_files import TaskFolder
from pyspark_rocketmq.sinks.delta.watermarks import (
    WHOLE,
    has_rows_of,
    last_known_progress,
    read_progress,
    read_queues,
)
from tests.helpers.sink_rows import GROUP, Q0, Q1

ID0, ID1, COUNTER = app_id(GROUP, Q0), app_id(GROUP, Q1), group_app_id(GROUP)


class StoredTable:
    """A table in memory; implements ``Snapshot`` and ``CommitLog``."""

    table_uri = "/orders"
    storage: StorageOptions = NO_OPTIONS
    table_id = "id"
    location = "/orders"
    arrow_schema = pa.schema([])

    def __init__(self, *, in_catalog: bool = False) -> None:
        self.shows_transactions = not in_catalog
        self.commits: dict[int, dict[str, Any]] = {0: {"version": 0, "operation": "CREATE TABLE"}}
        self.ids: dict[str, int] | None = {}
        """Transaction ids; None if they cannot be read."""
        self.configuration: dict[str, str] = {}

    def commit(self, ids: Mapping[str, int] | None = None, **record: Any) -> None:
        """Make a commit of the group that sets these ids and has this record."""
        version = self.version + 1
        metadata = SinkCommit.of(GROUP, {}).metadata(**record)
        self.commits[version] = {"version": version, "operation": "WRITE", **metadata}
        if self.ids is not None:
            self.ids |= ids or {}

    def commit_of_another_group(self) -> None:
        """Make a commit that summarizes the log before it, and remove the commits before that one."""
        version = self.version + 1
        commit, log = SinkCommit.of("another", {}), log_of(self)
        assert log.newest_commit("another") is None
        metadata = commit.metadata(**log.record_for(commit))
        self.commits = {version: {"version": version, "operation": "WRITE", **metadata}}

    def clean_up(self) -> None:
        """Remove the commits before a commit of somebody else."""
        version = self.version + 1
        self.commits = {version: {"version": version, "operation": "WRITE"}}

    @property
    def log(self) -> StoredTable:
        return self

    @property
    def version(self) -> int:
        return max(self.commits)

    def form(self) -> TableForm:
        return TableForm(columns=(), partition_by=(), configuration=self.configuration, features=frozenset())

    def commit_info(self, version: int) -> dict[str, Any] | None:
        return self.commits.get(version)

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        for below in range(version - 1, -1, -1):
            if below not in self.commits:
                return
            yield self.commits[below]

    def all_transactions(self) -> Mapping[str, int]:
        if self.ids is None:
            raise OSError("no access")
        return self.ids

    def transaction_versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        raise OSError("no access")

    def as_of(self, version: int) -> StoredTable:
        return self

    def use_renewed_options(self) -> None: ...

    def is_still_there(self) -> bool:
        return True

    def may_have_newer(self) -> bool:
        return False

    def refresh(self) -> None: ...


def log_of(table: StoredTable) -> SinkLog:
    return SinkLog(table, TaskFolder("/orders", NO_OPTIONS))


@pytest.mark.parametrize("in_catalog", [False, True])
def test_a_new_table_has_no_rows(in_catalog: bool) -> None:
    log = log_of(StoredTable(in_catalog=in_catalog))

    assert read_progress(log, GROUP).watermarks == {}
    assert not has_rows_of(log, GROUP)


def test_transaction_ids_count_for_commits_of_files() -> None:
    table = StoredTable()
    table.commit({ID0: 3, ID1: 5}, **{REACHED: {ID0: 3, ID1: 5}})

    assert read_queues(log_of(table), GROUP, {Q0: 0}).watermarks == {Q0: 3}
    assert has_rows_of(log_of(table), GROUP)


@pytest.mark.parametrize("in_catalog", [False, True])
def test_the_record_counts_for_commits_by_spark(in_catalog: bool) -> None:
    """H10, J5: they set no ids of queues."""
    table = StoredTable(in_catalog=in_catalog)
    table.commit({ID0: 3}, **{REACHED: {ID0: 3}})
    table.commit({COUNTER: 1}, **{WATERMARKS: {ID0: 7}, NUMBER: 1})

    known = read_progress(log_of(table), GROUP)

    assert (known.watermarks, known.number) == ({ID0: 7}, 1)
    assert read_queues(log_of(table), GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 7}


def test_a_record_of_all_queues_needs_no_ids() -> None:
    """J5: a catalog may not let this process read the table's folder."""
    table = StoredTable(in_catalog=True)
    table.ids = None
    table.commit({}, **{WATERMARKS: {ID0: 7}, NUMBER: 1, WHOLE: True})

    assert read_progress(log_of(table), GROUP).watermarks == {ID0: 7}


def test_rows_that_came_by_the_path_are_counted_in_a_catalog() -> None:
    table = StoredTable(in_catalog=True)
    table.commit({ID0: 3}, **{REACHED: {ID0: 3}})

    assert read_progress(log_of(table), GROUP).watermarks == {ID0: 3}


def test_rows_that_came_by_a_path_that_cannot_be_read_are_an_error() -> None:
    """H1: taken for none, they would be doubled."""
    table = StoredTable(in_catalog=True)
    table.commit({ID0: 3}, **{REACHED: {ID0: 3}})
    table.ids = None

    with pytest.raises(
        SinkConflict,
        match=f"Earlier rows of group {GROUP} in the Delta table .* while DeltaSink named it by its path",
    ):
        read_progress(log_of(table), GROUP)


@pytest.mark.parametrize("in_catalog", [False, True])
def test_a_count_without_its_record_is_an_error(in_catalog: bool) -> None:
    """H10: the record was in a commit that the log no longer has."""
    table = StoredTable(in_catalog=in_catalog)
    table.commit({COUNTER: 1}, **{WATERMARKS: {ID0: 7}, NUMBER: 1})
    table.clean_up()

    with pytest.raises(SinkConflict, match="has been cleaned up"):
        read_progress(log_of(table), GROUP)


@pytest.mark.parametrize("ids", [{}, None])
@pytest.mark.parametrize(
    ("in_catalog", "retention"), [(False, "1 days"), (False, ""), (True, "1 days"), (True, "")]
)
def test_a_group_that_another_one_s_commit_names_is_not_taken_for_a_new_one(
    in_catalog: bool, retention: str, ids: dict[str, int] | None
) -> None:
    """H1, H10, J7: that commit summarizes the log from its beginning; the group's own commits are gone."""
    table = StoredTable(in_catalog=in_catalog)
    table.configuration = {TRANSACTION_RETENTION: f"interval {retention}"} if retention else {}
    table.commit({COUNTER: 1}, **{WATERMARKS: {ID0: 7}, NUMBER: 1, WHOLE: True})
    table.commit_of_another_group()
    table.ids = ids

    with pytest.raises((SinkConflict, OSError)):
        read_progress(log_of(table), GROUP)
    assert has_rows_of(log_of(table), GROUP)
    assert not has_rows_of(log_of(table), "a third one")
    if ids is not None:
        assert read_progress(log_of(table), "a third one").watermarks == {}
        assert last_known_progress(log_of(table), GROUP).watermarks == {}


def test_an_operator_goes_on_where_the_record_is_lost() -> None:
    table = StoredTable()
    table.commit({COUNTER: 4}, **{WATERMARKS: {ID0: 7}, NUMBER: 4})
    table.clean_up()

    known = last_known_progress(log_of(table), GROUP)

    assert (known.watermarks, known.number) == ({}, 4)


def test_forgotten_ids_are_an_error_if_no_commit_records_them() -> None:
    """H10: with this property writers drop ids."""
    table = StoredTable()
    table.configuration = {TRANSACTION_RETENTION: "interval 1 days"}
    table.commit({ID0: 3}, **{REACHED: {ID0: 3}})
    assert read_progress(log_of(table), GROUP).watermarks == {ID0: 3}
    table.clean_up()
    table.ids = {}

    with pytest.raises(
        SinkConflict, match=f"Cannot determine up to which offset .* has rows of group {GROUP}"
    ):
        read_progress(log_of(table), GROUP)


@pytest.mark.parametrize("in_catalog", [False, True])
def test_a_commit_without_a_whole_record_is_an_error_if_the_ids_are_gone(in_catalog: bool) -> None:
    """H10: writers dropped them while the table had the property; the commit with all queues is gone."""
    table = StoredTable(in_catalog=in_catalog)
    table.commit({ID0: 3, ID1: 5}, **{REACHED: {ID0: 3, ID1: 5}, WHOLE_AT: 1})
    table.commit({ID0: 4}, **{REACHED: {ID0: 4}, CHANGED_SINCE: 1})
    table.ids = {}
    assert read_progress(log_of(table), GROUP).watermarks == {ID0: 4, ID1: 5}
    del table.commits[1]

    with pytest.raises(SinkConflict, match="Cannot determine up to which offset"):
        read_progress(log_of(table), GROUP)


def test_a_later_generation_is_reported() -> None:
    table = StoredTable()
    table.commit({app_id(GROUP, Q0, 1): 2}, **{REACHED: {app_id(GROUP, Q0, 1): 2}})

    assert read_queues(log_of(table), GROUP, {Q0: 0, Q1: 0}).later == {Q0}


def test_watermarks_are_read_without_spark() -> None:
    """The command line reads them, and loading Spark takes seconds."""
    program = (
        "import json, sys, pyspark_rocketmq.sinks.delta.watermarks;"
        "print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == []
