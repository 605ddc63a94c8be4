"""The sink as the committer uses it: begin, write in tasks, commit."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field, PrimitiveType

from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.table import TableForm
from pyspark_rocketmq.errors import OffsetError, OptionError, SchemaError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta import spark_writer
from pyspark_rocketmq.sinks.delta.appenders import FileAppender
from pyspark_rocketmq.sinks.delta.catalog import CatalogHome
from pyspark_rocketmq.sinks.delta.rules import SinkCommit, app_id, own_metadata
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.sink_log import SinkLog, log_of, opened_log
from pyspark_rocketmq.sinks.delta.table import MANY_COMMITS, PathHome
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of, run_batch
from tests.sinks.group_conformance import Batch, GroupConformance
from tests.sinks.sink_conformance import (
    SCHEMA,
    Stored,
    newest_in,
    rows,
    steps_of,
    with_newest,
)


def offsets_in(path: Path, queue: MessageQueue = Q0) -> list[int]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(table.filter(pc.field("queueId") == queue.queue_id).column("queueOffset").to_pylist())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def sink(path: Path) -> DeltaSink:
    made = DeltaSink(path, sleep=lambda _: None)
    made.prepare(SCHEMA)
    return made


# ------------------------------------------------------------------------------------------ exactly once


@pytest.mark.parametrize(
    ("partition_by", "by_delta_rs"),
    [((), False), (("step",), False), ((), True)],
    ids=["plain", "partitioned", "commits by delta-rs"],
)
class TestDeltaSink(GroupConformance):
    @pytest.fixture
    def sink(
        self,
        path: Path,
        partition_by: tuple[str, ...],
        by_delta_rs: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> DeltaSink:
        if by_delta_rs:
            # Then delta-rs makes the commits, as on storage of other machines.
            monkeypatch.setattr(LogFiles, "takes_commits", False)
        made = DeltaSink(path, partition_by=partition_by, sleep=lambda _: None)
        made.prepare(SCHEMA)
        return made

    @pytest.fixture
    def stored(self, path: Path) -> Stored:
        return lambda: steps_of(DeltaTable(path).to_pyarrow_table())


def test_rows_and_watermarks_arrive_in_one_commit(sink: DeltaSink, path: Path) -> None:
    """H1: exactly once into the Delta sink."""
    version = run_batch(sink, {Q0: 5, Q1: 2}, rows(Q0, 0, 5), rows(Q1, 0, 2))

    table = DeltaTable(path)
    assert version == table.version() == 1
    assert (offsets_in(path), offsets_in(path, Q1)) == ([0, 1, 2, 3, 4], [0, 1])
    assert table.transaction_version("rocketmq:order-etl:orders:broker-a:0") == 5
    assert table.transaction_version("rocketmq:order-etl:orders:broker-a:1") == 2


def test_a_batch_without_rows_still_moves_the_watermark(sink: DeltaSink, path: Path) -> None:
    """A4: a filter may leave no row of a range that is done nevertheless."""
    assert run_batch(sink, {Q0: 7}) == 1

    assert sink.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 7, Q1: 0}


def test_a_batch_of_nothing_makes_no_version(sink: DeltaSink, path: Path) -> None:
    assert run_batch(sink, {}) is None
    assert run_batch(sink, {Q0: 0}) is None
    assert DeltaTable(path).version() == 0


def test_a_batch_killed_before_its_commit_leaves_no_rows(sink: DeltaSink, path: Path) -> None:
    """H1: killed between writing files and committing them."""
    killed = sink.begin(GROUP, {Q0: 0})
    files_of(killed.task_writer(), iter([rows(Q0, 0, 3)]))

    assert offsets_in(path) == []
    run_batch(sink, {Q0: 4}, rows(Q0, 0, 4))
    assert offsets_in(path) == [0, 1, 2, 3]


def test_a_new_sink_object_finds_the_watermarks(sink: DeltaSink, path: Path) -> None:
    """H2: nothing is kept outside the table."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    restarted = pickle.loads(pickle.dumps(sink))
    restarted.prepare(SCHEMA)

    run_batch(restarted, {Q0: 5}, rows(Q0, 0, 5))

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_watermarks_survive_optimize_and_a_checkpoint_without_the_old_log(
    sink: DeltaSink, path: Path
) -> None:
    """H2: other writers and log cleanup do not touch them."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    for log_file in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        log_file.unlink()

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 5}


# ------------------------------------------------------------------------------------------ several writers


def test_a_batch_begun_earlier_on_the_same_sink_object_is_refused_as_well(
    sink: DeltaSink, path: Path
) -> None:
    """H5: the shared handle has moved on, the batch must notice."""
    earlier = sink.begin(GROUP, {Q0: 0})
    files = files_of(earlier.task_writer(), iter([rows(Q0, 0, 2)]))
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))

    with pytest.raises(SinkConflict, match="queue=0 from 0 to 5"):
        earlier.commit(files, {Q0: 2})

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_writers_of_different_queues_do_not_disturb_each_other(sink: DeltaSink, path: Path) -> None:
    """H5: two queries share the queues of one group."""
    other = DeltaSink(path)
    other.prepare(SCHEMA)
    mine, theirs = sink.begin(GROUP, {Q0: 0}), other.begin(GROUP, {Q1: 0})

    assert theirs.commit(files_of(theirs.task_writer(), iter([rows(Q1, 0, 2)])), {Q1: 2}) == 1
    assert mine.commit(files_of(mine.task_writer(), iter([rows(Q0, 0, 3)])), {Q0: 3}) == 2
    assert (offsets_in(path), offsets_in(path, Q1)) == ([0, 1, 2], [0, 1])
    assert sink.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 3, Q1: 2}


def test_two_threads_use_one_sink_object(sink: DeltaSink, path: Path) -> None:
    def consume(queue: MessageQueue) -> None:
        for start in range(0, 30, 3):
            run_batch(sink, {queue: start + 3}, rows(queue, start, start + 3), queues=[queue])

    with ThreadPoolExecutor(2) as executor:
        list(executor.map(consume, [Q0, Q1]))

    assert offsets_in(path) == offsets_in(path, Q1) == list(range(30))


@pytest.mark.parametrize("change", ["append", "delete", "optimize", "properties"])
def test_changes_of_others_between_begin_and_commit_do_no_harm(
    sink: DeltaSink, path: Path, change: str
) -> None:
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 5, 7)]))
    table = DeltaTable(path)
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: write_deltalake(path, pa.table(rows(Q1, 0, 1)), mode="append"),
        "delete": lambda: table.delete("queueOffset = 0"),
        "optimize": table.optimize.compact,
        "properties": lambda: table.alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 9 days"}
        ),
    }
    changes[change]()

    batch.commit(files, {Q0: 7})

    assert offsets_in(path)[-4:] == [3, 4, 5, 6]


def fail_commits(monkeypatch: pytest.MonkeyPatch, *, times: int, after_committing: bool = False) -> None:
    """Let ``FileAppender.put`` fail, with or without having committed before, and work afterwards."""
    put = FileAppender.put
    left = iter(range(times))

    def failing_put(appender: FileAppender, log: SinkLog, *args: Any) -> int:
        if next(left, None) is None:
            return put(appender, log, *args)
        if after_committing:
            table = TableSnapshot(DeltaTable(log.log.table_uri), needs_delta_rs=False)
            put(FileAppender(table), log_of(table), *args)
        raise CommitFailedError("the connection was reset")

    monkeypatch.setattr(FileAppender, "put", failing_put)


def test_an_error_of_a_commit_that_arrived_does_not_add_the_rows_twice(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: delta-rs#2279, an error means that the outcome is unknown."""
    fail_commits(monkeypatch, times=1, after_committing=True)

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1
    assert offsets_in(path) == [0, 1, 2]


