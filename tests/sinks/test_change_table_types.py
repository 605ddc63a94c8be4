"""Change tables whose columns are of types that are hard to read back, or get other types."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from pyspark_rocketmq.change_data.change import Change, Operation
from pyspark_rocketmq.delta.file_choice import rows_of_files
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS
from pyspark_rocketmq.errors import OptionError, SinkConflict
from pyspark_rocketmq.sinks.change_table import side_tables
from pyspark_rocketmq.sinks.change_table.key_files import may_have_keys
from pyspark_rocketmq.sinks.change_table.side_tables import RecentRows
from pyspark_rocketmq.sinks.change_table.versions import END_POSITION
from tests.change_data.model_database import TABLE, Sent
from tests.sinks.change_rows import NoEnvelope, apply, change_table

_EVER: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def _ntz(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


_KEYS: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "int8": (pa.int8(), [-128, 127]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "decimal with cents": (pa.decimal128(10, 2), ["0.07", "-0.10"]),
    "BIGINT UNSIGNED": (pa.decimal128(20, 0), ["1700000000000000001", "1700000000000000003"]),
    "greatest BIGINT UNSIGNED": (pa.decimal128(20, 0), ["18446744073709551615", "18446744073709551614"]),
    "decimal(18,4)": (pa.decimal128(18, 4), ["99999999999999.9999", "12345678901234.5678"]),
    "decimal(38,18)": (pa.decimal128(38, 18), ["12345678901234567890.123456789012345678", "-0.5"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [_EVER.replace(microsecond=999999), _EVER.replace(year=1)]),
    "timestamp_ntz": (pa.timestamp("us"), [_ntz(_EVER.replace(year=1969, microsecond=1)), _ntz(_EVER)]),
    "long text": (pa.string(), ["k" * 100 + "z", "\U0010ffff" * 40]),
    "text": (pa.string(), ["", 'it\'s \\ "x" \n']),
    "binary": (pa.binary(), [b"\xff\x00a", b""]),
    "boolean": (pa.bool_(), [True, False]),
}


def _change(operation: Operation, key: Any, position: int, **values: Any) -> Change:
    is_update = operation is Operation.UPDATE
    return Change(
        table=TABLE,
        operation=operation,
        key={"id": key},
        row={} if operation is Operation.DELETE else {"id": key, **values},
        position=(position,),
        absent=frozenset({"a", "c"} - values.keys()) if is_update else frozenset(),
        source_time=datetime(2026, 11, 1, 0, 0, position, tzinfo=UTC),
    )


def _columns(key: pa.DataType = pa.int64(), a: pa.DataType = pa.int64()) -> pa.Schema:  # noqa: B008 - constants
    return pa.schema([("id", key), ("a", a), ("c", pa.string())])


class _Batches:
    """Applies changes, each time as later messages."""

    def __init__(self, path: Path, columns: pa.Schema | None, first: int = 0, **settings: Any) -> None:
        self._sink = change_table(path, columns=columns, **settings)
        self._offset = first

    def apply(self, *changes: Change) -> None:
        apply(self._sink, [Sent(each, self._offset + number) for number, each in enumerate(changes)])
        self._offset += len(changes)


def _current(path: Path) -> list[tuple[Any, ...]]:
    """The rows that a source has now, or the versions without an end."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return [(row["id"], row["a"], row["c"]) for row in rows if row.get(END_POSITION) is None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("kind", _KEYS)
def test_rows_and_deletions_are_found_by_keys_of_any_type(path: Path, kind: str, scd_type: int) -> None:
    """K1: an update without all values keeps the others, and a late insert does not bring a row back."""
    type_, given = _KEYS[kind]
    one, other = (Decimal(value) if pa.types.is_decimal(type_) else value for value in given)
    batches = _Batches(path, _columns(type_), stored_as_scd_type=scd_type)

    batches.apply(_change(Operation.INSERT, one, 1, a=1, c="kept"), _change(Operation.INSERT, other, 1, a=1))
    batches.apply(_change(Operation.UPDATE, one, 2, a=2))
    assert (one, 2, "kept") in _current(path)
    assert len(_current(path)) == 2
    batches.apply(_change(Operation.DELETE, one, 3))
    batches.apply(_change(Operation.INSERT, one, 1, a=1, c="again"))

    assert _current(path) == [(other, 1, None)]


def test_files_are_left_out_by_the_first_column_of_a_key_with_exact_bounds(path: Path) -> None:
    """K5: a decimal has none."""
    columns = pa.schema([("id", pa.decimal128(20, 0)), ("line", pa.int64())])
    key, big = pa.schema([columns.field("id")]), Decimal(2**64 - 1)
    for line in (1, 2, 3):
        write_deltalake(path, pa.table([[big], [line]], schema=columns), mode="append")

    found = list(rows_of_files(DeltaTable(path), columns.names, may_have_keys([(big, 2)], columns)))
    all_found = list(rows_of_files(DeltaTable(path), columns.names, may_have_keys([(big,)], key)))

    assert [rows["line"].to_pylist() for rows in found] == [[2]]
    assert len(all_found) == 3


