"""The sink as the committer uses it: begin, write in tasks, commit."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field, PrimitiveType

from pyspark_rocketmq.consume.watermark import app_id
from pyspark_rocketmq.errors import OffsetError, OptionError, SchemaError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.delta_log import TableLog
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from tests.helpers.sink_rows import GROUP, POSITION, Q0, Q1, batch_of, run_batch

SCHEMA = pa.schema([*POSITION, ("step", pa.string())])


def rows(queue: MessageQueue, start: int, end: int, step: str = "created") -> pa.RecordBatch:
    return batch_of(SCHEMA, ((queue, queue_offset, step) for queue_offset in range(start, end)))


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


def test_rows_and_watermarks_arrive_in_one_commit(sink: DeltaSink, path: Path):
    """H1: exactly once into the Delta sink."""
    version = run_batch(sink, {Q0: 5, Q1: 2}, rows(Q0, 0, 5), rows(Q1, 0, 2))

    table = DeltaTable(path)
    assert version == table.version() == 1
    assert (offsets_in(path), offsets_in(path, Q1)) == ([0, 1, 2, 3, 4], [0, 1])
    assert table.transaction_version("rocketmq:order-etl:orders:broker-a:0") == 5
    assert table.transaction_version("rocketmq:order-etl:orders:broker-a:1") == 2


def test_a_replay_that_gets_farther_adds_only_the_rows_beyond(sink: DeltaSink, path: Path):
    """H1: run 1 ended at 3 and was killed before the offsets; run 2 gets to 5."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))

    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_a_replay_that_gets_less_far_changes_nothing(sink: DeltaSink, path: Path):
    """H1: run 1 ended at 5; in run 2 the listener suspends at 3."""
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) is None
    assert offsets_in(path) == [0, 1, 2, 3, 4]
    assert sink.begin(GROUP, [Q0]).watermarks == {Q0: 5}


def test_a_batch_without_rows_still_moves_the_watermark(sink: DeltaSink, path: Path):
    """A4: a filter may leave no row of a range that is done nevertheless."""
    assert run_batch(sink, {Q0: 7}) == 1

    assert sink.begin(GROUP, [Q0, Q1]).watermarks == {Q0: 7, Q1: 0}


def test_a_batch_of_nothing_makes_no_version(sink: DeltaSink, path: Path):
    assert run_batch(sink, {}) is None
    assert run_batch(sink, {Q0: 0}) is None
    assert DeltaTable(path).version() == 0


def test_a_batch_killed_before_its_commit_leaves_no_rows(sink: DeltaSink, path: Path):
    """H1: killed between writing files and committing them."""
    killed = sink.begin(GROUP, [Q0])
    killed.task_writer().write(iter([rows(Q0, 0, 3)]))

    assert offsets_in(path) == []
    run_batch(sink, {Q0: 4}, rows(Q0, 0, 4))
    assert offsets_in(path) == [0, 1, 2, 3]


def test_a_second_attempt_of_a_task_adds_its_rows_once(sink: DeltaSink, path: Path):
    """D1: task retry and speculation write files that nobody commits."""
    batch = sink.begin(GROUP, [Q0])
    batch.task_writer().write(iter([rows(Q0, 0, 3)]))
    files = batch.task_writer().write(iter([rows(Q0, 0, 3)]))

    batch.commit(files, {Q0: 3})

    assert offsets_in(path) == [0, 1, 2]


def test_a_new_sink_object_finds_the_watermarks(sink: DeltaSink, path: Path):
    """H2: nothing is kept outside the table."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    restarted = pickle.loads(pickle.dumps(sink))
    restarted.prepare(SCHEMA)

    run_batch(restarted, {Q0: 5}, rows(Q0, 0, 5))

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_groups_have_watermarks_of_their_own(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))

    assert sink.begin("another", [Q0]).watermarks == {Q0: 0}


def test_watermarks_survive_optimize_and_a_checkpoint_without_the_old_log(sink: DeltaSink, path: Path):
    """H2: other writers and log cleanup leave them alone."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    for log_file in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        log_file.unlink()

    assert sink.begin(GROUP, [Q0]).watermarks == {Q0: 5}


# ------------------------------------------------------------------------------------------ several writers