def test_a_commit_that_failed_is_tried_again(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_commits(monkeypatch, times=2)

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1
    assert offsets_in(path) == [0, 1, 2]


@pytest.mark.parametrize("has_arrived", [True, False])
@pytest.mark.parametrize("by_delta_rs", [False, True])
def test_a_group_whose_outcome_is_unknown_is_added_once(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch, has_arrived: bool, by_delta_rs: bool
) -> None:
    """H1: storage is away for longer than the batch tries; the group comes again when it is back."""
    if by_delta_rs:
        monkeypatch.setattr(LogFiles, "takes_commits", False)
    batch = Batch(sink)
    batch.consume(Q0, 0, 2)
    written = batch.write(rows(Q0, 2, 4), rows(Q1, 0, 1))
    spans = {Q0: (2, 4), Q1: (0, 1)}
    with monkeypatch.context() as away:
        fail_commits(away, times=1, after_committing=has_arrived)
        away.setattr(SinkLog, "find_commit", _unreachable)
        away.setattr(TableSnapshot, "refresh", _unreachable)
        with pytest.raises(SinkConflict, match=r"could not be committed .* tries"):
            batch.commit("group", spans, written)
    assert offsets_in(path) == ([0, 1, 2, 3] if has_arrived else [0, 1])

    other = DeltaSink(path)
    other.prepare(SCHEMA)
    run_batch(other, {Q0: 3}, rows(Q0, 0, 3), group="audit")
    for _ in range(2):
        batch.commit("group", spans, written)
    batch.consume(Q0, 4, 5)

    assert offsets_in(path) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert offsets_in(path, Q1) == [0]


def test_a_group_that_arrived_and_whose_queue_was_moved_then_is_known(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, C5: the next owner has gone on from there; the rows are not added again."""
    batch = Batch(sink)
    written = batch.write(rows(Q0, 0, 2))
    with monkeypatch.context() as away:
        fail_commits(away, times=1, after_committing=True)
        away.setattr(TableSnapshot, "refresh", _unreachable)
        with pytest.raises(SinkConflict):
            batch.commit("group", {Q0: (0, 2)}, written)
    owner = DeltaSink(path)
    owner.prepare(SCHEMA)
    run_batch(owner, {Q0: 3}, rows(Q0, 0, 3))

    batch.commit("group", {Q0: (0, 2)}, written)
    with pytest.raises(SinkMoved):
        batch.consume(Q0, 2, 4)

    assert offsets_in(path) == [0, 1, 2]


def _unreachable(*_: object) -> Any:
    raise DeltaError("storage does not answer")


def test_a_commit_that_keeps_failing_says_why(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_commits(monkeypatch, times=100)

    with pytest.raises(
        SinkConflict, match=r"order-etl could not be committed to .* the connection was reset"
    ):
        run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))


def test_watermarks_moved_by_others_are_followed_through_their_commits(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H5: asking delta-rs for every id again would cost a millisecond each."""
    sink.begin(GROUP, {Q0: 0, Q1: 0})
    other = DeltaSink(path)
    other.prepare(SCHEMA)
    run_batch(other, {Q0: 5}, rows(Q0, 0, 5))
    write_deltalake(path, pa.table(rows(Q1, 0, 1)), mode="append")
    run_batch(other, {Q0: 7}, rows(Q0, 5, 7))
    monkeypatch.setattr(DeltaTable, "transaction_version", None)

    assert sink.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 7, Q1: 0}


@pytest.mark.parametrize("commits", [3, 30])
def test_watermarks_are_read_again_when_commits_are_cleaned_up_or_many(
    sink: DeltaSink, path: Path, commits: int
) -> None:
    sink.begin(GROUP, {Q0: 0})
    other = DeltaSink(path)
    other.prepare(SCHEMA)
    for end in range(1, commits + 1):
        run_batch(other, {Q0: end}, rows(Q0, end - 1, end))
    DeltaTable(path).create_checkpoint()
    for log_file in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        log_file.unlink()

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: commits}


