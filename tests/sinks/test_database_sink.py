"""A database as a sink: SQLite in a file, so that several connections meet."""

from __future__ import annotations

import functools
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import OffsetError, OptionError, SinkConflict
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.database_watermarks import PAUSES_S
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.sinks.database_conformance import (
    DatabaseConformance,
    execute,
    inserting,
    prepared,
    sink_on,
    stored_in,
)
from tests.sinks.sink_conformance import SCHEMA, rows, run, with_newest, written_by
from tests.sinks.task_conformance import TaskConformance


class SqliteFile:
    """The file, and connections that fail as set."""

    placeholder = "?"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.after_commit: list[Exception] = []
        """Raised once each by a commit that has happened."""
        self.open = 0
        self.clear()

    def connect(self) -> Any:
        self.open += 1
        return sqlite3.connect(self.path, timeout=0.0, factory=_connection_of(self))

    def connect_autocommit(self) -> Any:
        return sqlite3.connect(self.path, timeout=0.0, isolation_level=None)

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE orders (queue_id INTEGER, queue_offset BIGINT, step TEXT)")


def _connection_of(database: SqliteFile) -> type[sqlite3.Connection]:
    class Connection(sqlite3.Connection):
        def commit(self) -> None:
            super().commit()
            if self.total_changes and database.after_commit:
                raise database.after_commit.pop(0)

        def close(self) -> None:
            database.open -= 1
            super().close()

    return Connection


@pytest.fixture
def database(tmp_path: Path) -> SqliteFile:
    return SqliteFile(tmp_path / "shop.db")


@pytest.fixture
def sink(database: SqliteFile) -> DatabaseSink:
    return prepared(database)


class TestOnSqlite(DatabaseConformance):
    """In a file."""


class TestInTasksOnSqlite(TaskConformance):
    """In a file, from tasks."""


class _Untransactional(sqlite3.Connection):
    """As Python 3.12's ``autocommit=True``: commit and rollback do nothing, each statement stays."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"isolation_level": None, **options})

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass


class _CommittingImplicitly(sqlite3.Connection):
    """As MySQL: statements that change tables commit what was before them."""

    def cursor(self, *_: Any) -> Any:
        return super().cursor(_CursorCommittingImplicitly)


class _CursorCommittingImplicitly(sqlite3.Cursor):
    def execute(self, statement: str, parameters: Any = ()) -> Any:
        if statement.startswith(("CREATE", "ALTER", "DROP")):
            self.connection.commit()
        return super().execute(statement, parameters)


def test_a_table_that_is_locked_for_a_moment_is_not_taken_for_one_that_is_gone(database: SqliteFile) -> None:
    """H7, H10: the query would end, and its advice would be to begin again."""
    with_newest(prepared(database), {Q0: 2}, {Q0: "[1,1001,64]"})
    [known] = prepared(database).standings(GROUP, {Q0: 0})
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == len(PAUSES_S):
            other.execute("ROLLBACK")

    sink = DatabaseSink(database.connect, inserting(database), sleep=sleep)
    assert sink.standings(GROUP, {Q0: 0}) == (known,)
    other.close()
    execute(database, "DROP TABLE rocketmq_watermarks")
    assert sink_on(database).standings(GROUP, {Q0: 0})[0] == known._replace(
        identity="", watermarks={}, newest={}
    )


def test_a_connection_whose_commit_and_rollback_do_nothing_is_refused(database: SqliteFile) -> None:
    """H7"""
    sink = sink_on(database, connect=lambda: sqlite3.connect(database.path, factory=_Untransactional))

    with pytest.raises(OptionError, match="commits each statement by itself"):
        sink.prepare(SCHEMA)

    assert [row[0] for row in stored_in(database, "rocketmq_watermarks")] == []


def test_statements_that_commit_implicitly_do_no_harm_at_the_start_and_are_found_out_in_a_batch(
    database: SqliteFile,
) -> None:
    """H7: as MySQL does for CREATE TABLE."""
    insert = inserting(database)

    def write(cursor: Any, new: pa.Table) -> None:
        insert(cursor, new)
        cursor.execute("CREATE TEMPORARY TABLE stage (a TEXT)")

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(database.path, factory=_CommittingImplicitly)

    good, bad = sink_on(database, connect=connect), sink_on(database, write, connect=connect)
    for sink in (good, bad):
        sink.prepare(SCHEMA)
    assert run(good, {Q0: 2}, rows(Q0, 0, 2)) == 2

    with pytest.raises(SinkConflict, match="commits by itself"):
        run(bad, {Q0: 4}, rows(Q0, 2, 4))

    assert bad.watermarks(GROUP) == {QueueGeneration(Q0, 0): 2}


def test_a_script_commits_what_was_before_it(database: SqliteFile) -> None:
    """H7: sqlite3's ``executescript`` and ``with connection:`` do."""
    insert = inserting(database)

    def script(cursor: sqlite3.Cursor, new: pa.Table) -> None:
        cursor.executescript("CREATE TEMP TABLE IF NOT EXISTS stage (a TEXT)")
        insert(cursor, new)

    def block(cursor: sqlite3.Cursor, new: pa.Table) -> None:
        with cursor.connection:
            insert(cursor, new)

    for write in (script, block):
        database.clear()
        with pytest.raises(SinkConflict, match="commits by itself"):
            run(prepared(database, write), {Q0: 2}, rows(Q0, 0, 2))