def test_a_stale_second_writer_of_a_queue_is_refused(sink: DeltaSink, path: Path):
    """C5, H5: a zombie is fenced in the sink, too."""
    zombie_sink = DeltaSink(path)
    zombie_sink.prepare(SCHEMA)
    zombie = zombie_sink.begin(GROUP, [Q0])
    files = zombie.task_writer().write(iter([rows(Q0, 0, 9, "zombie")]))
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))

    with pytest.raises(SinkMoved, match=r"Another consumer of group order-etl .* queue=0 from 0 to 5"):
        zombie.commit(files, {Q0: 9})

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_a_batch_begun_earlier_on_the_same_sink_object_is_refused_as_well(sink: DeltaSink, path: Path):
    """H5: the shared handle has moved on, the batch must notice."""
    earlier = sink.begin(GROUP, [Q0])
    files = earlier.task_writer().write(iter([rows(Q0, 0, 2)]))
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))

    with pytest.raises(SinkConflict, match="queue=0 from 0 to 5"):
        earlier.commit(files, {Q0: 2})

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_writers_of_different_queues_do_not_disturb_each_other(sink: DeltaSink, path: Path):
    """H5: two queries share the queues of one group."""
    other = DeltaSink(path)
    other.prepare(SCHEMA)
    mine, theirs = sink.begin(GROUP, [Q0]), other.begin(GROUP, [Q1])

    assert theirs.commit(theirs.task_writer().write(iter([rows(Q1, 0, 2)])), {Q1: 2}) == 1
    assert mine.commit(mine.task_writer().write(iter([rows(Q0, 0, 3)])), {Q0: 3}) == 2
    assert (offsets_in(path), offsets_in(path, Q1)) == ([0, 1, 2], [0, 1])
    assert sink.begin(GROUP, [Q0, Q1]).watermarks == {Q0: 3, Q1: 2}


def test_two_threads_use_one_sink_object(sink: DeltaSink, path: Path):
    def consume(queue: MessageQueue) -> None:
        for start in range(0, 30, 3):
            run_batch(sink, {queue: start + 3}, rows(queue, start, start + 3), queues=[queue])

    with ThreadPoolExecutor(2) as executor:
        list(executor.map(consume, [Q0, Q1]))

    assert offsets_in(path) == offsets_in(path, Q1) == list(range(30))


@pytest.mark.parametrize("change", ["append", "delete", "optimize", "properties"])
def test_changes_of_others_between_begin_and_commit_do_no_harm(sink: DeltaSink, path: Path, change):
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    batch = sink.begin(GROUP, [Q0])
    files = batch.task_writer().write(iter([rows(Q0, 5, 7)]))
    table = DeltaTable(path)
    {
        "append": lambda: write_deltalake(path, pa.table(rows(Q1, 0, 1)), mode="append"),
        "delete": lambda: table.delete("queueOffset = 0"),
        "optimize": table.optimize.compact,
        "properties": lambda: table.alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 9 days"}
        ),
    }[change]()

    batch.commit(files, {Q0: 7})

    assert offsets_in(path)[-4:] == [3, 4, 5, 6]


def fail_commits(monkeypatch, *, times: int, after_committing: bool = False) -> None:
    """Let ``TableLog.add`` fail, with or without having committed before, and work afterwards."""
    add = TableLog.add
    left = iter(range(times))

    def failing_add(log: TableLog, *args, **kwargs) -> int:
        if next(left, None) is None:
            return add(log, *args, **kwargs)
        if after_committing:
            add(TableLog(DeltaTable(log._table.table_uri)), *args, **kwargs)
        raise CommitFailedError("the connection was reset")

    monkeypatch.setattr(TableLog, "add", failing_add)


def test_an_error_of_a_commit_that_arrived_does_not_add_the_rows_twice(sink, path: Path, monkeypatch):
    """H1: delta-rs#2279, an error means that the outcome is unknown."""
    fail_commits(monkeypatch, times=1, after_committing=True)

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1
    assert offsets_in(path) == [0, 1, 2]


def test_a_commit_that_failed_is_tried_again(sink: DeltaSink, path: Path, monkeypatch):
    fail_commits(monkeypatch, times=2)

    assert run_batch(sink, {Q0: 3}, rows(Q0, 0, 3)) == 1
    assert offsets_in(path) == [0, 1, 2]