def _rewrite(path: Path, name: str, type_: pa.DataType) -> None:
    """Do what the reason of a change that does not fit its column advises."""
    rows = DeltaTable(path).to_pyarrow_table()
    place = rows.schema.get_field_index(name)
    rows = rows.set_column(place, name, rows[name].cast(type_))
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")


_WIDER: Final[dict[str, tuple[pa.DataType, pa.DataType, Any, Any, Any]]] = {
    "int to bigint": (pa.int32(), pa.int64(), 7, 7, 2**40),
    "bigint to decimal": (pa.int64(), pa.decimal128(20, 0), 7, Decimal(7), Decimal(2**64 - 1)),
    "int to double": (pa.int32(), pa.float64(), 7, 7.0, 1.5),
    "int to text": (pa.int32(), pa.string(), 7, "7", "007"),
    "decimal to decimal": (
        pa.decimal128(10, 0),
        pa.decimal128(12, 2),
        Decimal(7),
        Decimal("7.00"),
        Decimal("1.25"),
    ),
    "date to timestamp": (
        pa.date32(),
        pa.timestamp("us", "UTC"),
        date(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 5, 6, 7, tzinfo=UTC),
    ),
    "date to timestamp_ntz": (
        pa.date32(),
        pa.timestamp("us"),
        date(2026, 1, 1),
        _ntz(datetime(2026, 1, 1, tzinfo=UTC)),
        _ntz(datetime(2026, 1, 1, 5, 6, 7, tzinfo=UTC)),
    ),
}


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("kind", [name for name in _WIDER if name != "int to double"])
def test_deletions_are_found_after_the_key_has_another_type(path: Path, kind: str, scd_type: int) -> None:
    """K1: those recorded before the change of the type, and those after it."""
    before, after, old, as_new, new = _WIDER[kind]
    earlier = _Batches(path, _columns(before), stored_as_scd_type=scd_type)
    earlier.apply(_change(Operation.INSERT, old, 1, a=1, c="x"))
    earlier.apply(_change(Operation.DELETE, old, 4))
    _rewrite(path, "id", after)

    later = _Batches(path, _columns(after), first=100, stored_as_scd_type=scd_type)
    later.apply(_change(Operation.INSERT, as_new, 2, a=2, c="late"))
    assert _current(path) == []
    later.apply(_change(Operation.INSERT, new, 5, a=1, c="x"))
    later.apply(_change(Operation.DELETE, new, 6))
    later.apply(_change(Operation.INSERT, new, 5, a=1, c="x"), _change(Operation.INSERT, as_new, 2, a=2))

    assert _current(path) == []


@pytest.mark.parametrize("kind", _WIDER)
def test_past_changes_keep_values_exactly_after_a_column_has_another_type(path: Path, kind: str) -> None:
    """K5: a value that only a past change has comes back whole, whether older or newer than the new type."""
    before, after, old, as_new, new = _WIDER[kind]
    settings: dict[str, Any] = {"stored_as_scd_type": 2, "track_history_column_list": ["c"]}
    earlier = _Batches(path, _columns(a=before), **settings)
    for number in (1, 2):
        earlier.apply(*_hidden_value(number, old))
    _rewrite(path, "a", after)

    later = _Batches(path, _columns(a=after), first=100, **settings)
    later.apply(_change(Operation.UPDATE, 1, 15, c="y"))
    later.apply(*_hidden_value(3, new))
    later.apply(_change(Operation.UPDATE, 2, 15, c="y"), _change(Operation.UPDATE, 3, 15, c="y"))

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    found = {row["id"]: row["a"] for row in rows if row["c"] == "y"}
    assert found == {1: as_new, 2: as_new, 3: new}
    past = DeltaTable(path / "_past_changes")
    assert past.metadata().partition_columns == ["__day"]
    assert pa.schema(past.schema().to_arrow()).field("a").type == after


def _hidden_value(key: int, value: Any) -> list[Change]:
    """Changes whose version shows only the last value of ``a``."""
    return [
        _change(Operation.INSERT, key, 5, a=None, c="x"),
        _change(Operation.UPDATE, key, 10, a=value, c="x"),
        _change(Operation.UPDATE, key, 20, a=None, c="x"),
    ]


def _recent(path: Path) -> RecentRows:
    return RecentRows(uri=str(path), storage=NO_OPTIONS, kept_days=7, today=lambda: date(2026, 11, 1))


