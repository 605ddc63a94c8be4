"""A query whose tasks commit by themselves into PostgreSQL."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.database import DatabaseSink
from tests.end_to_end.test_real_time import LiveQuery
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.running import running
from tests.postgres.server import Postgres

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    yield from running(Postgres())


def insert(cursor: psycopg.Cursor[Any], rows: pa.Table) -> None:
    """Add the rows, and the process that does."""
    columns = [rows.column(name).to_pylist() for name in ("queueId", "queueOffset")]
    places = [(*place, os.getpid()) for place in zip(*columns, strict=True)]
    cursor.executemany("INSERT INTO orders (queue_id, queue_offset, writer) VALUES (%s, %s, %s)", places)


class QueryIntoPostgres(LiveQuery):
    """Commits in tasks."""

    def __init__(self, server: Postgres, *args: Any, **more: Any) -> None:
        self._server = server
        with server.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS orders, rocketmq_watermarks")
            connection.execute(
                "CREATE TABLE orders (id SERIAL, queue_id INTEGER, queue_offset BIGINT, writer INTEGER)"
            )
        super().__init__(*args, **more)

    def make_sink(self) -> Sink:
        connect = partial(psycopg.connect, self._server.address)
        return DatabaseSink(connect, insert, placeholder="%s", commit_in_task=True)

    def rows(self) -> list[tuple[int, int]]:
        with self._server.connect() as connection:
            found = connection.execute("SELECT queue_id, queue_offset FROM orders ORDER BY id").fetchall()
        by_queue: dict[int, list[tuple[int, int]]] = {}
        for queue_id, offset in found:
            by_queue.setdefault(queue_id, []).append((queue_id, offset))
        return [place for _, places in sorted(by_queue.items()) for place in places]

    def writers(self) -> set[int]:
        """Processes that have added rows."""
        with self._server.connect() as connection:
            return {writer for (writer,) in connection.execute("SELECT DISTINCT writer FROM orders")}


class OutOfReach(QueryIntoPostgres):
    """Has a database that only the driver reaches."""

    def make_sink(self) -> Sink:
        connect = partial(connect_from, os.getpid(), self._server.address)
        return DatabaseSink(connect, insert, placeholder="%s", commit_in_task=True, sleep=lambda _: None)


def connect_from(pid: int, address: str) -> psycopg.Connection[Any]:
    if os.getpid() != pid:
        raise psycopg.OperationalError(f"no route to host: {address} password=geheim")
    return psycopg.connect(address)


def test_a_query_does_not_start_if_its_tasks_cannot_reach_the_database(
    spark: SparkSession, cluster: ClusterUnderTest, server: Postgres, tmp_path: Path
) -> None:
    """I7: in its tasks it would fail again and again."""
    with pytest.raises(OptionError, match=socket.gethostname()) as caught:
        OutOfReach(server, spark, cluster, tmp_path, orderly=True)

    assert "no route to host: " in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert spark.streams.active == []


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
def test_rows_are_in_the_database_in_order_and_once(
    spark: SparkSession, cluster: ClusterUnderTest, server: Postgres, tmp_path: Path, *, is_orderly: bool
) -> None:
    """I6: workers have added them, whatever the driver's interval is."""
    live = QueryIntoPostgres(server, spark, cluster, tmp_path, orderly=is_orderly)
    try:
        for number in range(40):
            live.send(number % 2, count=1 + number % 3)
        live.await_rows()
        assert os.getpid() not in live.writers()
    finally:
        live.close()
