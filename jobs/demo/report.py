"""The end of a demo run: what is in the table, and whether it is what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from rich.console import Console

from jobs.demo.orders import STEPS, order_ids
from jobs.order_check import OrderReport, check_order
from jobs.tables import records_table

_POSITION = ("topic", "brokerName", "queueId", "queueOffset")
_NOT_SHOWN = ("topic", "delivered_ns")


def read_orders(path: str) -> pa.Table:
    """All rows of the orders table, in the order in which the listener got their messages."""
    # Sorted by the engine: Arrow cannot sort the string views that it answers with.
    query = 'SELECT * FROM orders ORDER BY delivered_ns, "queueOffset"'
    return pa.table(QueryBuilder().register("orders", DeltaTable(path)).execute(query).read_all())


def check_orders(rows: pa.Table, orders: int) -> OrderReport:
    """Compare ``rows``, in the order of delivery, with what was sent: five steps of every order."""
    names = (*_POSITION, "order_id", "step")
    tuples: Iterator[tuple[str, str, int, int, str, str]] = zip(
        *(rows.column(name).to_pylist() for name in names), strict=True
    )
    return check_order(tuples, dict.fromkeys(order_ids(orders), STEPS))


def verdict_line(messages_sent: int, report: OrderReport) -> str:
    """The line a reader, or a script, looks for."""
    return (
        f"messages: {messages_sent} · rows: {report.rows} · duplicates: {report.duplicates} · "
        f"lost: {report.lost} · order violations: {report.order_violations}"
    )


def print_head(rows: pa.Table, path: str, console: Console, count: int = 10) -> None:
    """The first rows of the table; the topic, the same everywhere, and the delivery's time are left out."""
    columns = [name for name in rows.column_names if name not in _NOT_SHOWN]
    console.print(f"First {count} rows of {path}", markup=False, soft_wrap=True)
    console.print(records_table("", columns, rows.slice(0, count).to_pylist()))


def print_findings(findings: Iterable[str], console: Console) -> None:
    """What the check found wrong, as far as it keeps examples."""
    for finding in findings:
        console.print(f"  - {finding}", markup=False)