def test_rows_that_are_added_while_a_column_gets_another_type_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K1: whoever commits second does it again, by the rows and types that there are then."""
    narrow, wide = pa.schema([("id", pa.int32())]), pa.schema([("id", pa.int64())])
    recent = _recent(path)
    recent.append(pa.table([[1]], schema=narrow))
    overwrite: Callable[..., None] = side_tables._overwrite

    def after_another(table: DeltaTable, rows: pa.RecordBatchReader) -> None:
        monkeypatch.undo()
        recent.append(pa.table([[2]], schema=narrow))
        overwrite(table, rows)

    monkeypatch.setattr(side_tables, "_overwrite", after_another)
    with pytest.raises(FileExistsError):
        recent.append(pa.table([[2**40]], schema=wide))
    recent.append(pa.table([[2**40]], schema=wide))
    assert sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 2**40]

    before = DeltaTable(path, version=DeltaTable(path).version() - 2)
    assert before.schema() != DeltaTable(path).schema()
    monkeypatch.setattr(RecentRows, "opened", lambda _: before)
    with pytest.raises(DeltaError):
        recent.append(pa.table([[3]], schema=narrow))
    assert DeltaTable(path).to_pyarrow_table().num_rows == 3


def test_equal_types_are_not_rewritten(path: Path) -> None:
    """K5: also types that contain others."""
    nested = pa.struct([pa.field("x", pa.list_(pa.field("item", pa.int32())), nullable=False)])
    columns = pa.schema(
        [("id", pa.int32()), ("n", nested), ("m", pa.map_(pa.string(), pa.timestamp("us", "UTC")))]
    )
    for number in range(3):
        _recent(path).append(pa.table([[number], [{"x": [1]}], [[("k", None)]]], schema=columns))

    assert DeltaTable(path).version() == 3


@pytest.mark.parametrize(
    "settings", [{}, {"stored_as_scd_type": 2}, {"deletes": "soft", "truncates": "ignore"}]
)
def test_columns_may_refuse_null(path: Path, settings: dict[str, Any]) -> None:
    """K1: a change lacks values that its row has."""
    DeltaTable.create(
        path, schema=pa.schema([field.with_nullable(field.name == "c") for field in _columns()])
    )
    batches = _Batches(path, None, **settings)

    batches.apply(_change(Operation.INSERT, 1, 1, a=1, c="x"), _change(Operation.INSERT, 2, 1, a=1))
    batches.apply(_change(Operation.UPDATE, 1, 2, c="y"), _change(Operation.DELETE, 2, 2))

    assert (1, 1, "y") in _current(path)
    assert not DeltaTable(path).schema().to_arrow().field("a").nullable


@pytest.mark.parametrize("settings", [{}, {"stored_as_scd_type": 2}])
def test_null_in_a_column_that_refuses_it_ends_the_query(path: Path, settings: dict[str, Any]) -> None:
    """K5: an update that comes before its row, with what to do."""
    DeltaTable.create(
        path, schema=pa.schema([field.with_nullable(field.name == "c") for field in _columns()])
    )

    with pytest.raises(SinkConflict, match=r"cannot be null: id, a\. .* DROP NOT NULL"):
        _Batches(path, None, **settings).apply(_change(Operation.UPDATE, 1, 2, c="y"))


def test_years_that_spark_s_old_timestamps_have(path: Path) -> None:
    """K1: Spark writes INT96 by default, in which Arrow's unit ends in the year 2262."""
    columns = _columns().append(pa.field("t", pa.timestamp("us", "UTC")))
    table = DeltaTable.create(path, schema=columns)
    rows = pa.table([[1], [1], ["x"], [_EVER]], schema=columns)
    pq.write_table(rows, path / "x.parquet", use_deprecated_int96_timestamps=True)
    added = AddAction(
        path="x.parquet",
        size=(path / "x.parquet").stat().st_size,
        partition_values={},
        modification_time=1,
        data_change=True,
        stats=json.dumps({"numRecords": 1}),
    )
    table.create_write_transaction([added], "append", table.schema(), [])

    change = _change(Operation.UPDATE, 1, 5, a=2)
    _Batches(path, None).apply(replace(change, absent=frozenset({"c", "t"})))

    [row] = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert (row["a"], row["t"]) == (2, _EVER)


@pytest.mark.parametrize("feature", [TableFeatures.DeletionVectors, TableFeatures.V2Checkpoint])
def test_a_table_whose_rows_cannot_be_read_back_is_refused(path: Path, feature: TableFeatures) -> None:
    """K5: at the start, with what to do."""
    table = DeltaTable.create(path, schema=_columns())
    table.alter.add_feature(feature, allow_protocol_versions_increase=True)

    with pytest.raises(OptionError, match=r"cannot be read back\. Remove these features in Spark"):
        change_table(path, columns=None, envelope=NoEnvelope())
