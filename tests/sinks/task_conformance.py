"""Promises of a ``DatabaseSink`` whose tasks commit, on every database."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import OptionError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import CommitsGroups, CommitsInTask, Progress, QueueGeneration, Sink, Span
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.database_batch import CollectedRows, RowCollector
from pyspark_rocketmq.sinks.database_task import CommittingWriter, RefusedQueues, TaskCommittedBatch
from pyspark_rocketmq.sinks.multi import MultiSink, Route
from tests.helpers.failing_connection import ConnectionLost, FailingConnection, Faults
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.sinks.database_conformance import Database, execute, inserting, stored_in
from tests.sinks.sink_conformance import SCHEMA, SinkConformance, Stored, rows, run, written_by

_EPOCH = 7


class _Current(NamedTuple):
    """The database that this process's tasks use: their functions are pickled, a test's database is not."""

    database: Database
    faults: Faults


_current: list[_Current] = []
_opened: list[FailingConnection] = []
"""Connections; tasks keep theirs open."""


def connect() -> Any:
    """Open a connection to the test's database, with its faults."""
    made = FailingConnection(_current[0].database.connect(), _current[0].faults)
    _opened.append(made)
    return made


def write(cursor: Any, new: pa.Table) -> None:
    """Insert the rows."""
    inserting(_current[0].database)(cursor, new)


def do_not_wait(_: float) -> None:
    """Try again immediately."""


def write_and_commit(cursor: Any, new: pa.Table) -> None:
    """Insert the rows and break the rule."""
    write(cursor, new)
    cursor.connection.commit()


def sink_on_current(writes: Any = write, opens: Any = connect) -> DatabaseSink:
    """Not prepared."""
    return DatabaseSink(
        opens,
        writes,
        placeholder=_current[0].database.placeholder,
        commit_in_task=True,
        sleep=do_not_wait,
    )


class Task:
    """One task of a batch."""

    def __init__(self, batch: TaskCommittedBatch, epochs: Mapping[MessageQueue, int] | None = None) -> None:
        writer: Any = batch.task_writer()
        assert isinstance(writer, CommitsInTask)
        if epochs is not None:
            writer = writer.fenced(epochs)
        self.commits = writer.begin_task()
        self.left_out = 0
        self.writing: Any = self.commits.open()

    def commit(
        self,
        spans: Mapping[MessageQueue, tuple[int, int]],
        *batches: pa.RecordBatch,
        newest: Mapping[MessageQueue, str] | None = None,
    ) -> frozenset[MessageQueue]:
        """Commit rows and progress; return the queues that are refused from now on."""
        self.left_out += sum(self.writing.add(each) for each in batches)
        done = self.writing.commit(
            {
                queue: Progress(Span(*span), _EPOCH, (newest or {}).get(queue, ""))
                for queue, span in spans.items()
            }
        )
        self.left_out += done.left_out
        refused: frozenset[MessageQueue] = done.refused
        return refused

    def result(self) -> Sequence[Any]:
        """Return the part that the driver gets."""
        return list(self.writing.finish())


@dataclass
class _CommittedInTask:
    """A batch whose task commits when its driver would."""

    real: TaskCommittedBatch
    task: Task
    newest: dict[MessageQueue, str] = field(default_factory=dict)

    @property
    def standings(self) -> Any:
        return self.real.standings

    @property
    def writer(self) -> CommittingWriter:
        return self.real.writer

    def task_writer(self) -> RowCollector:
        return RowCollector(self.writer.schema, self.writer.watermarks)

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        self.newest.update(newest)

    def commit(self, written: Collection[CollectedRows], acked: Mapping[MessageQueue, int]) -> None:
        begun = self.writer.watermarks
        spans = {queue: (begun.get(queue, 0), at) for queue, at in acked.items()}
        batches = [batch for each in written for batch in each.table().to_batches()]
        self.task.commit(spans, *batches, newest=self.newest)
        self.real.commit(self.task.result(), acked)


class _InTasks(DatabaseSink):
    """Begins batches whose tasks commit when their driver would."""

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Any:
        real = super().begin(consumer_group, queues)
        assert isinstance(real, TaskCommittedBatch)
        return _CommittedInTask(real, Task(real))


