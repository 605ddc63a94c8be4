"""A consumer whose tasks commit each row into PostgreSQL by themselves, and when its rows were committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.contenders import OurConsumer, OurQuery, Times
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.database import DatabaseSink
from tests.postgres.server import Postgres

_SETTINGS: Final = {"fsync": "on", "track_commit_timestamp": "on"}
"""Settings of the server: its commits are durable, and it stores the time of each."""


class OurConsumerIntoPostgres(OurConsumer):
    """A ``PushConsumer`` with an orderly listener and a ``DatabaseSink(commit_in_task=True)``."""

    def __init__(self, name: str, spark: SparkSession, **settings: Any) -> None:
        super().__init__(name, spark, {"realTime": "5 minutes"}, **settings)
        self._server: Postgres | None = None

    @contextmanager
    def running(self, name_servers: str, topic: str, folder: Path) -> Iterator[OurQuery]:
        """Run a server, and a query, during the block."""
        with Postgres(_SETTINGS) as server:
            self._server = server
            with server.connect() as connection:
                connection.execute(
                    "CREATE TABLE orders (queue_id INTEGER, queue_offset BIGINT, stored BIGINT, heard DOUBLE "
                    "PRECISION)"
                )
            with super().running(name_servers, topic, folder) as query:
                yield query

    def _sink(self, folder: Path) -> Sink:  # noqa: ARG002 - of the base
        assert self._server is not None
        connect = partial(psycopg.connect, self._server.address)
        return DatabaseSink(connect, _insert, placeholder="%s", commit_in_task=True)

    def _times(self, folder: Path, consumed: int) -> Times:  # noqa: ARG002 - of the base
        assert self._server is not None
        with self._server.connect() as connection:
            rows = connection.execute(
                "SELECT queue_id, queue_offset, stored, heard, "
                "1000 * extract(epoch FROM pg_xact_commit_timestamp(xmin))::double precision FROM orders"
            ).fetchall()
        places = {row[:2] for row in rows}
        if not len(places) == len(rows) == consumed:
            raise RuntimeError(
                f"{len(rows):,} rows are in the table, {len(places):,} messages have any, {consumed:,} rows were "
                "reported."
            )
        stored, heard, committed = np.array([row[2:] for row in rows], dtype=np.float64).T
        return Times(stored, heard, committed)


def _insert(cursor: psycopg.Cursor[Any], rows: pa.Table) -> None:
    columns = [rows.column(name).to_pylist() for name in ("queueId", "queueOffset", "stored", "heard")]
    with cursor.copy("COPY orders FROM STDIN") as copy:
        for row in zip(*columns, strict=True):
            copy.write_row(row)
