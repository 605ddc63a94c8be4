"""A sink whose rows a RESTORE took away, and what an operator runs then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_rocketmq.errors import OffsetError, SinkConflict, SinkMoved
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import NewGeneration
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.rules import restored_to
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.spark_writer import PathTarget, Session
from pyspark_rocketmq.sinks.delta.table import SinkTable
from pyspark_rocketmq.stored_values import LastMessage
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of
from tests.helpers.sink_rows import run_batch as run
from tests.sinks.delta.test_sink import offsets_in
from tests.sinks.sink_conformance import SCHEMA, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def sink(path: Path) -> DeltaSink:
    """Versions 1 to 3 have the first 3, 5 and 7 rows of one queue; another queue is in version 2."""
    made = DeltaSink(path)
    made.prepare(SCHEMA)
    run(made, {Q0: 3}, rows(Q0, 0, 3))
    run(made, {Q0: 5, Q1: 2}, rows(Q0, 3, 5), rows(Q1, 0, 2))
    run(made, {Q0: 7}, rows(Q0, 5, 7))
    return made


@pytest.fixture
def store() -> MemoryOffsetStore:
    made = MemoryOffsetStore("restored", clock=FakeClock())
    made.reset(GROUP, {Q0: 7, Q1: 2})
    return made


def test_the_group_goes_back_to_where_the_restored_version_was(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    """H1: a queue without a row in it begins at 0; what is consumed again is written again, once."""
    DeltaTable(path).restore(1)

    assert sink.follow_restore(GROUP, store) == {Q0: 3, Q1: 0}

    assert {queue: row.next_offset for queue, row in store.read(GROUP).items()} == {Q0: 3, Q1: 0}
    run(sink, {Q0: 7, Q1: 2}, rows(Q0, 0, 7), rows(Q1, 0, 2))
    assert (offsets_in(path), offsets_in(path, Q1)) == (list(range(7)), [0, 1])


def test_a_restored_version_that_was_restored_itself_is_looked_through(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    DeltaTable(path).restore(1)
    write_deltalake(path, pa.table(rows(Q1, 9, 10)), mode="append")
    DeltaTable(path).restore(4)

    assert sink.follow_restore(GROUP, store) == {Q0: 3, Q1: 0}


def test_after_a_restore_that_was_undone_nothing_is_consumed_again(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    DeltaTable(path).restore(1)
    DeltaTable(path).restore(3)

    assert sink.follow_restore(GROUP, store) == {Q0: 7, Q1: 2}
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 7}


def test_stopped_half_way_it_is_done_again(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets come first: a sink whose watermarks are lower than the offsets would pass messages over."""
    DeltaTable(path).restore(2)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "rewind", _killed)
        with pytest.raises(KeyboardInterrupt):
            sink.follow_restore(GROUP, store)
    with pytest.raises(SinkConflict):
        sink.begin(GROUP, {Q0: 0})

    assert sink.follow_restore(GROUP, store) == {Q0: 5, Q1: 2}
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 5}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_restored_version_says_nothing_of_the_broker_s_log(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    """H1, F4: no operator has compared its offsets with the log, so planners do; also those without a row."""
    lost = MemoryOffsetStore("lost", clock=FakeClock())
    DeltaTable(path).restore(2)

    for each in (store, lost):
        sink.follow_restore(GROUP, each)
        assert all(row.was_reset and not row.was_reset_by_operator for row in each.read(GROUP).values())
        DeltaTable(path).restore(2)


def test_a_queue_without_a_row_remembers_the_message_that_the_restored_version_has(
    path: Path, store: MemoryOffsetStore
) -> None:
    """H10, F4: with its generation."""
    sink = DeltaSink(path)
    sink.prepare(SCHEMA)
    for offset in (2, 4):
        batch = sink.begin(GROUP, {Q0: 1})
        batch.note_newest({Q0: f"[{offset - 1},{offset},9]"})
        batch.commit(files_of(batch.task_writer(), iter([rows(Q0, offset - 2, offset)])), {Q0: offset})
    DeltaTable(path).restore(1)
    lost = MemoryOffsetStore("lost", clock=FakeClock())

    assert sink.follow_restore(GROUP, lost) == {Q0: 2}

    row = lost.read(GROUP)[Q0]
    assert (row.generation, row.state.last_message.messages) == (1, (LastMessage(1, 2, 9),))


@pytest.mark.parametrize(("boundary", "target", "generation"), [(0, 0, 1), (2, 2, 1), (3, 3, 1), (5, 3, 0)])
def test_a_later_generation_is_consumed_from_where_it_began(
    sink: DeltaSink, path: Path, boundary: int, target: int, generation: int
) -> None:
    """H1, F4: of which the sink has no rows; those of the generation before stay below its watermark."""
    store = MemoryOffsetStore("later", clock=FakeClock())
    epoch = store.reset(GROUP, {Q0: 7})[Q0].epoch
    store.begin_generations(GROUP, {Q0: NewGeneration(epoch, boundary)})
    DeltaTable(path).restore(1)

    for _ in range(2):
        assert sink.follow_restore(GROUP, store) == {Q0: target, Q1: 0}
        row = store.read(GROUP)[Q0]
        assert (row.next_offset, row.generation) == (target, generation)
        assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 3}
        DeltaTable(path).restore(1)