def test_watermarks_of_many_queues_are_read_together(
    sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: each look-up of delta-rs goes through the log; a thousand took eight seconds."""
    queues = {Q0._replace(queue_id=number): 0 for number in range(100)}
    sink.begin(GROUP, queues).commit([], dict.fromkeys(list(queues)[:60], 3))
    DeltaTable(path).create_checkpoint()
    run_batch(sink, {Q0: 7}, rows(Q0, 3, 7))
    anew = DeltaSink(path)
    anew.prepare(SCHEMA)
    asked: list[str] = []
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda _, name: asked.append(name))

    expected = {queue: 3 * (queue.queue_id < 60) for queue in queues} | {Q0: 7}
    assert anew.begin(GROUP, queues).watermarks == expected
    assert anew.begin(GROUP, queues).watermarks == expected
    assert asked == []


def test_a_checkpoint_made_since_says_nothing_of_watermarks_before(sink: DeltaSink, path: Path) -> None:
    """H1: they are compared with the version that a batch began at."""
    queues = {Q0._replace(queue_id=number): 0 for number in range(40)}
    sink.begin(GROUP, queues).commit([], dict.fromkeys(queues, 3))
    before = opened_log(DeltaTable(path))
    sink.begin(GROUP, queues).commit([], dict.fromkeys(queues, 9))
    DeltaTable(path).create_checkpoint()

    ids = [app_id(GROUP, queue) for queue in queues]
    assert before.table.transaction_versions(ids) == dict.fromkeys(ids, 3)


def test_the_log_is_looked_through_from_the_version_that_is_stood_at(sink: DeltaSink, path: Path) -> None:
    for end in range(1, 5):
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end))
    newest = SinkCommit(GROUP, {}, own_metadata(DeltaTable(path).history(1)[0])["rocketmqCommit"])
    DeltaTable(path).restore(1)

    old, new = opened_log(DeltaTable(path, version=3)), opened_log(DeltaTable(path))
    assert (old.find_commit(newest, 0), new.find_commit(newest, 0), new.find_commit(newest, 4)) == (
        None,
        4,
        None,
    )
    assert [log.restored_since_last_commit(GROUP) for log in (old, new)] == [None, 5]
    with pytest.raises(DeltaError, match="is not in the table's log"):
        new.version_of(newest, 4)


# ------------------------------------------------------------------------------------------ RESTORE and rewin


@pytest.mark.parametrize("is_running", [True, False])
def test_a_restore_after_the_last_commit_is_noticed(sink: DeltaSink, path: Path, is_running: bool) -> None:
    """H1, H7: RESTORE keeps the watermarks although the rows are gone."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    DeltaTable(path).restore(1)
    if not is_running:
        sink = DeltaSink(path)
        sink.prepare(SCHEMA)

    with pytest.raises(SinkConflict, match=r"restored at version 3, .*follow_restore\('order-etl', STORE\)"):
        sink.begin(GROUP, {Q0: 0})


def test_rows_removed_by_a_restore_stay_removed_if_accepted(sink: DeltaSink, path: Path) -> None:
    """H7: by what the error says; rows from there on are added."""
    run_batch(sink, {Q0: 3, Q1: 2}, rows(Q0, 0, 3), rows(Q1, 0, 2))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    DeltaTable(path).restore(1)
    with pytest.raises(SinkConflict, match="To accept the gap") as refusal:
        sink.begin(GROUP, {Q0: 0})
    advised = re.search(
        r"`(from .*?)`.*`pyspark-rocketmq offsets reset --to earliest --conf FILE`", str(refusal.value)
    )
    assert advised is not None

    exec(advised[1])

    run_batch(sink, {Q0: 7}, rows(Q0, 5, 7))
    assert (offsets_in(path), offsets_in(path, Q1)) == ([0, 1, 2, 5, 6], [0, 1])


def test_a_restore_while_a_batch_runs_is_noticed_at_its_commit(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 3, 5)]))
    DeltaTable(path).restore(0)

    with pytest.raises(SinkConflict, match="restored at version 2"):
        batch.commit(files, {Q0: 5})