class TaskConformance(SinkConformance):
    """Subclasses have the fixture ``database``."""

    @pytest.fixture(autouse=True)
    def faults(self, database: Database) -> Iterator[Faults]:
        faults = Faults()
        _current[:] = [_Current(database, faults)]
        yield faults
        _close_all()
        _current.clear()

    @pytest.fixture
    def sink(self, database: Database) -> DatabaseSink:
        made = _InTasks(
            connect, write, placeholder=database.placeholder, commit_in_task=True, sleep=do_not_wait
        )
        made.prepare(SCHEMA)
        return made

    @pytest.fixture
    def stored(self, database: Database) -> Stored:
        return lambda: stored_in(database)

    @pytest.fixture
    def in_task(self) -> DatabaseSink:
        made = sink_on_current()
        made.prepare(SCHEMA)
        return made

    def test_the_second_of_two_writers_is_refused_and_leaves_nothing(
        self, sink: Sink, stored: Stored
    ) -> None:
        """I6, H5, C5: of the queue that the first one has; its others are in the database by then."""
        slow = sink.begin(GROUP, {Q0: 0, Q1: 0})
        written = written_by(slow, rows(Q0, 0, 9, "slow"), rows(Q1, 0, 1, "slow"))
        run(sink, {Q0: 2}, rows(Q0, 0, 2))

        with pytest.raises(
            SinkMoved, match=f"Tasks of group {GROUP} refused.* another consumer wrote rows"
        ) as caught:
            slow.commit(written, {Q0: 9, Q1: 1})

        assert caught.value.queues == {Q0}
        assert stored() == [(0, 0, "created"), (0, 1, "created"), (1, 0, "slow")]
        assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 2, QueueGeneration(Q1, 0): 1}

    def test_a_task_goes_on_from_its_own_commit_on_one_connection(
        self, database: Database, in_task: DatabaseSink
    ) -> None:
        """I6: opening one for each transaction would take longer than the transaction."""
        task = Task(_begun(in_task))
        before = len(_opened)
        for start in range(0, 10, 2):
            assert task.commit({Q0: (start, start + 2)}, rows(Q0, start, start + 2)) == frozenset()

        assert len(_opened) == before + 1
        assert [offset for _, offset, _ in stored_in(database)] == list(range(10))
        assert in_task.watermarks(GROUP) == {QueueGeneration(Q0, 0): 10}
        task.commits.close()

    def test_each_thread_has_a_connection_of_its_own(self, database: Database, in_task: DatabaseSink) -> None:
        """I6: sqlite3 refuses another thread's."""
        task = Task(_begun(in_task))
        task.commit({Q0: (0, 1)}, rows(Q0, 0, 1))
        with ThreadPoolExecutor(1) as other:
            other.submit(task.commit, {Q0: (1, 2)}, rows(Q0, 1, 2)).result()
            other.submit(task.commits.close).result()
        task.commit({Q0: (2, 3)}, rows(Q0, 2, 3))
        task.commits.close()

        assert [offset for _, offset, _ in stored_in(database)] == [0, 1, 2]

    def test_a_connection_that_is_lost_at_any_statement_costs_no_row_and_doubles_none(
        self, database: Database, faults: Faults
    ) -> None:
        """I6, H1: before and after the statement; the task asks what has become of its transaction."""
        assert self._lose_at_each(database, faults, is_down_then=False) > 20

    def test_a_server_that_is_away_for_long_ends_the_task_and_its_next_attempt_goes_on(
        self, database: Database, faults: Faults
    ) -> None:
        """I6, H1: whatever was committed of it stays, once."""
        assert self._lose_at_each(database, faults, is_down_then=True) > 20

    def _lose_at_each(self, database: Database, faults: Faults, *, is_down_then: bool) -> int:
        """Lose the connection at each statement of a task, before and after it; return how often."""
        faults.at = None
        number = 0
        while True:
            _close_all()
            database.clear()
            faults.at, faults.is_down = None, False
            sink = sink_on_current()
            sink.prepare(SCHEMA)
            batch = _begun(sink)
            faults.seen.clear()
            faults.at, faults.is_done, faults.is_down_then = number // 2, bool(number % 2), is_down_then
            task = Task(batch)
            with suppress(SinkConflict, ConnectionLost):
                task.commit({Q0: (0, 2), Q1: (0, 1)}, rows(Q0, 0, 2), rows(Q1, 0, 1))
                task.commit({Q0: (2, 3)}, rows(Q0, 2, 3))
            assert is_down_then or task.result() == []
            if len(faults.seen) <= number // 2:
                return number
            faults.at, faults.is_down = None, False
            again = Task(batch)
            again.commit({Q0: (0, 4), Q1: (0, 2)}, rows(Q0, 0, 4), rows(Q1, 0, 2))

            assert again.result() == []
            assert [row[:2] for row in stored_in(database)] == [
                (0, 0),
                (0, 1),
                (0, 2),
                (0, 3),
                (1, 0),
                (1, 1),
            ]
            number += 1

    def test_the_next_attempt_of_a_task_begins_where_the_database_is(
        self, database: Database, in_task: DatabaseSink
    ) -> None:
        """I6, H1: a micro-batch's task dies, and runs again from its beginning."""
        batch = _begun(in_task)
        Task(batch).commit({Q0: (0, 3)}, rows(Q0, 0, 3, "first"))
        again = Task(batch)

        again.commit({Q0: (0, 5), Q1: (0, 1)}, rows(Q0, 0, 5, "second"), rows(Q1, 0, 1, "second"))

        assert again.left_out == 3
        assert stored_in(database) == [
            *((0, offset, "first") for offset in range(3)),
            (0, 3, "second"),
            (0, 4, "second"),
            (1, 0, "second"),
        ]

    def test_of_two_living_attempts_the_second_is_refused(
        self, database: Database, in_task: DatabaseSink
    ) -> None:
        """I6, H5: one was believed dead; the queues that only the other one has go on."""
        batch = _begun(in_task)
        one, other = Task(batch), Task(batch)
        for task in (one, other):
            task.commit({Q1: (0, 0)})
        one.commit({Q0: (0, 3)}, rows(Q0, 0, 3, "one"))

        refused = other.commit({Q0: (0, 5), Q1: (0, 1)}, rows(Q0, 0, 5, "other"), rows(Q1, 0, 1, "other"))
        other.commit({Q0: (5, 6), Q1: (1, 2)}, rows(Q0, 5, 6, "other"), rows(Q1, 1, 2, "other"))

        assert refused == {Q0}
        assert stored_in(database) == [
            *((0, offset, "one") for offset in range(3)),
            (1, 0, "other"),
            (1, 1, "other"),
        ]
        [result] = other.result()
        assert result.to_dict() == {"refused": [[*Q0, 6]]}

    def test_an_attempt_that_has_not_consumed_all_behind_another_ones_commit_is_refused(
        self, database: Database, in_task: DatabaseSink
    ) -> None:
        """I6, H1: the offsets between are in no row, and would be below the watermark for ever."""
        batch = _begun(in_task)
        one, other = Task(batch), Task(batch)
        one.commit({Q0: (0, 4)}, rows(Q0, 0, 4, "one"))

        assert other.commit({Q0: (6, 8), Q1: (0, 1)}, rows(Q0, 6, 8), rows(Q1, 0, 1, "other")) == {Q0}
        assert stored_in(database) == [*((0, offset, "one") for offset in range(4)), (1, 0, "other")]

    def test_a_queue_that_another_query_has_moved_is_refused_from_the_first_transaction_on(
        self, database: Database, in_task: DatabaseSink
    ) -> None:
        """I6, H5: between the batch's beginning and the task's."""
        batch = _begun(in_task)
        Task(_begun(sink_again())).commit({Q0: (0, 2)}, rows(Q0, 0, 2, "another"))
        task = Task(batch)

        assert task.commit({Q0: (0, 5), Q1: (0, 1)}, rows(Q0, 0, 5), rows(Q1, 0, 1)) == {Q0}
        assert stored_in(database) == [(0, 0, "another"), (0, 1, "another"), (1, 0, "created")]

    @pytest.mark.parametrize(
        "epochs", [{Q1: _EPOCH}, {Q0: _EPOCH + 1, Q1: _EPOCH}], ids=["absent", "another"]
    )
    def test_a_queue_of_another_epoch_is_refused(
        self, database: Database, in_task: DatabaseSink, epochs: Mapping[MessageQueue, int]
    ) -> None:
        """I6, C5: it was claimed or reset since it was planned, or nobody has looked at its watermark."""
        task = Task(_begun(in_task), epochs)

        assert task.commit({Q0: (0, 2), Q1: (0, 1)}, rows(Q0, 0, 2), rows(Q1, 0, 1)) == {Q0}
        assert stored_in(database) == [(1, 0, "created")]
        assert in_task.watermarks(GROUP) == {QueueGeneration(Q1, 0): 1}

    def test_the_driver_drops_refused_queues_as_if_its_own_commit_had_been_refused(
        self, in_task: DatabaseSink
    ) -> None:
        """I6, H5"""
        batch = _begun(in_task)
        assert isinstance(batch, CommitsGroups)
        task = Task(batch, {Q1: _EPOCH})
        task.commit({Q0: (0, 2), Q1: (0, 1)}, rows(Q0, 0, 2), rows(Q1, 0, 1))
        written = [RefusedQueues.from_dict(each.to_dict()) for each in task.result()]
        spans = {Q0: Span(0, 2), Q1: Span(0, 1)}

        with pytest.raises(SinkMoved, match="refused to add more rows of") as caught:
            batch.commit_group(written, spans, "a group")
        rest, removed = batch.without(written, {Q0})

        assert caught.value.queues == {Q0}
        assert (rest, removed) == ([], 2)
        batch.commit_group(rest, {Q1: Span(0, 1)}, "a group")

    def test_a_function_that_commits_is_found_out_in_the_task(self, database: Database) -> None:
        """I6, H7: nothing counts as written, and the next batch stops too."""
        sink = sink_on_current(write_and_commit)
        sink.prepare(SCHEMA)

        with pytest.raises(SinkConflict, match="commits by itself"):
            Task(_begun(sink)).commit({Q0: (0, 2)}, rows(Q0, 0, 2))
        with pytest.raises(SinkConflict, match="an earlier attempt"):
            sink.begin(GROUP, {Q0: 0})
        assert sink.watermarks(GROUP) == {}
        assert len(stored_in(database)) == 2

    def test_the_rows_of_several_tasks_that_commit_too_early_are_named_when_all_have_ended(
        self, database: Database
    ) -> None:
        """I6, H7: a task knows only its own, and each of its batch may have left some."""
        sink = sink_on_current(write_and_commit)
        sink.prepare(SCHEMA)
        batch = _begun(sink)
        tasks = {Q0: Task(batch), Q1: Task(batch)}
        for queue, task in tasks.items():
            task.commit({queue: (0, 1)})

        for queue, task in tasks.items():
            with pytest.raises(SinkConflict, match="start the query again: its error names the rows"):
                task.commit({queue: (1, 3)}, rows(queue, 1, 3))

        with pytest.raises(SinkConflict, match="an earlier attempt") as caught:
            sink.begin(GROUP, {Q0: 0, Q1: 0})
        assert f"the rows of {Q0} from offset 1 on; {Q1} from offset 1 on, and then" in str(caught.value)
        execute(database, "DELETE FROM orders", str(caught.value).rpartition("then run: ")[2])
        assert isinstance(sink.begin(GROUP, {Q0: 0, Q1: 0}), TaskCommittedBatch)

    def test_a_database_that_a_task_cannot_reach_is_named(
        self, in_task: DatabaseSink, faults: Faults
    ) -> None:
        """I6, I7: with what to do."""
        batch = _begun(in_task)
        faults.is_down = True

        with pytest.raises(SinkConflict, match="each executor connects to the database"):
            Task(batch).commit({Q0: (0, 2)}, rows(Q0, 0, 2))

    def test_functions_that_cannot_be_pickled_are_refused_at_the_start(self) -> None:
        """I6, I7"""
        lock = threading.Lock()

        def one_at_a_time() -> Any:
            with lock:
                return connect()

        with pytest.raises(OptionError, match="sends connect to the tasks, and it cannot be pickled"):
            sink_on_current(opens=one_at_a_time).prepare(SCHEMA)

    def test_it_is_the_only_sink_of_a_query(self, in_task: DatabaseSink) -> None:
        """I6, H8: several sinks commit on the driver, one after the other."""
        for sinks in ([in_task], [Route(sink=in_task)]):
            with pytest.raises(OptionError, match="for a query with only this sink"):
                MultiSink(sinks)


def _close_all() -> None:
    for each in _opened:
        with suppress(Exception):
            each.close()
    _opened.clear()


def _begun(sink: DatabaseSink) -> TaskCommittedBatch:
    batch = sink.begin(GROUP, {Q0: 0, Q1: 0})
    assert isinstance(batch, TaskCommittedBatch)
    return batch


def sink_again() -> DatabaseSink:
    """The same, of another query."""
    made = sink_on_current()
    made.prepare(SCHEMA)
    return made
