"""Tables that others alter while a batch runs or between two runs; delta-rs and a log by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_rocketmq.errors import SchemaError, SinkMoved
from pyspark_rocketmq.sinks.delta_sink import DeltaSink
from tests.helpers.sink_rows import GROUP, POSITION, Q0, batch_of, files_of

SCHEMA = pa.schema([*POSITION, ("v", pa.string()), ("s", pa.struct([("a", pa.int32())]))])
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def prepared(path: Path, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, compaction=False, sleep=lambda _: None, **more)
    sink.prepare(SCHEMA)
    return sink


def rows(begin: int, *values: str | None) -> pa.RecordBatch:
    return batch_of(SCHEMA, [(Q0, offset, v, {"a": 1}) for offset, v in enumerate(values, begin)])


def alter(path: Path, edit: Edit, operation: str = "CHANGE COLUMN", **parameters: str) -> None:
    """Commit other metadata, as Spark's ALTER TABLE and writers with overwriteSchema do."""
    log = path / "_delta_log"
    newest = DeltaTable(path).version()
    versions = (log / f"{version:020d}.json" for version in range(newest, -1, -1))
    lines = (line for version in versions for line in version.read_text().splitlines())
    metadata = next(action["metaData"] for line in lines if "metaData" in (action := json.loads(line)))
    schema = json.loads(metadata["schemaString"])
    edit(metadata | {"schema": schema, "fields": {field["name"]: field for field in schema["fields"]}})
    metadata["schemaString"] = json.dumps(schema)
    info = {"timestamp": 1, "operation": operation, "operationParameters": parameters}
    actions = ({"commitInfo": info}, {"metaData": metadata})
    text = "".join(f"{json.dumps(action)}\n" for action in actions)
    (log / f"{newest + 1:020d}.json").write_text(text)


def set_property(name: str, value: str) -> Edit:
    return lambda metadata: metadata["configuration"].update({name: value})


def of_nested(metadata: dict[str, Any]) -> dict[str, Any]:
    field: dict[str, Any] = metadata["fields"]["s"]["type"]["fields"][0]
    return field


def of_v(**changes: Any) -> Edit:
    return lambda metadata: metadata["fields"]["v"].update(changes)


_CHANGES: dict[str, tuple[Edit, str]] = {
    "not null": (of_v(nullable=False), "column v"),
    "not null in a struct": (lambda m: of_nested(m).update(nullable=False), "column s"),
    "default in a struct": (lambda m: of_nested(m).update(metadata={"CURRENT_DEFAULT": "1"}), "column s"),
    "default": (of_v(metadata={"CURRENT_DEFAULT": "'x'"}), "column v"),
    "partitioning": (lambda m: m["partitionColumns"].append("topic"), "partitioning, now by (topic)"),
    "change data": (
        set_property("delta.enableChangeDataFeed", "true"),
        "property delta.enableChangeDataFeed",
    ),
    "unknown property": (set_property("delta.somethingNew", "1"), "property delta.somethingNew"),
    "added column": (
        lambda m: m["schema"]["fields"].append(
            {"name": "w", "type": "string", "nullable": True, "metadata": {}}
        ),
        "column w",
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_a_batch_whose_table_was_altered_meanwhile_is_dropped_and_runs_again(path: Path, change: str) -> None:
    """H7, J7: its files were written for the table before, as Delta's own conflict checker judges.

    A nested NOT NULL is another type, which ends the query.
    """
    sink = prepared(path, schema_evolution=True)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(0, "a", "b")]))
    edit, name = _CHANGES[change]
    alter(path, edit)

    expected = (
        (SchemaError, "struct<a: int NOT NULL>") if change == "not null in a struct" else (SinkMoved, name)
    )
    with pytest.raises(expected[0]) as refusal:
        batch.commit(files, {Q0: 2})

    assert expected[1] in str(refusal.value)
    assert DeltaTable(path).file_uris() == []
    if expected[0] is SinkMoved:
        again = sink.begin(GROUP, {Q0: 0})
        assert again.watermarks == {Q0: 0}
        again.commit(files_of(again.task_writer(), iter([rows(0, "a", "b")])), {Q0: 2})
        assert DeltaTable(path).to_pyarrow_table()["topic"].to_pylist() == ["orders", "orders"]


@pytest.mark.parametrize(
    "edit",
    [
        of_v(metadata={"comment": "text"}),
        lambda metadata: of_nested(metadata).update(metadata={"comment": "text"}),
        set_property("delta.checkpointInterval", "7"),
        set_property("delta.deletedFileRetentionDuration", "interval 9 days"),
        set_property("owner", "somebody"),
    ],
    ids=["comment", "comment in a struct", "interval", "retention", "own property"],
)
def test_a_change_that_no_row_depends_on_costs_no_batch(path: Path, edit: Edit) -> None:
    """H4: a comment is no part of a type, and upkeep is not of the rows."""
    sink = prepared(path)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(0, "a", "b")]))
    alter(path, edit)

    batch.commit(files, {Q0: 2})

    assert prepared(path).begin(GROUP, {Q0: 0}).watermarks == {Q0: 2}


def test_a_table_overwritten_in_other_partitions_takes_no_file_of_the_batch_before(path: Path) -> None:
    """J7: delta-rs keeps the table's id then, and the operation is a WRITE."""
    sink = prepared(path)
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(0, "a")]))
    table = pa.Table.from_batches([rows(5, "x")])
    write_deltalake(path, table, mode="overwrite", schema_mode="overwrite", partition_by=["topic"])

    with pytest.raises(SinkMoved, match="partitioning, now by"):
        batch.commit(files, {Q0: 1})

    again = sink.begin(GROUP, {Q0: 0})
    again.commit(files_of(again.task_writer(), iter([rows(0, "a")])), {Q0: 1})
    assert sorted(DeltaTable(path).to_pyarrow_table()["topic"].to_pylist()) == ["orders", "orders"]


def test_an_error_over_a_nested_column_shows_both_types_as_sql(path: Path) -> None:
    """H4: not the JSON of Delta's log."""
    schema = SCHEMA.set(5, pa.field("s", pa.list_(pa.struct([("a-b", pa.int64())]))))
    DeltaTable.create(path, schema=schema)

    with pytest.raises(SchemaError, match="s is array<struct<`a-b`: bigint>> instead of struct<a: int>"):
        prepared(path)
