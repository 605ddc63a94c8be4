"""Tables that others alter while a batch runs, and that a sink makes or widens; delta-rs and a log by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_rocketmq.errors import OptionError, SchemaError, SinkMoved
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import GROUP, POSITION, Q0, batch_of, files_of, run_batch

SCHEMA = pa.schema([*POSITION, ("v", pa.string()), ("s", pa.struct([("a", pa.int32())]))])
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def prepared(path: Path, schema: pa.Schema = SCHEMA, **more: Any) -> DeltaSink:
    sink = DeltaSink(path, compaction=False, sleep=lambda _: None, **more)
    sink.prepare(schema)
    return sink


def add(sink: DeltaSink, schema: pa.Schema, offset: int, *values: Any) -> None:
    run_batch(sink, {Q0: offset + 1}, batch_of(schema, [(Q0, offset, *values)]), queues=[Q0])


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


# ------------------------------------------------------------------------------------------ made and widened


def test_a_column_that_is_added_may_be_null_whatever_its_rows_promise(path: Path) -> None:
    """H4: the rows that are there have no value, and readers of a NOT NULL column fail at them."""
    add(prepared(path), SCHEMA, 0, "a", {"a": 1})
    required = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    wider = SCHEMA.append(pa.field("w", pa.string(), nullable=False)).append(
        pa.field("t", required, nullable=False)
    )

    for offset in (1, 2):
        add(prepared(path, wider, schema_evolution=True), wider, offset, "b", None, "w", {"x": 1})
    add(prepared(path, schema_evolution=True), SCHEMA, 3, "c", None)

    fields = {field.name: field.nullable for field in DeltaTable(path).schema().fields}
    assert fields["w"]
    assert fields["t"]
    found = DeltaTable(path).to_pyarrow_table().sort_by("queueOffset")
    assert found["w"].to_pylist() == [None, "w", "w", None]


@pytest.mark.parametrize("character", " ,;{}()\n\t=")
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_name_that_delta_forbids_is_refused_before_the_table_is_made(
    path: Path, character: str, is_nested: bool
) -> None:
    """H4: Spark would read the table, and take no ALTER TABLE for it."""
    name = f"order{character}id"
    column = (
        pa.field("s", pa.list_(pa.struct([(name, pa.int32())]))) if is_nested else pa.field(name, pa.int32())
    )
    wider = SCHEMA.remove(5).append(column)

    with pytest.raises(SchemaError, match=r"cannot have .*Delta forbids spaces.*columnMapping\.mode"):
        prepared(path, wider)
    assert not path.exists()

    prepared(path, SCHEMA.remove(5))
    with pytest.raises(SchemaError, match="cannot have") as refusal:
        prepared(path, wider, schema_evolution=True)
    assert repr(name) in str(refusal.value)
    assert DeltaTable(path).version() == 0


def test_a_table_that_has_such_names_already_takes_rows_as_before(path: Path) -> None:
    """H4: of an earlier release, or of delta-rs; a running query is not stopped."""
    schema = SCHEMA.append(pa.field("order id", pa.string()))
    DeltaTable.create(path, schema=schema)

    add(prepared(path, schema), schema, 0, "a", None, "x")
    add(prepared(path, schema, schema_evolution=True), schema, 1, "a", None, "y")

    assert DeltaTable(path).to_pyarrow_table().sort_by("queueOffset")["order id"].to_pylist() == ["x", "y"]


def test_a_folder_that_cannot_be_made_is_reported_as_the_sink_s(tmp_path: Path) -> None:
    """H7: what is wrong is the sink's place, and no offset."""
    file = tmp_path / "file"
    file.write_text("x")

    with pytest.raises(
        OptionError, match=rf"The sink's folder {file}/t cannot be created: .*Not a directory"
    ):
        prepared(file / "t")
