"""The files that tasks write: what is in them, where they are, and what is left after a failure."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.delta.files import GrowingFile, WrittenFile
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS
from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta import task_files
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.task_files import TaskFolder, TaskWriter
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS
from tests.helpers.sink_rows import files_of

GROUP = "order-etl"
Q0 = MessageQueue("orders", "broker-a", 0)
SCHEMA = pa.schema([*POSITION_FIELDS, ("step", pa.string())])


def rows(*steps: Any, start: int = 0, schema: pa.Schema = SCHEMA, column: str = "step") -> pa.RecordBatch:
    made = [
        {
            "topic": Q0.topic,
            "brokerName": Q0.broker_name,
            "queueId": 0,
            "queueOffset": start + i,
            column: step,
        }
        for i, step in enumerate(steps)
    ]
    return pa.RecordBatch.from_pylist(made, schema=schema)


def writer(folder: Path | str, **more: Any) -> TaskWriter:
    settings = {"schema": SCHEMA, "partition_by": (), "watermarks": {Q0: 0}, **more}
    return TaskWriter(table_uri=str(folder), **settings)


def files_in(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*.parquet"))


@pytest.mark.parametrize("value", ["中" * 29, "😀" * 21, "x" * 255, "%/" * 200, "é" * 2000])
def test_a_partition_value_may_be_longer_than_a_folder_s_name(tmp_path: Path, value: str) -> None:
    """H1: the log says the value, and another one that begins alike is another folder."""
    values = (value, value + "!", "short")
    sink = DeltaSink(tmp_path / "t", partition_by=["step"])
    sink.prepare(SCHEMA)
    batch = sink.begin(GROUP, {Q0: 0})

    batch.commit(files_of(batch.task_writer(), iter([rows(*values)])), {Q0: 3})

    table = DeltaTable(tmp_path / "t")
    assert sorted(table.to_pyarrow_table()["step"].to_pylist()) == sorted(values)
    assert len(table.to_pyarrow_table(filters=[("step", "=", value)])) == 1
    folders = {name.split("/")[0] for name in files_in(tmp_path / "t")}
    assert len(folders) == 3
    assert "step=short" in folders


def test_a_written_file_is_described_truly(tmp_path: Path) -> None:
    [file] = files_of(writer(tmp_path), iter([rows("a", "b"), rows("c", start=2)]))

    assert files_in(tmp_path) == [file.path]
    assert file.size == (tmp_path / file.path).stat().st_size
    assert file.num_records == 3
    assert file.partition_values == {}
    assert pq.read_table(tmp_path / file.path).column("step").to_pylist() == ["a", "b", "c"]


def test_a_written_file_travels_as_json(tmp_path: Path) -> None:
    [file] = files_of(writer(tmp_path), iter([rows("a")]))

    assert WrittenFile(**json.loads(json.dumps(file.to_dict()))) == file


def test_a_writer_is_picklable(tmp_path: Path) -> None:
    task_writer = writer(tmp_path)

    assert pickle.loads(pickle.dumps(task_writer)) == task_writer


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert files_of(writer(tmp_path), iter([])) == []
    assert files_of(writer(tmp_path), iter([rows()])) == []
    assert files_of(writer(tmp_path, watermarks={Q0: 5}), iter([rows("a", "b")])) == []
    assert files_in(tmp_path) == []


def test_rows_below_the_watermark_are_left_out(tmp_path: Path) -> None:
    """H1: an earlier run of the batch wrote them."""
    [file] = files_of(writer(tmp_path, watermarks={Q0: 2}), iter([rows("a", "b", "c"), rows("d", start=3)]))

    assert pq.read_table(tmp_path / file.path).column("queueOffset").to_pylist() == [2, 3]


def test_several_rows_of_one_message_stay_together(tmp_path: Path) -> None:
    """H1: a listener may emit several rows for a message."""
    twice = pa.Table.from_batches([rows("a", "b", start=4), rows("c", start=5)]).combine_chunks()

    [file] = files_of(writer(tmp_path, watermarks={Q0: 5}), iter(twice.to_batches()))

    assert pq.read_table(tmp_path / file.path).column("step").to_pylist() == ["b", "c"]


def test_a_file_is_finished_at_its_row_limit(tmp_path: Path) -> None:
    files = files_of(writer(tmp_path, max_file_rows=3), iter([rows(*"abcdefgh")]))

    assert [file.num_records for file in files] == [3, 3, 2]
    offsets = [pq.read_table(tmp_path / file.path).column("queueOffset").to_pylist() for file in files]
    assert offsets == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_file_is_finished_at_its_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: bytes count once they are written, which is a row group at a time."""
    monkeypatch.setattr("pyspark_rocketmq.delta.files._ROW_GROUP_ROWS", 1)

    files = files_of(writer(tmp_path, max_file_bytes=1), iter([rows("a"), rows("b", start=1)]))

    assert [file.num_records for file in files] == [1, 1]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_a_failing_batch_leaves_no_file_behind(
    tmp_path: Path, failure: type[KeyboardInterrupt] | type[ValueError]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*"abcd")
        raise failure

    with pytest.raises(failure):
        files_of(writer(tmp_path, max_file_rows=3), batches())

    assert files_in(tmp_path) == []


