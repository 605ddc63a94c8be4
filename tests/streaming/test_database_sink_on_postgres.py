"""A real PostgreSQL as a sink: its transactions, its locks, its sessions that are ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import SinkMoved
from pyspark_rocketmq.streaming.database_sink import DatabaseSink
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.postgres.server import Postgres
from tests.real_broker.errors import HarnessError
from tests.streaming.sink_conformance import SCHEMA, SinkConformance, rows, run, written_by


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    try:
        with Postgres() as running:
            yield running
    except HarnessError as exc:
        raise pytest.fail.Exception(str(exc), pytrace=False) from None


@pytest.fixture
def database(server: Postgres) -> Postgres:
    """With the two tables as before the first start."""
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS orders, rocketmq_watermarks")
        connection.execute("CREATE TABLE orders (queue_id INTEGER, queue_offset BIGINT, step TEXT)")
    return server


def insert(cursor: psycopg.Cursor[Any], new: pa.Table) -> None:
    columns = [new.column(name).to_pylist() for name in ("queueId", "queueOffset", "step")]
    cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s)", list(zip(*columns, strict=True)))


def prepared(database: Postgres, write: Callable[[Any, pa.Table], None] = insert) -> DatabaseSink:
    made = DatabaseSink(database.connect, write, placeholder="%s", sleep=lambda _: None)
    made.prepare(SCHEMA)
    return made


def stored_in(database: Postgres) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return sorted(connection.execute("SELECT * FROM orders").fetchall())


class TestOnPostgres(SinkConformance):
    @pytest.fixture
    def sink(self, database: Postgres) -> DatabaseSink:
        return prepared(database)

    @pytest.fixture
    def stored(self, database: Postgres) -> Callable[[], Any]:
        return lambda: stored_in(database)


@pytest.mark.parametrize("known", [0, 1], ids=["first commit of the queue", "later"])
def test_who_comes_second_waits_for_the_first_and_is_refused(database: Postgres, known: int) -> None:
    """H5: both have moved their watermark before either commits."""
    if known:
        run(prepared(database), {Q0: 1}, rows(Q0, 0, 1))
    is_inside, may_go_on = threading.Event(), threading.Event()

    def slowly(cursor: psycopg.Cursor[Any], new: pa.Table) -> None:
        insert(cursor, new)
        is_inside.set()
        assert may_go_on.wait(PATIENCE_S)

    first, second = prepared(database, slowly), prepared(database)
    begun = first.begin(GROUP, [Q0]), second.begin(GROUP, [Q0])
    written = [
        written_by(batch, rows(Q0, known, end, "new")) for batch, end in zip(begun, (3, 9), strict=True)
    ]
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
    assert second.watermarks(GROUP) == {Q0: 3}


def _waiting(database: Postgres) -> int:
    with database.connect() as connection:
        found = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return int(found[0]) if found else 0


def test_a_session_that_the_server_ends_costs_no_row_and_doubles_none(database: Postgres) -> None:
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


def test_an_error_in_the_middle_of_a_transaction_undoes_the_watermarks_too(database: Postgres) -> None:
    """H1: PostgreSQL lets nothing follow in a transaction that had an error."""
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders ADD CONSTRAINT once UNIQUE (queue_id, queue_offset)")
        connection.execute("INSERT INTO orders VALUES (0, 1, 'in the way')")
    sink = prepared(database)
    batch = sink.begin(GROUP, [Q0])
    written = written_by(batch, rows(Q0, 0, 2))
    sink.sleep = lambda _: _remove_what_is_in_the_way(database)

    batch.commit(written, {Q0: 2})

    assert stored_in(database) == [(0, 0, "created"), (0, 1, "created")]


def _remove_what_is_in_the_way(database: Postgres) -> None:
    with database.connect() as connection:
        connection.execute("DELETE FROM orders WHERE step = 'in the way'")
