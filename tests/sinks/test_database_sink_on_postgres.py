"""A real PostgreSQL as a sink: its transactions, its locks, its sessions that are ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import OptionError, SinkMoved
from pyspark_rocketmq.sinks.base import QueueGeneration
from tests.helpers.failing_connection import Connecting, FailingConnection, Faults
from tests.helpers.running import running
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.postgres.server import Postgres
from tests.sinks.database_conformance import (
    OLD_TABLE,
    DatabaseConformance,
    execute,
    prepared,
    sink_on,
    stored_in,
)
from tests.sinks.sink_conformance import SCHEMA, rows, run, written_by
from tests.sinks.task_conformance import TaskConformance


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    yield from running(Postgres())


class PostgresDatabase:
    """Made again for each test."""

    placeholder = "%s"

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.clear()

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return self.server.connect(**options)

    def connect_autocommit(self) -> psycopg.Connection[Any]:
        return self.server.connect(autocommit=True)

    def clear(self) -> None:
        with self.server.connect() as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            connection.execute("CREATE TABLE orders (queue_id INTEGER, queue_offset BIGINT, step TEXT)")


@pytest.fixture
def database(server: Postgres) -> PostgresDatabase:
    return PostgresDatabase(server)


def insert(cursor: psycopg.Cursor[Any], new: pa.Table) -> None:
    columns = [new.column(name).to_pylist() for name in ("queueId", "queueOffset", "step")]
    cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s)", list(zip(*columns, strict=True)))


class TestOnPostgres(DatabaseConformance):
    """Its own locks and isolation."""


class TestInTasksOnPostgres(TaskConformance):
    """The same, from tasks."""


@pytest.mark.parametrize("known", [0, 1], ids=["first commit of the queue", "later"])
def test_the_second_of_two_writers_waits_for_the_first_and_is_refused(
    database: PostgresDatabase, known: int
) -> None:
    """H5: both have written their rows, and moved their watermark, before either commits."""
    if known:
        run(prepared(database), {Q0: 1}, rows(Q0, 0, 1))
    is_inside, may_go_on = threading.Event(), threading.Event()

    class Slow(FailingConnection):
        def commit(self) -> None:
            is_inside.set()
            assert may_go_on.wait(PATIENCE_S)
            super().commit()

    connect = Connecting(database.connect)
    first, second = sink_on(database, connect=connect), prepared(database)
    first.prepare(SCHEMA)
    begun = first.begin(GROUP, {Q0: 0}), second.begin(GROUP, {Q0: 0})
    written = [
        written_by(batch, rows(Q0, known, end, "new")) for batch, end in zip(begun, (3, 9), strict=True)
    ]
    connect.by = lambda: Slow(database.connect(), Faults())
    failures: list[BaseException] = []

    def commit_second() -> None:
        try:
            begun[1].commit(written[1], {Q0: 9})
        except SinkMoved as error:
            failures.append(error)

    threads = [
        threading.Thread(target=begun[0].commit, args=(written[0], {Q0: 3})),
        threading.Thread(target=commit_second),
    ]
    threads[0].start()
    assert is_inside.wait(PATIENCE_S)
    threads[1].start()
    wait_until(lambda: _waiting(database) == 1, reason="The second transaction waiting for the first")
    may_go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [type(failure) for failure in failures] == [SinkMoved]
    assert [offset for _, offset, _ in stored_in(database)] == [0, 1, 2]
    assert second.watermarks(GROUP) == {QueueGeneration(Q0, 0): 3}


def _waiting(database: PostgresDatabase) -> int:
    with database.connect() as connection:
        found = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return int(found[0]) if found else 0


def test_a_session_that_the_server_ends_costs_no_row_and_doubles_none(database: PostgresDatabase) -> None:
    """H1: in the middle of the transaction; the next try has a connection of its own."""
    tries: list[int] = []

    def is_cut_off_once(cursor: psycopg.Cursor[Any], new: pa.Table) -> None:
        insert(cursor, new)
        tries.append(len(new))
        if len(tries) == 1:
            with database.connect(autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (cursor.connection.info.backend_pid,))
            cursor.execute("SELECT 1")

    sink = prepared(database, is_cut_off_once)

    assert run(sink, {Q0: 2, Q1: 1}, rows(Q0, 0, 2), rows(Q1, 0, 1)) == 3

    assert tries == [3, 3]
    assert len(stored_in(database)) == 3


def test_an_error_in_the_middle_of_a_transaction_undoes_the_watermarks_too(
    database: PostgresDatabase,
) -> None:
    """H1: PostgreSQL lets nothing follow in a transaction that had an error."""
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders ADD CONSTRAINT once UNIQUE (queue_id, queue_offset)")
        connection.execute("INSERT INTO orders VALUES (0, 1, 'in the way')")
    sink = prepared(database)
    batch = sink.begin(GROUP, {Q0: 0})
    written = written_by(batch, rows(Q0, 0, 2))
    sink.sleep = lambda _: _remove_what_is_in_the_way(database)

    batch.commit(written, {Q0: 2})

    assert stored_in(database) == [(0, 0, "created"), (0, 1, "created")]


def _remove_what_is_in_the_way(database: PostgresDatabase) -> None:
    with database.connect() as connection:
        connection.execute("DELETE FROM orders WHERE step = 'in the way'")


def test_many_first_starts_at_the_same_time_make_one_table(database: PostgresDatabase) -> None:
    """H7: PostgreSQL refuses all but one of several CREATE TABLE IF NOT EXISTS."""
    together = threading.Barrier(6)

    def start() -> Hashable:
        sink = sink_on(database)
        sink.sleep = time.sleep
        together.wait(PATIENCE_S)
        sink.prepare(SCHEMA)
        return sink.place

    with ThreadPoolExecutor(6) as pool:
        places = {started.result() for started in [pool.submit(start) for _ in range(6)]}

    assert len(places) == 1


@pytest.fixture
def clerk(database: PostgresDatabase) -> Callable[[], Any]:
    """Connects as a user who may write rows and make no tables, as PostgreSQL 15 has it by default."""
    execute(
        database,
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN",
        "GRANT USAGE ON SCHEMA public TO clerk",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO clerk",
        "GRANT SELECT, INSERT ON orders TO clerk",
    )
    return lambda: database.connect(user="clerk")


def test_a_table_that_an_administrator_made_needs_no_right_to_make_tables(
    database: PostgresDatabase, clerk: Callable[[], Any]
) -> None:
    """H7: the statement is in the error."""
    sink = sink_on(database, connect=clerk)
    with pytest.raises(OptionError, match="permission denied for schema public") as caught:
        sink.prepare(SCHEMA)

    execute(database, str(caught.value).partition("UPDATE and DELETE: ")[2])
    sink.prepare(SCHEMA)

    assert run(sink, {Q0: 2}, rows(Q0, 0, 2)) == 2


def test_an_older_table_that_may_not_be_changed_is_refused_with_the_statement(
    database: PostgresDatabase, clerk: Callable[[], Any]
) -> None:
    """H7"""
    execute(database, OLD_TABLE)

    with pytest.raises(OptionError, match="must be owner of table") as caught:
        sink_on(database, connect=clerk).prepare(SCHEMA)

    assert "ALTER TABLE rocketmq_watermarks ADD COLUMN generation BIGINT DEFAULT 0 NOT NULL" in str(
        caught.value
    )


def test_a_column_that_is_too_small_is_refused(database: PostgresDatabase) -> None:
    """H7: the query would end at message 2147483648."""
    execute(database, OLD_TABLE.replace("next_offset BIGINT", "next_offset INTEGER"))

    with pytest.raises(OptionError, match="integer out of range"):
        prepared(database)
