"""A PostgreSQL sink whose tasks commit, in which processes die by SIGKILL before or after a transaction.

For :mod:`tests.helpers.live_kill_driver`, which imports this module only for such a sink.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_rocketmq.sinks.database import DatabaseSink

if TYPE_CHECKING:
    from tests.helpers.live_kill_driver import Killer

TRANSACTION_POINTS = ("before_transaction", "after_transaction")
"""A task's rows are in its transaction, which is then committed; the driver knows of neither."""
_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "order_id", "step")


def make_table(address: str) -> None:
    """Make the table of rows."""
    with _opened(address) as connection:
        connection.execute("DROP TABLE IF EXISTS orders, rocketmq_watermarks")
        connection.execute(
            "CREATE TABLE orders (id SERIAL, topic TEXT, broker TEXT, queue_id INTEGER, queue_offset BIGINT, "
            "order_id TEXT, step TEXT)"
        )


def killing_sink(address: str, killer: Killer) -> DatabaseSink:
    """Return the sink."""
    return DatabaseSink(partial(_connect, address, killer), _insert, placeholder="%s", commit_in_task=True)


def rows_in(address: str) -> list[tuple[str, str, int, int, str, str]]:
    """Return topic, broker, queue, offset, order and step of all rows, in the order in which they came."""
    columns = "topic, broker, queue_id, queue_offset, order_id, step"
    with _opened(address) as connection:
        found: list[tuple[str, str, int, int, str, str]] = connection.execute(
            f"SELECT {columns} FROM orders ORDER BY id"
        ).fetchall()
    return found


def count_rows(address: str) -> int:
    """Return the number of messages that have a row."""
    return len({row[:4] for row in rows_in(address)})


def _opened(address: str) -> Any:
    # Not in the environments of other Sparks, which collect tests that import this module.
    import psycopg

    return psycopg.connect(address)


def _insert(cursor: Any, rows: pa.Table) -> None:
    columns: Sequence[list[Any]] = [rows.column(name).to_pylist() for name in _COLUMNS]
    cursor.executemany(
        "INSERT INTO orders (topic, broker, queue_id, queue_offset, order_id, step) "
        "VALUES (%s, %s, %s, %s, %s, %s)",
        list(zip(*columns, strict=True)),
    )


def _connect(address: str, killer: Killer) -> Any:
    connection = _opened(address)
    if os.getpid() == killer.driver:
        return connection
    killer.works_here()
    return _KillingConnection(connection, killer)


class _KillingConnection:
    """A task's connection."""

    def __init__(self, connection: Any, killer: Killer) -> None:
        self._connection = connection
        self._killer = killer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        self._killer.passed(TRANSACTION_POINTS[0])
        self._connection.commit()
        self._killer.passed(TRANSACTION_POINTS[1])