def test_a_column_that_changes_what_is_put_into_it_is_refused(database: SqliteFile) -> None:
    """H7: a text that looks like a number is none."""
    execute(
        database,
        "CREATE TABLE rocketmq_watermarks (consumer_group TEXT, topic TEXT, broker_name TEXT, queue_id TEXT,"
        " next_offset REAL, generation BIGINT, attempt TEXT, PRIMARY KEY (consumer_group, topic, "
        "broker_name, queue_id))",
    )

    with pytest.raises(OptionError, match="queue_id gives '2147483647' for 2147483647; next_offset gives"):
        prepared(database)


def test_a_database_that_takes_small_and_capital_letters_for_one_costs_no_rows(database: SqliteFile) -> None:
    """H7: as MySQL's usual collation does; what it cannot distinguish it refuses,
    and nothing is taken for written.
    """
    execute(
        database,
        "CREATE TABLE rocketmq_watermarks (consumer_group VARCHAR(255) NOT NULL COLLATE NOCASE, topic "
        "VARCHAR(255) NOT NULL COLLATE NOCASE, broker_name VARCHAR(127) NOT NULL COLLATE NOCASE, queue_id "
        "INTEGER NOT NULL, next_offset BIGINT NOT NULL, generation BIGINT DEFAULT 0 NOT NULL, attempt "
        "VARCHAR(36) DEFAULT '' NOT NULL, PRIMARY KEY (consumer_group, topic, broker_name, queue_id))",
    )
    sink = prepared(database)
    run(sink, {Q0: 2}, rows(Q0, 0, 2))

    assert sink.watermarks(GROUP.upper()) == {}
    with pytest.raises(SinkConflict, match="UNIQUE"):
        run(sink, {Q0: 2}, rows(Q0, 0, 2), group=GROUP.upper())
    assert run(sink, {Q0: 3}, rows(Q0, 2, 3)) == 1


def test_no_secret_of_a_connection_is_shown(database: SqliteFile) -> None:
    """A5: what connects may hold a password."""
    sink = sink_on(database, connect=functools.partial(sqlite3.connect, "hunter2"))

    assert repr(sink) == "DatabaseSink(watermark_table='rocketmq_watermarks')"


def test_a_commit_whose_answer_was_lost_is_not_made_twice(sink: DatabaseSink, database: SqliteFile) -> None:
    """H1: the watermarks show what became of it; the first commit of a queue and a later one."""
    for start in (0, 2):
        database.after_commit = [OSError("connection reset")]

        assert run(sink, {Q0: start + 2}, rows(Q0, start, start + 2)) == 2

    assert [offset for _, offset, _ in stored_in(database)] == [0, 1, 2, 3]
    assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 4}


def test_rows_and_watermarks_are_one_transaction(database: SqliteFile) -> None:
    """H1: the function of the user's fails after its first row; tried again, then reported."""
    tries: list[int] = []

    def fails(cursor: sqlite3.Cursor, new: pa.Table) -> None:
        inserting(database)(cursor, new.slice(0, 1))
        tries.append(len(new))
        raise ValueError("step is not known")

    sink = prepared(database, fails)

    with pytest.raises(SinkConflict, match=r"in 6 tries; the last error was: ValueError: step is not known"):
        run(sink, {Q0: 2}, rows(Q0, 0, 2))

    assert tries == [2] * 6
    assert (stored_in(database), sink.watermarks(GROUP), database.open) == ([], {}, 0)