# ------------------------------------------------------------------------------------------ columns


def test_columns_are_brought_into_the_tables_order_and_types(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "step": pa.array(["a"]).dictionary_encode(),
            "queueOffset": pa.array([0], pa.int32()),
            "topic": pa.array(["orders"], pa.large_string()),
            "brokerName": ["broker-a"],
            "queueId": pa.array([0], pa.int64()),
        }
    )

    [file] = files_of(writer(tmp_path), iter([batch]))

    assert pq.read_schema(tmp_path / file.path).equals(SCHEMA)


def test_missing_and_superfluous_columns_are_named(tmp_path: Path) -> None:
    batch = rows("a").rename_columns([*SCHEMA.names[:4], "stepp"])

    with pytest.raises(SchemaError, match=r"Only in the table: step; only in the rows: stepp"):
        files_of(writer(tmp_path), iter([batch]))


def test_a_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([*POSITION_FIELDS, ("step", pa.int32())])
    too_large = rows(2**40, schema=pa.schema([*POSITION_FIELDS, ("step", pa.int64())]))

    with pytest.raises(SchemaError, match=r"Column step .* type int64, .* int32"):
        files_of(writer(tmp_path, schema=schema), iter([too_large]))


def test_nulls_in_a_column_that_has_none_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([*POSITION_FIELDS, pa.field("step", pa.string(), nullable=False)])

    with pytest.raises(SchemaError, match="Column step of the output rows has 1 nulls"):
        files_of(writer(tmp_path, schema=schema), iter([rows("a", None)]))


def test_a_row_without_position_is_refused(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist([{"topic": "orders"}], schema=SCHEMA)

    with pytest.raises(SchemaError, match="Column brokerName of the output rows has 1 nulls"):
        files_of(writer(tmp_path), iter([batch]))


def test_a_uri_of_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(OptionError, match=r"cannot be written to ftp://lake/orders"):
        files_of(writer("ftp://lake/orders"), iter([rows("a")]))


def test_a_file_uri_is_written_to(tmp_path: Path) -> None:
    [file] = files_of(writer(tmp_path.as_uri()), iter([rows("a")]))

    assert files_in(tmp_path) == [file.path]


# ------------------------------------------------------------------------------------------ partitions

TRICKY = ["a b/c:%é=1", "", None, "plain", "a'b", "../x", "__HIVE_DEFAULT_PARTITION__"]


def test_a_partitioned_table_reads_back_whatever_the_values(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    sink = DeltaSink(path, partition_by=["step"])
    sink.prepare(SCHEMA)
    batch = sink.begin(GROUP, {Q0: 0})

    files = files_of(batch.task_writer(), iter([rows(*TRICKY), rows(*TRICKY, start=7)]))
    batch.commit(files, {Q0: 14})

    # An empty partition value means null in Delta, also when Spark writes it.
    read = [None if step == "" else step for step in TRICKY]
    table = DeltaTable(path).to_pyarrow_table().sort_by("queueOffset")
    assert table.column("step").to_pylist() == read * 2
    assert len(files) == 6
    assert "step" not in pq.read_schema(path / files[0].path).names
    assert all((path / file.path).resolve().parent.parent == path for file in files)


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (pa.int64(), -7, "-7"),
        (pa.bool_(), True, "true"),
        (pa.date32(), date(2023, 11, 4), "2023-11-04"),
    ],
)
def test_partition_values_are_written_as_delta_wants_them(
    tmp_path: Path, type_: pa.DataType, value: date | int, text: str
) -> None:
    path = tmp_path / "orders"
    schema = pa.schema([*POSITION_FIELDS, ("part", type_)])
    sink = DeltaSink(path, partition_by=["part"])
    sink.prepare(schema)
    batch = sink.begin(GROUP, {Q0: 0})

    files = files_of(batch.task_writer(), iter([rows(value, None, schema=schema, column="part")]))
    batch.commit(files, {Q0: 2})

    assert {file.partition_values["part"] for file in files} == {text, None}
    table = DeltaTable(path).to_pyarrow_table().sort_by("queueOffset")
    assert table.column("part").to_pylist() == [value, None]