def test_a_restore_before_the_last_commit_is_long_dealt_with(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    DeltaTable(path).restore(0)
    sink.rewind(GROUP, {Q0: 0})
    restarted = DeltaSink(path)
    restarted.prepare(SCHEMA)

    run_batch(restarted, {Q0: 3}, rows(Q0, 0, 3))

    assert offsets_in(path) == [0, 1, 2]
    assert restarted.begin(GROUP, {Q0: 0}).watermarks == {Q0: 3}


def test_a_restore_does_not_concern_a_group_that_never_wrote(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    DeltaTable(path).restore(0)

    assert sink.begin("another", {Q0: 0}).watermarks == {Q0: 0}


def test_the_last_commit_is_found_below_many_commits_of_others(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    for number in range(25):
        write_deltalake(path, pa.table(rows(Q1, number, number + 1)), mode="append")
    restarted = DeltaSink(path)
    restarted.prepare(SCHEMA)

    assert restarted.begin(GROUP, {Q0: 0}).watermarks == {Q0: 3}


def test_rewinding_has_deleted_rows_written_again(sink: DeltaSink, path: Path) -> None:
    """F5: an operator moves a group back to have its rows again."""
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))
    DeltaTable(path).delete("queueOffset >= 2")

    sink.rewind(GROUP, {Q0: 2})
    run_batch(sink, {Q0: 5}, rows(Q0, 2, 5, "again"))

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_an_operator_sets_the_watermark_of_a_queues_last_generation(sink: DeltaSink) -> None:
    """F4, H2: rows of the one before it are of other messages."""
    run_batch(sink, {Q0: 9}, rows(Q0, 0, 9))
    sink.begin(GROUP, {Q0: 1}).commit([], {Q0: 5})

    sink.rewind(GROUP, {Q0: 2, Q1: 1})

    assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 1): 2, QueueGeneration(Q1, 0): 1}
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 9}


def test_rewinding_to_a_negative_offset_is_refused(sink: DeltaSink) -> None:
    with pytest.raises(OffsetError, match="queue=0 to -1"):
        sink.rewind(GROUP, {Q0: -1})