def test_a_queue_that_somebody_claims_meanwhile_is_not_moved(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: the sink is refused until everything has gone back."""
    reset = store.reset

    def claimed_before(*given: Any, **named: Any) -> object:
        store.claim(GROUP, "host@two", {Q1: 0})
        return reset(*given, **named)

    DeltaTable(path).restore(1)
    with monkeypatch.context() as patched:
        patched.setattr(store, "reset", claimed_before)
        with pytest.raises(OffsetError, match=r"not moved in .*queue=1: .*call follow_restore again"):
            sink.follow_restore(GROUP, store)
    assert store.read(GROUP)[Q1].next_offset == 2
    with pytest.raises(SinkConflict, match="follow_restore"):
        sink.begin(GROUP, {Q0: 0})

    assert sink.follow_restore(GROUP, store) == {Q0: 3, Q1: 0}


def test_without_a_restore_there_is_nothing_to_follow(sink: DeltaSink, store: MemoryOffsetStore) -> None:
    with pytest.raises(OffsetError, match="no RESTORE"):
        sink.follow_restore(GROUP, store)

    assert store.read(GROUP)[Q0].next_offset == 7


def test_a_restored_version_that_was_vacuumed_is_reported_as_such(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    DeltaTable(path).restore(1)
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (path / "_delta_log" / f"{version:020d}.json").unlink()

    with pytest.raises(
        OffsetError, match=r"Cannot read from the log .* DeltaSink\.rewind\(\)\. .* its newer rows"
    ):
        DeltaSink(path).follow_restore(GROUP, store)

    assert store.read(GROUP)[Q0].next_offset == 7


def test_rewinding_no_queue_hides_no_restore(sink: DeltaSink, path: Path) -> None:
    """H1: a commit of the group behind the RESTORE would say that it was dealt with."""
    DeltaTable(path).restore(1)

    assert sink.rewind(GROUP, {}) == DeltaTable(path).version()

    with pytest.raises(SinkConflict, match="follow_restore"):
        sink.begin(GROUP, {Q0: 0})


def test_rewinding_some_queues_hides_no_restore_of_the_others(sink: DeltaSink, path: Path) -> None:
    """H1: their watermarks would keep what is gone from being written again."""
    run(sink, {Q1: 2}, rows(Q1, 0, 2))
    DeltaTable(path).restore(1)

    with pytest.raises(SinkConflict, match=r"rows of .*queue=1 may be gone, too\. .*follow_restore"):
        sink.rewind(GROUP, {Q0: 1})
    with pytest.raises(SinkConflict, match="follow_restore"):
        sink.begin(GROUP, {Q0: 0})

    sink.rewind(GROUP, {Q0: 1, Q1: 0})
    assert sink.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 1, Q1: 0}


@pytest.mark.parametrize("parameters", [{"version": "3"}, {"version": 3, "timestamp": None}])
def test_a_restore_names_a_version(parameters: dict[str, int | str | None]) -> None:
    assert restored_to({"operation": "RESTORE", "operationParameters": parameters}) == 3


@pytest.mark.parametrize(
    "parameters", [{"version": None, "timestamp": "2026-01-01 10:00:00"}, {"datetime": "1767261600000"}]
)
def test_which_version_a_time_meant_is_not_guessed_at(parameters: dict[str, str | None]) -> None:
    with pytest.raises(ValueError, match="names no version, only a time"):
        restored_to({"operation": "RESTORE", "operationParameters": parameters})


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_watermarks_of_a_group_are_found_without_naming_its_queues(
    sink: DeltaSink, path: Path, has_checkpoint: bool
) -> None:
    if has_checkpoint:
        DeltaTable(path).create_checkpoint()
        for version in range(3):
            (path / "_delta_log" / f"{version:020d}.json").unlink()
    again = DeltaSink(path)
    again.prepare(SCHEMA)

    assert again.watermarks(GROUP) == {QueueGeneration(Q0, 0): 7, QueueGeneration(Q1, 0): 2}
    assert again.watermarks("another") == {}
    run(again, {Q1: 4}, rows(Q1, 2, 4))
    assert again.watermarks(GROUP) == {QueueGeneration(Q0, 0): 7, QueueGeneration(Q1, 0): 4}


# ------------------------------------------------------------------------------- while Spark adds the rows


class SparkWriter:
    """Adds rows to the newest version, as Spark does: only a commit of the group's own conflicts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meanwhile: list[Callable[[], object]] = []
        """Done by somebody else just before the next commits, one before each."""
        self.loses_answer = False
        self.refusal: Exception | None = None
        """Raised if another commit came first; if None, Spark skips a commit behind another of its group."""

    @property
    def read(self) -> SparkWriter:
        return self

    def schema(self, _: object) -> SparkWriter:
        return self

    def options(self, **_: object) -> SparkWriter:
        return self

    def parquet(self, *paths: str) -> pa.Table:
        return pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths])

    def createDataFrame(self, *_: object) -> pa.Table:  # noqa: N802 - Spark's name
        return SCHEMA.empty_table()

    def append(self, added: pa.Table, options: Mapping[str, Any]) -> None:
        if self.meanwhile:
            others, *left = self.meanwhile
            # Their own commits come first.
            self.meanwhile = []
            others()
            self.meanwhile = left
            if self.refusal is not None:
                raise self.refusal
        if (DeltaTable(self.path).transaction_version(options["txnAppId"]) or 0) >= options["txnVersion"]:
            return
        properties = CommitProperties(
            custom_metadata={"userMetadata": options["userMetadata"]},
            app_transactions=[Transaction(options["txnAppId"], options["txnVersion"])],
        )
        write_deltalake(
            DeltaTable(self.path), added.cast(SCHEMA), mode="append", commit_properties=properties
        )
        if self.loses_answer:
            self.loses_answer = False
            raise PySparkException("the answer is lost")