def test_two_partition_columns_make_nested_folders(tmp_path: Path) -> None:
    written = files_of(writer(tmp_path, partition_by=("topic", "step")), iter([rows("a", "b", "a")]))

    assert sorted((file.path.rsplit("/", 1)[0], file.num_records) for file in written) == [
        ("topic=orders/step=a", 2),
        ("topic=orders/step=b", 1),
    ]


def test_more_partitions_than_open_files_are_written_all(tmp_path: Path) -> None:
    steps = [str(number) for number in range(100)]

    files = files_of(writer(tmp_path, partition_by=("step",)), iter([rows(*steps), rows(*steps, start=100)]))

    assert sum(file.num_records for file in files) == 200
    assert {file.partition_values["step"] for file in files} == set(steps)


def test_the_row_groups_of_many_open_files_wait_for_no_more_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H6: rows of many partitions, of which none has a row group's worth."""
    bound, steps = 4000, [str(number) for number in range(20)]
    monkeypatch.setattr(task_files, "_GATHERED_BYTES", bound)
    files = writer(tmp_path, partition_by=("step",)).open()
    for start in range(0, 1000, 20):
        files.add(rows(*steps, start=start))
        assert sum(file.gathered_bytes for file in files._open.values()) <= bound

    assert sum(file.num_records for file in files.finish()) == 1000


def test_the_driver_reads_a_task_s_rows_in_pieces_of_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: a row group is bounded by bytes; 65,536 rows of large values would not fit into memory."""
    monkeypatch.setattr("pyspark_rocketmq.delta.files._ROW_GROUP_BYTES", 3_000)
    large = "x" * 1_000
    batches = [rows(large, large, start=start) for start in range(0, 20, 2)]
    other = MessageQueue("orders", "broker-a", 1)
    written = files_of(writer(tmp_path), iter(batches))
    folder = TaskFolder(str(tmp_path), NO_OPTIONS)
    kept: list[int] = []
    add = GrowingFile.add

    def adding(file: GrowingFile, piece: pa.RecordBatch) -> None:
        kept.append(piece.num_rows)
        add(file, piece)

    monkeypatch.setattr(GrowingFile, "add", adding)

    pieces = list(folder.stream(written))
    [same] = [folder.without(file, SCHEMA, {other}) for file in written]

    assert [piece.num_rows for piece in pieces] == [4] * 5
    assert pa.concat_tables(pieces)["queueOffset"].to_pylist() == list(range(20))
    assert (same, kept) == (written[0], [4] * 5)


def test_an_existing_tables_partitioning_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    DeltaTable.create(path, schema=SCHEMA, partition_by=["step"])
    sink = DeltaSink(path)
    sink.prepare(SCHEMA)
    batch = sink.begin(GROUP, {Q0: 0})

    batch.commit(files_of(batch.task_writer(), iter([rows("a", "b")])), {Q0: 2})

    assert files_in(path)[0].startswith("step=a/")


def test_columns_of_every_type_read_back(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    schema = pa.schema(
        [
            *POSITION_FIELDS,
            ("properties", pa.map_(pa.string(), pa.string())),
            ("items", pa.list_(pa.struct([("id", pa.int64()), ("name", pa.string())]))),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("amount", pa.decimal128(12, 2)),
            ("rate", pa.float64()),
            ("body", pa.binary()),
            ("done", pa.bool_()),
        ]
    )
    row = {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": 0,
        "properties": [("k", "v")],
        "items": [{"id": 1, "name": "pen"}],
        "at": datetime(2023, 11, 4, 5, 6, 7, 89, tzinfo=UTC),
        "day": date(2023, 11, 4),
        "amount": None,
        "rate": float("nan"),
        "body": b"\x00\xff",
        "done": True,
    }
    sink = DeltaSink(path)
    sink.prepare(schema)
    batch = sink.begin(GROUP, {Q0: 0})
    made = pa.RecordBatch.from_pylist([row], schema=schema)

    batch.commit(files_of(batch.task_writer(), iter([made])), {Q0: 1})

    [read] = DeltaTable(path).to_pyarrow_table().to_pylist()
    # As text, because NaN does not equal itself.
    assert str(read) == str(made.to_pylist()[0])
