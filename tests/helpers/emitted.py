"""Rows that a run of an engine has kept as tuples."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_rocketmq.listeners.row_buffer import Emitted
from pyspark_rocketmq.listeners.row_validation import Row


def kept_rows(emitted: Iterable[Emitted]) -> list[Row]:
    """Return the rows; fail if one is in a record batch or spilled."""
    rows: list[Row] = []
    for each in emitted:
        assert isinstance(each, tuple)
        rows.append(each)
    return rows