@pytest.fixture
def spark_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkWriter:
    writer = SparkWriter(path)
    monkeypatch.setattr(SinkTable, "reasons_for_spark", lambda *_: ("CHECK constraint known",))
    monkeypatch.setattr(Session, "spark", writer)
    monkeypatch.setattr(PathTarget, "append", lambda _, added, options: writer.append(added, options))
    return writer


@pytest.fixture
def by_spark(path: Path, spark_writer: SparkWriter) -> DeltaSink:
    """Version 1 has the first 3 rows of one queue."""
    made = prepared(path)
    run(made, {Q0: 3}, rows(Q0, 0, 3))
    return made


def prepared(path: Path) -> DeltaSink:
    made = DeltaSink(path, sleep=lambda _: None)
    made.prepare(SCHEMA)
    made._table.home.spark.target.files_address = str(path)
    return made


def begun(sink: DeltaSink, group: str = GROUP) -> tuple[DeltaBatch, list[Any]]:
    """A batch of the next two rows, and its files."""
    batch = sink.begin(group, {Q0: 0})
    return batch, list(files_of(batch.task_writer(), iter([rows(Q0, 3, 5)])))


def test_a_restore_while_a_batch_runs_is_noticed_before_spark_adds_its_rows(
    by_spark: DeltaSink, path: Path
) -> None:
    """H1, H7: Spark adds them to the newest version, whoever made that."""
    batch, files = begun(by_spark)
    DeltaTable(path).restore(0)

    with pytest.raises(SinkConflict, match=r"restored at version 2, after group order-etl wrote to it last"):
        batch.commit(files, {Q0: 5})

    assert offsets_in(path) == []
    assert by_spark.follow_restore(GROUP, MemoryOffsetStore("by spark", clock=FakeClock())) == {Q0: 0}
    run(by_spark, {Q0: 5}, rows(Q0, 0, 5))
    assert offsets_in(path) == list(range(5))


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("loses_answer", [True, False])
def test_a_restore_while_spark_adds_rows_is_noticed_by_the_next_batch(
    by_spark: DeltaSink, spark_writer: SparkWriter, path: Path, is_running: bool, loses_answer: bool
) -> None:
    """H1, H7: whatever other groups have committed by then; followed, each row is there once."""
    store = MemoryOffsetStore("past it", clock=FakeClock())
    batch, files = begun(by_spark)
    spark_writer.meanwhile = [lambda: DeltaTable(path).restore(0)]
    spark_writer.loses_answer = loses_answer
    assert batch.commit(files, {Q0: 5}) == 3
    run(prepared(path), {Q1: 1}, rows(Q1, 0, 1), group="another")

    for sink in (by_spark, prepared(path)) if is_running else (prepared(path),):
        with pytest.raises(
            SinkConflict,
            match=r"at version 2, while rows .* being added \(version 3\).* restore version 2, run",
        ):
            sink.begin(GROUP, {Q0: 0})
    with pytest.raises(OffsetError, match=r"there twice\. Nothing was changed\. Restore version 2 first"):
        by_spark.follow_restore(GROUP, store)
    DeltaTable(path).restore(2)
    assert by_spark.follow_restore(GROUP, store) == {Q0: 0}

    run(by_spark, {Q0: 5}, rows(Q0, 0, 5))
    assert offsets_in(path) == list(range(5))