# ------------------------------------------------------------------------------------------ bugs are loud


def test_beginning_without_prepare_is_refused(path: Path, sink: DeltaSink) -> None:
    with pytest.raises(SchemaError, match=r"Call DeltaSink\.prepare"):
        DeltaSink(path).begin(GROUP, {Q0: 0})


def test_a_table_that_vanished_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="There is no Delta table at"):
        DeltaSink(tmp_path / "nowhere").begin(GROUP, {Q0: 0})


# ------------------------------------------------------------------------------------------ prepare


def test_a_new_table_has_protocol_1_2_and_the_given_columns(sink: DeltaSink, path: Path) -> None:
    table = DeltaTable(path)

    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    assert pa.schema(table.schema().to_arrow()) == SCHEMA


def test_an_existing_table_with_the_same_columns_in_another_order_is_used(path: Path) -> None:
    DeltaTable.create(path, schema=pa.schema(list(reversed(list(SCHEMA)))))
    sink = DeltaSink(path)
    sink.prepare(SCHEMA)

    run_batch(sink, {Q0: 2}, rows(Q0, 0, 2))

    assert offsets_in(path) == [0, 1]


def test_a_path_may_have_spaces_and_letters_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "tägliche orders"
    sink, other = DeltaSink(path), DeltaSink(path)
    sink.prepare(SCHEMA)
    other.prepare(SCHEMA)

    for start in range(0, 6, 2):
        run_batch(sink, {Q0: start + 1}, rows(Q0, start, start + 1))
        run_batch(other, {Q0: start + 2}, rows(Q0, start + 1, start + 2))

    assert offsets_in(path) == [0, 1, 2, 3, 4, 5]


def test_a_relative_path_means_the_drivers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks and the planner work in other folders."""
    monkeypatch.chdir(tmp_path)

    assert DeltaSink("./orders").path == str(tmp_path / "orders")


def test_a_table_that_gets_many_commits_is_created_with_a_short_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: 172,800 commits a day would stay for 30 days."""
    sink = DeltaSink(path)
    sink.expect_many_commits()
    with caplog.at_level("WARNING", logger="pyspark_rocketmq"):
        sink.prepare(SCHEMA)
        again = DeltaSink(path)
        again.expect_many_commits()
        again.prepare(SCHEMA)

    assert DeltaTable(path).metadata().configuration == dict(MANY_COMMITS)
    assert not caplog.messages


def test_an_existing_table_that_gets_many_commits_is_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = {"delta.logRetentionDuration": "interval 2 days"}
    DeltaTable.create(path, schema=SCHEMA, configuration=configuration)
    sink = DeltaSink(path)
    sink.expect_many_commits()
    with caplog.at_level("WARNING", logger="pyspark_rocketmq"):
        sink.prepare(SCHEMA)

    assert DeltaTable(path).metadata().configuration == configuration
    [message] = caplog.messages
    assert "'delta.deletedFileRetentionDuration' = 'interval 1 day'" in message
    assert "logRetentionDuration" not in message


_LOG = "delta.logRetentionDuration"