def test_a_commit_that_keeps_failing_says_why(sink: DeltaSink, path: Path, monkeypatch):
    fail_commits(monkeypatch, times=100)

    with pytest.raises(
        SinkConflict, match=r"order-etl could not be committed to .* the connection was reset"
    ):
        run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))


def test_watermarks_moved_by_others_are_followed_through_their_commits(
    sink: DeltaSink, path: Path, monkeypatch
):
    """H5: asking delta-rs for every id again would cost a millisecond each."""
    sink.begin(GROUP, [Q0, Q1])
    other = DeltaSink(path)
    other.prepare(SCHEMA)
    run_batch(other, {Q0: 5}, rows(Q0, 0, 5))
    write_deltalake(path, pa.table(rows(Q1, 0, 1)), mode="append")
    run_batch(other, {Q0: 7}, rows(Q0, 5, 7))
    monkeypatch.setattr(DeltaTable, "transaction_version", None)

    assert sink.begin(GROUP, [Q0, Q1]).watermarks == {Q0: 7, Q1: 0}


@pytest.mark.parametrize("commits", [3, 30])
def test_watermarks_are_read_again_when_commits_are_cleaned_up_or_many(sink: DeltaSink, path: Path, commits):
    sink.begin(GROUP, [Q0])
    other = DeltaSink(path)
    other.prepare(SCHEMA)
    for end in range(1, commits + 1):
        run_batch(other, {Q0: end}, rows(Q0, end - 1, end))
    DeltaTable(path).create_checkpoint()
    for log_file in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        log_file.unlink()

    assert sink.begin(GROUP, [Q0]).watermarks == {Q0: commits}


def test_history_ends_at_the_version_the_log_stands_at(sink: DeltaSink, path: Path):
    """delta-rs goes on to the newest commit and numbers it with the older version."""
    for end in range(1, 5):
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end))
    log = TableLog(DeltaTable(path, version=2))

    assert [entry["version"] for entry in log.history_since(0)] == [2, 1]
    assert log.history_since(2) == []
    assert [entry["timestamp"] for entry in log.history_since(0)] == [
        entry["timestamp"] for entry in DeltaTable(path).history()[2:4]
    ]


# ------------------------------------------------------------------------------------------ RESTORE and rewind


@pytest.mark.parametrize("is_running", [True, False])
def test_a_restore_after_the_last_commit_is_noticed(sink: DeltaSink, path: Path, is_running):
    """H1: RESTORE keeps the watermarks although the rows are gone."""
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    run_batch(sink, {Q0: 5}, rows(Q0, 3, 5))
    DeltaTable(path).restore(1)
    if not is_running:
        sink = DeltaSink(path)
        sink.prepare(SCHEMA)

    with pytest.raises(SinkConflict, match=r"restored at version 3, .*follow_restore\('order-etl', STORE\)"):
        sink.begin(GROUP, [Q0])


