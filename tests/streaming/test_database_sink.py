"""A database as a sink: SQLite in a file, so that several connections meet."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import OptionError, SinkConflict
from pyspark_rocketmq.streaming.database_sink import DatabaseSink
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.streaming.sink_conformance import SCHEMA, SinkConformance, rows, run, written_by


class Database:
    """The file, and connections that fail as told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.after_commit: list[Exception] = []
        """Raised once each by a commit that has happened."""
        self.open = 0
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE orders (queue_id INTEGER, queue_offset INTEGER, step TEXT)")
        connection.close()

    def connect(self) -> Any:
        self.open += 1
        return _Connection(self, sqlite3.connect(self.path, timeout=0.0))

    def stored(self) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            return sorted(connection.execute("SELECT * FROM orders").fetchall())
        finally:
            connection.close()


class _Connection:
    def __init__(self, database: Database, connection: sqlite3.Connection) -> None:
        self._database = database
        self._connection = connection

    def cursor(self) -> Any:
        return self._connection.cursor()

    def commit(self) -> None:
        self._connection.commit()
        if self._connection.total_changes and self._database.after_commit:
            raise self._database.after_commit.pop(0)

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._database.open -= 1
        self._connection.close()


def insert(cursor: sqlite3.Cursor, new: pa.Table) -> None:
    columns = [new.column(name).to_pylist() for name in ("queueId", "queueOffset", "step")]
    cursor.executemany("INSERT INTO orders VALUES (?, ?, ?)", zip(*columns, strict=True))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "shop.db")


@pytest.fixture
def sink(database: Database) -> DatabaseSink:
    made = DatabaseSink(database.connect, insert, sleep=lambda _: None)
    made.prepare(SCHEMA)
    return made


class TestDatabaseSink(SinkConformance):
    @pytest.fixture
    def sink(self, database: Database) -> DatabaseSink:
        made = DatabaseSink(database.connect, insert, sleep=lambda _: None)
        made.prepare(SCHEMA)
        return made

    @pytest.fixture
    def stored(self, database: Database) -> Callable[[], Any]:
        return database.stored


def test_a_commit_whose_answer_was_lost_is_not_made_twice(sink: DatabaseSink, database: Database) -> None:
    """H1: the watermarks tell what became of it; the first commit of a queue and a later one."""
    for start in (0, 2):
        database.after_commit = [OSError("connection reset")]

        assert run(sink, {Q0: start + 2}, rows(Q0, start, start + 2)) == 2

    assert [offset for _, offset, _ in database.stored()] == [0, 1, 2, 3]
    assert sink.watermarks(GROUP) == {Q0: 4}


def test_rows_and_watermarks_are_one_transaction(database: Database) -> None:
    """H1: the function of the user's fails after its first row; tried again, then told."""
    tries: list[int] = []

    def fails(cursor: sqlite3.Cursor, new: pa.Table) -> None:
        insert(cursor, new.slice(0, 1))
        tries.append(len(new))
        raise ValueError("step is not known")

    sink = DatabaseSink(database.connect, fails, sleep=lambda _: None)
    sink.prepare(SCHEMA)

    with pytest.raises(SinkConflict, match=r"in 6 tries; the last error was: ValueError: step is not known"):
        run(sink, {Q0: 2}, rows(Q0, 0, 2))

    assert tries == [2] * 6
    assert (database.stored(), sink.watermarks(GROUP), database.open) == ([], {}, 0)


def test_a_database_that_is_busy_for_a_moment_is_tried_again(database: Database) -> None:
    """H1: "database is locked" comes from another transaction."""
    other = sqlite3.connect(database.path, isolation_level=None)
    sink = DatabaseSink(database.connect, insert, sleep=lambda _: None)
    sink.prepare(SCHEMA)
    batch = sink.begin(GROUP, [Q0])
    written = written_by(batch, rows(Q0, 0, 2))
    other.execute("BEGIN IMMEDIATE")
    sink.sleep = lambda _: other.rollback() if other.in_transaction else None

    batch.commit(written, {Q0: 2})

    other.close()
    assert len(database.stored()) == 2


def test_rows_come_as_an_arrow_table_with_their_messages_positions(database: Database) -> None:
    """H6: from all tasks together."""
    seen: list[pa.Table] = []
    sink = DatabaseSink(database.connect, lambda cursor, new: seen.append(new), sleep=lambda _: None)
    sink.prepare(SCHEMA)
    batch = sink.begin(GROUP, [Q0, Q1])

    batch.commit([*written_by(batch, rows(Q0, 0, 2)), *written_by(batch, rows(Q1, 5, 6))], {Q0: 2, Q1: 6})

    assert seen[0].schema == SCHEMA
    assert seen[0].column("queueOffset").to_pylist() == [0, 1, 5]


def test_a_batch_without_rows_does_not_call_the_function(database: Database) -> None:
    """A4"""
    seen: list[pa.Table] = []
    sink = DatabaseSink(database.connect, lambda cursor, new: seen.append(new), sleep=lambda _: None)
    sink.prepare(SCHEMA)

    run(sink, {Q0: 2})

    assert (seen, sink.watermarks(GROUP)) == ([], {Q0: 2})


def test_another_query_finds_the_watermarks(sink: DatabaseSink, database: Database) -> None:
    """H2: with the checkpoint lost, and the table there already."""
    run(sink, {Q0: 3}, rows(Q0, 0, 3))
    other = DatabaseSink(database.connect, insert, sleep=lambda _: None)
    other.prepare(SCHEMA)

    assert run(other, {Q0: 4}, rows(Q0, 0, 4)) == 1


def test_a_name_or_placeholder_that_cannot_be_is_refused(database: Database) -> None:
    """No text of a configuration becomes SQL."""
    with pytest.raises(OptionError) as caught:
        DatabaseSink(database.connect, insert, placeholder=":1", watermark_table="x; DROP TABLE orders")

    assert len(caught.value.problems) == 2
    DatabaseSink(database.connect, insert, placeholder="%s", watermark_table="shop.rocketmq")


def test_an_error_is_in_the_log_at_each_try(
    sink: DatabaseSink, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.after_commit = [OSError("connection reset")]
    with caplog.at_level(logging.INFO):
        run(sink, {Q0: 1}, rows(Q0, 0, 1))

    assert "database transaction to be tried again group=order-etl" in caplog.text
    assert "connection reset" in caplog.text