@pytest.mark.parametrize("kind", ["Spark writes it", "transaction ids expire"])
def test_a_log_that_has_the_watermarks_is_not_to_be_shortened(
    path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H2, J5: a group that was idle for longer would be refused."""
    expiring = {"delta.setTransactionRetentionDuration": "interval 7 days"}
    by_spark = kind == "Spark writes it"
    table = DeltaTable.create(path, schema=SCHEMA, configuration={} if by_spark else expiring)
    if by_spark:
        table.alter.add_constraint({"counted": "queueOffset >= 0"})
    sink = DeltaSink(path)
    sink.expect_many_commits()
    with (
        caplog.at_level("WARNING", logger="pyspark_rocketmq"),
        pytest.raises(OptionError, match="CHECK constraint") if by_spark else nullcontext(),
    ):
        sink.prepare(SCHEMA)

    [message] = caplog.messages
    assert all(name in message for name in MANY_COMMITS if name != _LOG)
    assert _LOG not in message


def test_a_table_in_a_catalog_is_created_with_an_ordinary_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2, J5: Spark writes it."""
    given: list[Mapping[str, str]] = []

    def create(
        _: CatalogHome, schema: pa.Schema, partition_by: object, properties: Mapping[str, str]
    ) -> None:
        given.append(properties)
        raise OptionError(("there is no catalog",))

    monkeypatch.setattr(CatalogHome, "open", lambda _: None)
    monkeypatch.setattr(CatalogHome, "create", create)
    sink = DeltaSink("main.shop.orders")
    sink.expect_many_commits()
    with pytest.raises(OptionError, match="there is no catalog"):
        sink.prepare(SCHEMA)

    assert given == [{name: value for name, value in MANY_COMMITS.items() if name != _LOG}]


def test_prepare_says_which_path_it_chose(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="pyspark_rocketmq"):
        DeltaSink(path).prepare(SCHEMA)

    assert f"sink writes files and commits by itself path={path} version=0" in caplog.messages


def test_other_columns_are_refused_naming_each_difference(path: Path) -> None:
    others = SCHEMA.remove(4).append(pa.field("note", pa.string()))
    DeltaTable.create(path, schema=others.set(2, pa.field("queueId", pa.int64())))

    with pytest.raises(SchemaError) as refusal:
        DeltaSink(path, partition_by=["topic"]).prepare(SCHEMA)

    text = str(refusal.value)
    assert "missing in the table: step string" in text
    assert "DeltaSink(schema_evolution=True), or option schemaEvolution=true" in text
    assert "only in the table: note string" in text
    assert "of another type: queueId is bigint instead of int" in text
    assert "partitioned by () instead of (topic)" in text


def test_a_column_of_another_type_is_not_said_to_be_cured_by_schema_evolution(path: Path) -> None:
    DeltaTable.create(path, schema=SCHEMA.set(2, pa.field("queueId", pa.int64())))

    with pytest.raises(SchemaError, match="queueId is bigint instead of int") as refusal:
        DeltaSink(path).prepare(SCHEMA)

    assert "schema_evolution" not in str(refusal.value)


def test_a_table_altered_while_the_query_runs_is_refused(sink: DeltaSink, path: Path) -> None:
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 0, 1)]))
    DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])

    with pytest.raises(SchemaError, match="only in the table: note string"):
        batch.commit(files, {Q0: 1})
    with pytest.raises(SchemaError, match="only in the table: note string"):
        sink.begin(GROUP, {Q0: 0})


@pytest.mark.parametrize("column", ["topic", "brokerName", "queueId", "queueOffset"])
def test_rows_without_their_messages_position_are_refused(path: Path, column: str) -> None:
    """H6: the position is the only unique key."""
    without = SCHEMA.remove(SCHEMA.get_field_index(column))

    with pytest.raises(SchemaError, match=rf"position of their message: missing in the rows: {column} "):
        DeltaSink(path).prepare(without)

    assert not path.exists()


@pytest.mark.parametrize(
    ("partition_by", "why"),
    [(["nothing"], "'nothing' has type none"), (["amount"], "'amount' has type double")],
)
def test_partition_columns_that_cannot_be_such_are_refused(
    path: Path, partition_by: list[str], why: str
) -> None:
    schema = SCHEMA.append(pa.field("amount", pa.float64()))

    with pytest.raises(OptionError, match=why):
        DeltaSink(path, partition_by=partition_by).prepare(schema)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have left a session in this process."""
    monkeypatch.setattr(spark_writer, "spark_address", lambda spark, path: None)


def test_a_check_constraint_is_refused_where_spark_cannot_write(path: Path, no_spark: None) -> None:
    DeltaTable.create(path, schema=SCHEMA)
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    with pytest.raises(OptionError, match="CHECK constraint positive"):
        DeltaSink(path).prepare(SCHEMA)


def test_a_constraint_added_while_the_query_runs_is_refused_where_spark_cannot_write(
    sink: DeltaSink, path: Path, no_spark: None
) -> None:
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    with pytest.raises(OptionError, match="CHECK constraint positive"):
        sink.begin(GROUP, {Q0: 0})


def with_columns_marked(path: Path, metadata: dict[str, dict[str, str]], protocol: dict[str, int]) -> None:
    """Replace the table's protocol, and give its columns this metadata, as only Spark can."""
    created = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in created.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for field in schema["fields"]:
                field["metadata"] = metadata.get(field["name"], {})
            action["metaData"]["schemaString"] = json.dumps(schema)
    created.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")], ids=["generated", "of a time"])