def test_a_restore_while_a_batch_runs_is_noticed_at_its_commit(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    batch = sink.begin(GROUP, [Q0])
    files = batch.task_writer().write(iter([rows(Q0, 3, 5)]))
    DeltaTable(path).restore(0)

    with pytest.raises(SinkConflict, match="restored at version 2"):
        batch.commit(files, {Q0: 5})


def test_a_restore_before_the_last_commit_is_long_dealt_with(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    DeltaTable(path).restore(0)
    sink.rewind(GROUP, {Q0: 0})
    restarted = DeltaSink(path)
    restarted.prepare(SCHEMA)

    run_batch(restarted, {Q0: 3}, rows(Q0, 0, 3))

    assert offsets_in(path) == [0, 1, 2]
    assert restarted.begin(GROUP, [Q0]).watermarks == {Q0: 3}


def test_a_restore_does_not_concern_a_group_that_never_wrote(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    DeltaTable(path).restore(0)

    assert sink.begin("another", [Q0]).watermarks == {Q0: 0}


def test_the_last_commit_is_found_below_many_commits_of_others(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    for number in range(25):
        write_deltalake(path, pa.table(rows(Q1, number, number + 1)), mode="append")
    restarted = DeltaSink(path)
    restarted.prepare(SCHEMA)

    assert restarted.begin(GROUP, [Q0]).watermarks == {Q0: 3}


def test_rewinding_has_deleted_rows_written_again(sink: DeltaSink, path: Path):
    """F5: an operator moves a group back to have its rows again."""
    run_batch(sink, {Q0: 5}, rows(Q0, 0, 5))
    DeltaTable(path).delete("queueOffset >= 2")

    sink.rewind(GROUP, {Q0: 2})
    run_batch(sink, {Q0: 5}, rows(Q0, 2, 5, "again"))

    assert offsets_in(path) == [0, 1, 2, 3, 4]


def test_rewinding_to_a_negative_offset_is_refused(sink: DeltaSink):
    with pytest.raises(OffsetError, match="queue=0 to -1"):
        sink.rewind(GROUP, {Q0: -1})


# ------------------------------------------------------------------------------------------ bugs are loud


def test_rows_of_a_queue_that_was_not_named_are_refused(sink: DeltaSink):
    batch = sink.begin(GROUP, [Q0])

    with pytest.raises(SchemaError, match=r"queue=1 at offset 4 .* not part of this batch"):
        batch.task_writer().write(iter([rows(Q1, 4, 5)]))


def test_acknowledging_a_queue_that_was_not_named_is_refused(sink: DeltaSink):
    with pytest.raises(OffsetError, match="queue=1: acknowledged, but not named"):
        sink.begin(GROUP, [Q0]).commit([], {Q1: 4})


def test_rows_without_progress_are_refused(sink: DeltaSink, path: Path):
    batch = sink.begin(GROUP, [Q0])
    files = batch.task_writer().write(iter([rows(Q0, 0, 3)]))

    with pytest.raises(OffsetError, match=r"3 rows for .* without progress"):
        batch.commit(files, {Q0: 0})

    assert offsets_in(path) == []


def test_beginning_without_prepare_is_refused(path: Path, sink: DeltaSink):
    with pytest.raises(SchemaError, match="Call prepare"):
        DeltaSink(path).begin(GROUP, [Q0])


def test_a_table_that_vanished_is_reported(tmp_path: Path):
    with pytest.raises(SchemaError, match="There is no Delta table at"):
        DeltaSink(tmp_path / "nowhere").begin(GROUP, [Q0])


# ------------------------------------------------------------------------------------------ prepare


def test_a_new_table_has_protocol_1_2_and_the_given_columns(sink: DeltaSink, path: Path):
    table = DeltaTable(path)

    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    assert pa.schema(table.schema().to_arrow()) == SCHEMA


def test_an_existing_table_with_the_same_columns_in_another_order_is_used(path: Path):
    DeltaTable.create(path, schema=pa.schema(list(reversed(list(SCHEMA)))))
    sink = DeltaSink(path)
    sink.prepare(SCHEMA)

    run_batch(sink, {Q0: 2}, rows(Q0, 0, 2))

    assert offsets_in(path) == [0, 1]


def test_a_path_may_have_spaces_and_letters_of_any_kind(tmp_path: Path):
    path = tmp_path / "tägliche orders"
    sink, other = DeltaSink(path), DeltaSink(path)
    sink.prepare(SCHEMA)
    other.prepare(SCHEMA)

    for start in range(0, 6, 2):
        run_batch(sink, {Q0: start + 1}, rows(Q0, start, start + 1))
        run_batch(other, {Q0: start + 2}, rows(Q0, start + 1, start + 2))

    assert offsets_in(path) == [0, 1, 2, 3, 4, 5]


def test_a_relative_path_means_the_drivers_folder(tmp_path: Path, monkeypatch):
    """Tasks and the planner work in other folders."""
    monkeypatch.chdir(tmp_path)

    assert DeltaSink("orders").path == str(tmp_path / "orders")


def test_prepare_says_which_path_it_chose(path: Path, caplog):
    with caplog.at_level("INFO", logger="pyspark_rocketmq"):
        DeltaSink(path).prepare(SCHEMA)

    assert f"sink writes files and commits by delta-rs path={path} version=0" in caplog.messages


def test_other_columns_are_refused_naming_each_difference(path: Path):
    others = SCHEMA.remove(4).append(pa.field("note", pa.string()))
    DeltaTable.create(path, schema=others.set(2, pa.field("queueId", pa.int64())))

    with pytest.raises(SchemaError) as refusal:
        DeltaSink(path, partition_by=["topic"]).prepare(SCHEMA)

    text = str(refusal.value)
    assert "missing: step string" in text
    assert "superfluous: note string" in text
    assert "of another type: queueId is long instead of integer" in text
    assert "partitioned by () instead of (topic)" in text


def test_a_table_altered_while_the_query_runs_is_refused(sink: DeltaSink, path: Path):
    batch = sink.begin(GROUP, [Q0])
    files = batch.task_writer().write(iter([rows(Q0, 0, 1)]))
    DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])

    with pytest.raises(SchemaError, match="superfluous: note string"):
        batch.commit(files, {Q0: 1})
    with pytest.raises(SchemaError, match="superfluous: note string"):
        sink.begin(GROUP, [Q0])


@pytest.mark.parametrize("column", ["topic", "brokerName", "queueId", "queueOffset"])
def test_rows_without_their_messages_position_are_refused(path: Path, column):
    """H6: the position is the only unique key."""
    without = SCHEMA.remove(SCHEMA.get_field_index(column))

    with pytest.raises(SchemaError, match=rf"position of their message: missing: {column} "):
        DeltaSink(path).prepare(without)

    assert not path.exists()


@pytest.mark.parametrize(
    ("partition_by", "why"),
    [(["nothing"], "'nothing' has type none"), (["amount"], "'amount' has type double")],
)
def test_partition_columns_that_cannot_be_such_are_refused(path: Path, partition_by, why):
    schema = SCHEMA.append(pa.field("amount", pa.float64()))

    with pytest.raises(OptionError, match=why):
        DeltaSink(path, partition_by=partition_by).prepare(schema)


def test_a_check_constraint_is_refused(path: Path):
    DeltaTable.create(path, schema=SCHEMA)
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    with pytest.raises(OptionError, match="CHECK constraint positive"):
        DeltaSink(path).prepare(SCHEMA)


def test_a_constraint_added_while_the_query_runs_is_refused(sink: DeltaSink, path: Path):
    DeltaTable(path).alter.add_constraint({"positive": "queueOffset >= 0"})

    with pytest.raises(OptionError, match="CHECK constraint positive"):
        sink.begin(GROUP, [Q0])


# ------------------------------------------------------------------------------------------ readers


def test_readers_skip_files_by_the_statistics(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 10}, rows(Q0, 0, 10))
    run_batch(sink, {Q0: 20}, rows(Q0, 10, 20))

    dataset = DeltaTable(path).to_pyarrow_dataset()
    wanted = pc.field("queueOffset") >= 15
    assert dataset.count_rows(filter=wanted) == 5
    assert len(list(dataset.get_fragments(filter=wanted))) == 1
    query = QueryBuilder().register("orders", DeltaTable(path))
    counted = query.execute('SELECT count(*) AS n FROM orders WHERE "queueOffset" < 5').read_all()
    assert pa.table(counted).column("n").to_pylist() == [5]


def test_the_log_names_group_and_commit(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))

    metadata = json.loads(DeltaTable(path).history(1)[0]["userMetadata"])
    assert metadata["consumerGroup"] == GROUP
    assert set(metadata) == {"consumerGroup", "rocketmqCommit"}


def test_a_task_loads_no_delta_rs(sink: DeltaSink):
    """Task processes are forked, and delta-rs must not be in a process that forks."""
    writer = pickle.dumps(sink.begin(GROUP, [Q0]).task_writer())
    code = f"import pickle, sys; pickle.loads({writer!r}); print('deltalake' in sys.modules)"

    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )

    assert printed.stdout.strip() == "False"


def test_only_queues_that_grow_are_written(sink: DeltaSink, path: Path):
    run_batch(sink, {Q0: 5, Q1: 2}, rows(Q0, 0, 5))
    run_batch(sink, {Q0: 6, Q1: 2}, rows(Q0, 5, 6))

    actions = map(json.loads, (path / "_delta_log" / f"{2:020d}.json").read_text().splitlines())
    transactions = [action["txn"] for action in actions if "txn" in action]
    assert [(each["appId"], each["version"]) for each in transactions] == [(app_id(GROUP, Q0), 6)]