def test_after_a_restore_while_spark_adds_rows_the_gap_may_be_accepted(
    by_spark: DeltaSink, spark_writer: SparkWriter, path: Path
) -> None:
    batch, files = begun(by_spark)
    spark_writer.meanwhile = [lambda: DeltaTable(path).restore(0)]
    batch.commit(files, {Q0: 5})

    by_spark.rewind(GROUP, {Q0: 5})

    run(prepared(path), {Q0: 7}, rows(Q0, 5, 7))
    assert offsets_in(path) == [3, 4, 5, 6]


def test_a_lost_answer_of_spark_is_not_taken_for_a_restore(
    by_spark: DeltaSink, spark_writer: SparkWriter, path: Path
) -> None:
    """H1: the commit is found, also below others."""
    batch, files = begun(by_spark)
    spark_writer.meanwhile = [lambda: write_deltalake(path, pa.table(rows(Q1, 9, 10)), mode="append")]
    spark_writer.loses_answer = True

    assert batch.commit(files, {Q0: 5}) == 3

    assert by_spark.begin(GROUP, {Q0: 0}).watermarks == {Q0: 5}
    assert offsets_in(path) == list(range(5))


def test_what_others_commit_while_a_batch_runs_does_not_stop_spark_s_writer(
    by_spark: DeltaSink, path: Path
) -> None:
    """H1, H2: another group, a part of the batch that was committed ahead, rows overwritten."""
    batch, files = begun(by_spark)
    other, other_files = begun(prepared(path), "another")
    other.commit(other_files, {Q0: 5})
    run(prepared(path), {Q1: 2}, rows(Q1, 0, 2), queues=[Q1])
    write_deltalake(path, pa.table(rows(Q1, 7, 9)), mode="overwrite")

    assert batch.commit(files, {Q0: 5}) == 5

    assert by_spark.watermarks(GROUP) == {QueueGeneration(Q0, 0): 5, QueueGeneration(Q1, 0): 2}
    assert prepared(path).begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 5, Q1: 2}
    assert offsets_in(path) == [3, 4]


class ConcurrentWriteException(PySparkException):
    """The error as delta-spark's Python names it, with a message of its own."""


_REFUSALS = {
    "skipped": None,
    "condition": PySparkException("[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected."),
    "Java's class": Py4JError("calling o4.save.\n: io.delta.exceptions.ConcurrentTransactionException: This"),
    "Python's class": ConcurrentWriteException("A concurrent transaction has written new data."),
}


@pytest.mark.parametrize("refusal", _REFUSALS.values(), ids=_REFUSALS)
def test_spark_s_commit_goes_behind_all_of_its_group_that_come_first(
    by_spark: DeltaSink, spark_writer: SparkWriter, path: Path, refusal: Exception | None
) -> None:
    """H5, J5: without a pause, and more often than a commit is tried after errors."""
    other, beaten = prepared(path), 8
    batch, files = begun(by_spark)
    batch.sleep = lambda _: pytest.fail("there was a pause")
    spark_writer.refusal = refusal
    spark_writer.meanwhile = [
        partial(run, other, {Q1: end}, rows(Q1, end - 1, end), queues=[Q1]) for end in range(1, beaten + 1)
    ]

    assert batch.commit(files, {Q0: 5}) == beaten + 2

    assert offsets_in(path) == list(range(5))
    assert prepared(path).begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 5, Q1: beaten}