def test_partition_columns_of_a_table_that_spark_writes_are_left_to_spark(
    path: Path, kind: pa.DataType, no_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: a generated one, which no row has, and one of a type that has several texts."""
    with_day = SCHEMA.append(pa.field("day", kind))
    DeltaTable.create(path, schema=with_day, partition_by=["day"])
    if pa.types.is_date(kind):
        generated = {"day": {"delta.generationExpression": "CAST(step AS DATE)"}}
        with_columns_marked(path, generated, {"minReaderVersion": 1, "minWriterVersion": 4})
        columns, reason = SCHEMA, "generated column day"
    else:
        DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})
        columns, reason = with_day, "CHECK constraint positive"
    with pytest.raises(OptionError, match=reason):
        DeltaSink(path).prepare(columns)

    monkeypatch.setattr(PathHome, "check_spark", lambda *_: None)
    sink = DeltaSink(path)
    sink.prepare(columns)

    assert sink.begin(GROUP, {Q0: 0}).is_by_spark


def test_partition_columns_are_checked_when_spark_need_not_write_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: the type of this one has several texts."""
    monkeypatch.setattr(PathHome, "check_spark", lambda *_: None)
    schema = SCHEMA.append(pa.field("amount", pa.float64()))
    DeltaTable.create(path, schema=schema, partition_by=["amount"])
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})
    sink = DeltaSink(path)
    sink.prepare(schema)
    assert sink.begin(GROUP, {Q0: 0}).is_by_spark

    DeltaTable(path).alter.drop_constraint("positive")

    with pytest.raises(OptionError, match="partition column 'amount' has type double"):
        sink.begin(GROUP, {Q0: 0})


# ------------------------------------------------------------------------------------------ readers


def test_readers_skip_files_by_the_statistics(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 10}, rows(Q0, 0, 10))
    run_batch(sink, {Q0: 20}, rows(Q0, 10, 20))

    dataset = DeltaTable(path).to_pyarrow_dataset()
    wanted = pc.field("queueOffset") >= 15
    assert dataset.count_rows(filter=wanted) == 5
    assert len(list(dataset.get_fragments(filter=wanted))) == 1
    query = QueryBuilder().register("orders", DeltaTable(path))
    counted = query.execute('SELECT count(*) AS n FROM orders WHERE "queueOffset" < 5').read_all()
    assert pa.table(counted).column("n").to_pylist() == [5]


def test_the_log_names_group_and_commit_and_what_was_seen(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))

    metadata = json.loads(DeltaTable(path).history(1)[0]["userMetadata"])
    assert metadata["consumerGroup"] == GROUP
    assert set(metadata) == {"consumerGroup", "rocketmqCommit", "seen", "reached"}


def test_a_task_loads_no_delta_rs(sink: DeltaSink) -> None:
    """Task processes are forked, and delta-rs must not be in a process that forks."""
    writer = pickle.dumps(sink.begin(GROUP, {Q0: 0}).task_writer())
    code = f"import pickle, sys; pickle.loads({writer!r}); print('deltalake' in sys.modules)"

    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )

    assert printed.stdout.strip() == "False"


def test_only_queues_that_grow_are_written(sink: DeltaSink, path: Path) -> None:
    run_batch(sink, {Q0: 5, Q1: 2}, rows(Q0, 0, 5))
    run_batch(sink, {Q0: 6, Q1: 2}, rows(Q0, 5, 6))

    actions = map(json.loads, (path / "_delta_log" / f"{2:020d}.json").read_text().splitlines())
    transactions = [action["txn"] for action in actions if "txn" in action]
    assert [(each["appId"], each["version"]) for each in transactions] == [(app_id(GROUP, Q0), 6)]


# --------------------------------------------------------------------------------------------- schema evoluti

WITH_AMOUNT = SCHEMA.append(pa.field("amount", pa.float64()))


def evolving(path: Path, schema: pa.Schema, **more: Any) -> DeltaSink:
    made = DeltaSink(path, schema_evolution=True, sleep=lambda _: None, **more)
    made.prepare(schema)
    return made


def with_amount(queue: MessageQueue, start: int, end: int, step: str = "paid") -> pa.RecordBatch:
    plain = rows(queue, start, end, step)
    return plain.append_column(WITH_AMOUNT.field("amount"), pa.array([1.5] * plain.num_rows))


def amounts(path: Path) -> list[float | None]:
    table = DeltaTable(path).to_pyarrow_table()
    return [table["amount"].to_pylist()[at] for at in pc.sort_indices(table["queueOffset"]).to_pylist()]


