"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from jobs.offset_view import BROKER_COLUMNS, OffsetView

_OFFSET_COLUMNS = (
    "topic", "brokerName", "queueId", "nextOffset", *BROKER_COLUMNS, "reconsumeTimes", "suspendedUntil", "epoch",
    "updatedAt",
)  # fmt: skip


def records_table(title: str, columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> Table:
    """A table of ``records``; numbers to the right, missing values empty."""
    records = list(records)
    table = Table(title=title, title_justify="left")
    for column in columns:
        is_number = any(isinstance(record[column], int) for record in records)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for record in records:
        table.add_row(*("" if record[column] is None else str(record[column]) for column in columns))
    return table


def offset_table(group: str, views: Sequence[OffsetView]) -> Table:
    """One group's progress; the brokers' columns only where a broker was asked."""
    has_bounds = any(view.bounds is not None for view in views)
    columns = [name for name in _OFFSET_COLUMNS if has_bounds or name not in BROKER_COLUMNS]
    return records_table(f"Offsets of consumer group {group}", columns, (view.columns() for view in views))