def test_a_database_that_is_busy_for_a_moment_is_tried_again(database: SqliteFile) -> None:
    """H1: "database is locked" comes from another transaction."""
    other = sqlite3.connect(database.path, isolation_level=None)
    sink = prepared(database)
    batch = sink.begin(GROUP, {Q0: 0})
    written = written_by(batch, rows(Q0, 0, 2))
    other.execute("BEGIN IMMEDIATE")
    sink.sleep = lambda _: other.rollback() if other.in_transaction else None

    batch.commit(written, {Q0: 2})

    other.close()
    assert len(stored_in(database)) == 2


def test_a_database_that_is_away_when_a_batch_begins_is_asked_again(database: SqliteFile) -> None:
    """H7: the moment of a restart or a failover would end the query, which gets over it when it commits."""
    failures: list[Exception] = []

    def connect() -> Any:
        if failures:
            raise failures.pop()
        return database.connect()

    sink = sink_on(database, connect=connect)
    sink.prepare(SCHEMA)
    run(sink, {Q0: 2}, rows(Q0, 0, 2))

    starting_up = [sqlite3.OperationalError("the database system is starting up")] * len(PAUSES_S)
    failures += starting_up
    [begun] = sink.begin(GROUP, {Q0: 0}).standings
    failures += starting_up
    [standing] = sink.standings(GROUP, {Q0: 0})
    failures += starting_up
    assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 2}
    assert begun.watermarks == standing.watermarks == {Q0: 2}


def test_a_database_that_stays_away_is_reported_without_the_password(database: SqliteFile) -> None:
    """A5, H7: a driver's own error may repeat what it connects with."""
    failures: list[Exception] = []

    def connect() -> Any:
        if failures:
            raise failures[0]
        return database.connect()

    sink = sink_on(database, connect=connect)
    sink.prepare(SCHEMA)
    failures.append(sqlite3.OperationalError("no route to postgresql://etl:hunter2@db/shop password=hunter2"))

    with pytest.raises(OffsetError, match=r"in database table rocketmq_watermarks cannot be read") as error:
        sink.begin(GROUP, {Q0: 0})

    assert "hunter2" not in str(error.value)


def test_rows_come_as_an_arrow_table_with_their_messages_positions(database: SqliteFile) -> None:
    """H6: from all tasks together."""
    seen: list[pa.Table] = []
    sink = prepared(database, lambda cursor, new: seen.append(new))
    batch = sink.begin(GROUP, {Q0: 0, Q1: 0})

    batch.commit([*written_by(batch, rows(Q0, 0, 2)), *written_by(batch, rows(Q1, 5, 6))], {Q0: 2, Q1: 6})

    assert seen[0].schema == SCHEMA
    assert seen[0].column("queueOffset").to_pylist() == [0, 1, 5]


def test_a_batch_without_rows_does_not_call_the_function(database: SqliteFile) -> None:
    """A4"""
    seen: list[pa.Table] = []
    sink = prepared(database, lambda cursor, new: seen.append(new))

    run(sink, {Q0: 2})

    assert (seen, sink.watermarks(GROUP)) == ([], {QueueGeneration(Q0, 0): 2})


def test_another_query_finds_the_watermarks(sink: DatabaseSink, database: SqliteFile) -> None:
    """H2: with the checkpoint lost, and the table there already."""
    run(sink, {Q0: 3}, rows(Q0, 0, 3))
    other = prepared(database)

    assert run(other, {Q0: 4}, rows(Q0, 0, 4)) == 1


def test_a_name_or_placeholder_that_cannot_be_is_refused(database: SqliteFile) -> None:
    """No text of a configuration becomes SQL."""
    with pytest.raises(OptionError) as caught:
        DatabaseSink(
            database.connect, inserting(database), placeholder=":1", watermark_table="x; DROP TABLE orders"
        )

    assert len(caught.value.problems) == 2
    DatabaseSink(database.connect, inserting(database), placeholder="%s", watermark_table="shop.rocketmq")


def test_an_error_is_in_the_log_at_each_try(
    sink: DatabaseSink, database: SqliteFile, caplog: pytest.LogCaptureFixture
) -> None:
    """A5: without a password, which a driver's own error may repeat."""
    database.after_commit = [OSError("connection reset, password=hunter2")]
    with caplog.at_level(logging.INFO):
        run(sink, {Q0: 1}, rows(Q0, 0, 1))

    assert (
        "retrying database transaction of group order-etl after OSError: connection reset, password=***"
        in caplog.text
    )
    assert "hunter2" not in caplog.text