@pytest.mark.parametrize("schema_evolution", [False, True])
def test_columns_that_differ_in_case_only_are_refused_in_a_sentence(
    path: Path, schema_evolution: bool
) -> None:
    """H1: Delta has them for one."""
    with pytest.raises(SchemaError, match="cannot have both columns 'step' and 'Step'"):
        DeltaSink(path).prepare(SCHEMA.append(pa.field("Step", pa.string())))

    DeltaSink(path).prepare(SCHEMA)
    other = pa.schema(
        [pa.field("Step" if field.name == "step" else field.name, field.type) for field in SCHEMA]
    )
    with pytest.raises(SchemaError, match="cannot have both columns 'step' and 'Step'"):
        DeltaSink(path, schema_evolution=schema_evolution).prepare(other)


@pytest.mark.parametrize("partition_by", [(), ("step",)], ids=["plain", "partitioned"])
def test_a_new_column_is_added_and_null_in_older_rows(path: Path, partition_by: tuple[str, ...]) -> None:
    """H1: the listener's next release emits one column more; watermarks stay."""
    run_batch(evolving(path, SCHEMA, partition_by=partition_by), {Q0: 2}, rows(Q0, 0, 2))

    newer = evolving(path, WITH_AMOUNT)
    run_batch(newer, {Q0: 4}, with_amount(Q0, 0, 4))

    assert amounts(path) == [None, None, 1.5, 1.5]


def test_two_queries_with_different_columns_share_an_evolving_table(path: Path) -> None:
    """H5: each adds its own rows; the older one has nulls in what it does not know."""
    older = evolving(path, SCHEMA)
    begun = older.begin(GROUP, {Q1: 0})
    newer = evolving(path, WITH_AMOUNT)
    run_batch(newer, {Q0: 1}, with_amount(Q0, 0, 1))

    run_batch(older, {Q1: 3}, rows(Q1, 1, 3))

    assert amounts(path) == [1.5, None, None]
    assert begun.task_writer().schema == SCHEMA
    with pytest.raises(SchemaError, match="only in the table: amount"):
        run_batch(prepared_without_evolution(path), {Q0: 9}, rows(Q0, 5, 9))


def prepared_without_evolution(path: Path) -> DeltaSink:
    made = DeltaSink(path, sleep=lambda _: None)
    made.prepare(SCHEMA)
    return made


def test_a_merge_keeps_columns_that_its_rows_do_not_have(path: Path) -> None:
    """H6: another query's column keeps its values."""
    keys = ("step",)
    run_batch(evolving(path, WITH_AMOUNT, merge_keys=keys), {Q0: 1}, with_amount(Q0, 0, 1, "paid"))

    run_batch(evolving(path, SCHEMA, merge_keys=keys), {Q0: 3}, rows(Q0, 1, 2, "paid"), rows(Q0, 2, 3, "new"))

    table = DeltaTable(path).to_pyarrow_table()
    found = zip(
        table["step"].to_pylist(), table["queueOffset"].to_pylist(), table["amount"].to_pylist(), strict=True
    )
    assert sorted(found) == [("new", 2, None), ("paid", 1, 1.5)]


def test_evolution_changes_no_type_and_needs_no_new_column(path: Path) -> None:
    evolving(path, WITH_AMOUNT)
    before = DeltaTable(path).version()

    evolving(path, WITH_AMOUNT)
    with pytest.raises(SchemaError, match="of another type: amount is double instead of string"):
        evolving(path, SCHEMA.append(pa.field("amount", pa.string())))

    assert DeltaTable(path).version() == before


def test_columns_that_another_query_has_just_added_are_taken_as_they_are(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H5: both begin at the same moment; who comes second is refused by delta-rs, and looks again."""
    evolving(path, SCHEMA)
    other = DeltaTable(path)
    real = TableSnapshot.form

    def form_then_alter(table: TableSnapshot) -> TableForm:
        found = real(table)
        monkeypatch.setattr(TableSnapshot, "form", real)
        other.alter.add_columns([Field("amount", PrimitiveType("double"))])
        return found

    monkeypatch.setattr(TableSnapshot, "form", form_then_alter)
    evolving(path, WITH_AMOUNT)

    assert [field.name for field in DeltaTable(path).schema().fields][-1] == "amount"


def test_a_watermark_that_was_set_back_forgets_the_newest_message(tmp_path: Path) -> None:
    """H10: it is above the watermark, and of rows that are to be written again."""
    sink = DeltaSink(tmp_path / "orders")
    sink.prepare(SCHEMA)
    with_newest(sink, {Q0: 9, Q1: 1}, {Q0: "[8,1008,640]", Q1: "[0,1000,32]"})

    sink.rewind(GROUP, {Q0: 4})

    assert newest_in(sink, {Q0: 0, Q1: 0}) == {Q1: "[0,1000,32]"}
