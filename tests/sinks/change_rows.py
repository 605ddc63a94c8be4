"""Changes of the model database as rows of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.change_data.change import ChangeMessage, Decoded
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.model import MessageQueue, queue_columns
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN, change_schema, value_column
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, DELETED, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.side_tables import Deletions, PastChanges
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from pyspark_rocketmq.sinks.change_table.versions import END_AT, START_AT, TIME
from tests.change_data.model_database import Row, Sent
from tests.change_data.model_history import Versions
from tests.helpers.sink_rows import GROUP, Q0, files_of

MODEL_SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "a", "b", "c")])


class NoEnvelope:
    """For sinks that get changes from the test."""

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        raise AssertionError("nobody reads messages here")


def change_table(path: Path, **settings: Any) -> ChangeTable:
    """A prepared sink for the model database."""
    given: dict[str, Any] = {"keys": ["id"], "envelope": NoEnvelope(), "columns": MODEL_SCHEMA} | settings
    sink = ChangeTable(path, **given)
    sink.prepare(change_schema(sink.table_columns()))
    return sink


def rows_of(sink: ChangeTable, changes: Iterable[Sent], queue: MessageQueue = Q0) -> pa.RecordBatch:
    """Changes as the rows that a task writes."""
    rows = []
    for each in changes:
        values = {**each.change.row, **each.change.key}
        rows.append(
            {
                **queue_columns(queue),
                "queueOffset": each.offset,
                POSITION: each.at,
                OPERATION: str(each.change.operation),
                ABSENT: sorted(each.change.absent) or None,
                TIME: each.change.source_time,
                **{value_column(name): value for name, value in values.items()},
            }
        )
    return pa.RecordBatch.from_pylist(rows, change_schema(sink.table_columns()))


def apply(sink: ChangeTable, changes: Sequence[Sent], queue: MessageQueue = Q0) -> int | None:
    """A micro-batch with changes of one queue."""
    batch = sink.begin(GROUP, {queue: 0})
    files = files_of(batch.task_writer(), iter([rows_of(sink, changes, queue)]))
    return batch.commit(files, {queue: changes[-1].offset + 1})


def table_rows(path: Path) -> dict[Any, Row]:
    """The rows that are not marked as deleted, by ``id``, without hidden columns."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    by_id = {}
    for row in rows:
        assert row["id"] not in by_id, "a key has two rows"
        if not row.get(DELETED):
            by_id[row["id"]] = {name: value for name, value in row.items() if name not in HIDDEN | {"id"}}
    return by_id


def table_versions(path: Path) -> Versions:
    """All versions by ``id`` in their order, without hidden columns."""
    found: Versions = {}
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    for row in sorted(rows, key=lambda row: row[POSITION] or ""):
        shown = {name: value for name, value in row.items() if name not in HIDDEN | {"id"}}
        found.setdefault(row["id"], []).append(shown | {name: row[name] for name in (START_AT, END_AT)})
    return found


class Killed(BaseException):
    """The end of a process, in place of what it would have done next."""


def kill_at(step: str, patches: pytest.MonkeyPatch, side_table: type[Deletions] | type[PastChanges]) -> None:
    """Have a batch end ``before the record`` in its side table, after it, or after its MERGE."""
    record, write = side_table.record, TableSnapshot.write_next

    def killed_before(*_: Any, **__: Any) -> None:
        raise Killed

    def killed_after(done: Callable[..., Any]) -> Callable[..., None]:
        def run(*given: Any) -> None:
            done(*given)
            raise Killed

        return run

    match step:
        case "before the record":
            patches.setattr(side_table, "record", killed_before)
        case "after the record":
            patches.setattr(side_table, "record", killed_after(record))
        case _:
            patches.setattr(TableSnapshot, "write_next", killed_after(write))