@pytest.mark.parametrize(
    ("reason", "is_newer"),
    [("io.delta.exceptions.MetadataChangedException: The metadata", True), ("DELTA_CONCURRENT_WRITE", False)],
)
def test_what_spark_refuses_for_another_reason_ends_the_query_soon(
    by_spark: DeltaSink, spark_writer: SparkWriter, path: Path, reason: str, is_newer: bool
) -> None:
    """J5: the table may forbid the rows; and nobody else may have committed."""
    other, paused_s = prepared(path), list[float]()
    batch, files = begun(by_spark)
    batch.sleep = paused_s.append
    spark_writer.refusal = PySparkException(reason)
    ends = iter(range(1, 100))

    def others() -> None:
        if is_newer:
            end = next(ends)
            run(other, {Q1: end}, rows(Q1, end - 1, end), queues=[Q1])

    spark_writer.meanwhile = [others] * 50

    with pytest.raises(SinkConflict, match=f"in 6 tries; the last error was: {reason}"):
        batch.commit(files, {Q0: 5})
    assert len(paused_s) == 5


@pytest.mark.parametrize("writer", ["sink", "by_spark"])
def test_a_group_that_has_no_rows_lost_none_by_a_restore(
    writer: str, path: Path, request: pytest.FixtureRequest
) -> None:
    """H1: whoever commits while its first batch runs."""
    request.getfixturevalue(writer)
    DeltaTable(path).restore(0)
    batch, files = begun(prepared(path), "new")
    write_deltalake(path, pa.table(rows(Q1, 7, 9)), mode="append")

    batch.commit(files, {Q0: 5})

    assert offsets_in(path) == [3, 4]
    assert prepared(path).begin("new", {Q0: 0}).watermarks == {Q0: 5}


@pytest.mark.parametrize("writer", ["sink", "by_spark"])
def test_a_batch_of_a_queue_that_has_no_rows_hides_no_restore_of_the_others(
    writer: str, path: Path, request: pytest.FixtureRequest
) -> None:
    """H1: behind its commit nobody would look for the RESTORE any more."""
    made = request.getfixturevalue(writer)
    DeltaTable(path).restore(0)

    with pytest.raises(SinkConflict, match="was restored at version"):
        made.begin(GROUP, {Q1: 0})


@pytest.mark.parametrize("writer", ["sink", "by_spark"])
def test_a_table_replaced_under_its_log_while_a_batch_runs_is_noticed(
    path: Path, writer: str, request: pytest.FixtureRequest
) -> None:
    """H7: CREATE OR REPLACE TABLE makes another one, with the commits of the one before."""
    sink: DeltaSink = request.getfixturevalue(writer)
    batch = sink.begin(GROUP, {Q0: 0})
    end = batch.watermarks[Q0]
    files = files_of(batch.task_writer(), iter([rows(Q0, end, end + 1)]))
    DeltaTable.create(path, SCHEMA, mode="overwrite")

    with pytest.raises(SinkMoved, match="created again"):
        batch.commit(files, {Q0: end + 1})

    assert offsets_in(path) == []
    with pytest.raises(SinkConflict, match=r"was replaced at version \d+, after .*follow_restore"):
        sink.begin(GROUP, {Q0: 0})
    now = prepared(path).standings(GROUP, {Q0: 0})
    assert now[0].identity != batch.standings[0].identity


@pytest.mark.parametrize("writer", ["sink", "by_spark"])
def test_all_messages_are_consumed_again_if_the_table_was_replaced(
    path: Path, writer: str, store: MemoryOffsetStore, request: pytest.FixtureRequest
) -> None:
    """H1, H7: its log still has the watermarks of rows that are gone, and a RESTORE since may have come to it."""
    sink: DeltaSink = request.getfixturevalue(writer)
    end = sink.begin(GROUP, {Q0: 0}).watermarks[Q0]
    DeltaTable.create(path, SCHEMA, mode="overwrite")
    emptied = DeltaTable(path).version()
    run(prepared(path), {Q1: 1}, rows(Q1, 0, 1), group="another")
    DeltaTable(path).restore(emptied)

    assert prepared(path).follow_restore(GROUP, store)[Q0] == 0

    run(prepared(path), {Q0: end}, rows(Q0, 0, end))
    assert offsets_in(path) == list(range(end))


def test_rows_that_a_table_was_replaced_with_may_be_kept(sink: DeltaSink, path: Path) -> None:
    """H7: as the error says."""
    DeltaTable.create(path, SCHEMA, mode="overwrite")

    sink.rewind(GROUP, {key.queue: offset for key, offset in sink.watermarks(GROUP).items()})

    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 7}
