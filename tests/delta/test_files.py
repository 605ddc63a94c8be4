"""File statistics: a reader that skips files by them must never skip a row it wants."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from pyspark_rocketmq.delta.files import FileStatistics, GrowingFile, repeated_columns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stats_of(type_: pa.DataType, *batches: list[Any]) -> dict[str, Any]:
    schema = pa.schema([("x", type_)])
    collected = FileStatistics(schema)
    for values in batches:
        collected.add(pa.RecordBatch.from_arrays([pa.array(values, type_)], schema=schema))
    stats: dict[str, Any] = json.loads(collected.to_json())
    return stats


def bounds_of(type_: pa.DataType, *batches: list[Any]) -> tuple[Any, Any]:
    stats = stats_of(type_, *batches)
    return stats["minValues"].get("x"), stats["maxValues"].get("x")


def test_counts_and_bounds_go_over_all_batches() -> None:
    assert stats_of(pa.int64(), [5, None, 7], [-1], [None]) == {
        "numRecords": 5,
        "minValues": {"x": -1},
        "maxValues": {"x": 7},
        "nullCount": {"x": 2},
    }


def test_a_column_of_nulls_has_no_bounds() -> None:
    assert bounds_of(pa.string(), [None, None]) == (None, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_float_that_json_cannot_hold_leaves_the_column_without_bounds(value: float) -> None:
    assert bounds_of(pa.float64(), [1.0, 2.0], [value], [3.0]) == (None, None)


def test_floats_have_bounds_otherwise() -> None:
    assert bounds_of(pa.float64(), [1.5, None], [-2.25]) == (-2.25, 1.5)


def test_a_long_text_is_cut_below_and_above() -> None:
    low, high = bounds_of(pa.string(), ["a" * 40, "b" * 40])

    assert low == "a" * 32
    assert high == "b" * 32 + "\U0010ffff"


def test_a_long_text_that_nothing_short_is_above_has_no_upper_bound() -> None:
    greatest = "\U0010ffff" * 40

    assert bounds_of(pa.string(), [greatest]) == ("\U0010ffff" * 32, None)


def test_times_are_rounded_outwards_to_milliseconds() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)

    assert bounds_of(pa.timestamp("us", "UTC"), [moment]) == (
        "2023-11-14T22:13:20.123Z",
        "2023-11-14T22:13:20.124Z",
    )
    assert bounds_of(pa.timestamp("us"), [moment]) == ("2023-11-14T22:13:20.123", "2023-11-14T22:13:20.124")


def test_times_before_1970_are_rounded_outwards_too() -> None:
    moment = EPOCH - timedelta(microseconds=1)

    assert bounds_of(pa.timestamp("us", "UTC"), [moment]) == (
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00.000Z",
    )


def test_times_and_dates_beyond_year_9999_have_no_bound() -> None:
    assert bounds_of(pa.timestamp("us", "UTC"), [0, 2**62]) == ("1970-01-01T00:00:00.000Z", None)
    assert bounds_of(pa.date32(), [0, 2**31 - 1]) == ("1970-01-01", None)


def test_dates_are_iso_dates() -> None:
    assert bounds_of(pa.date32(), [date(2024, 2, 29), date(1999, 1, 2)]) == ("1999-01-02", "2024-02-29")


@pytest.mark.parametrize("type_", [pa.bool_(), pa.binary(), pa.decimal128(5, 1)])
def test_other_scalars_have_a_null_count_only(type_: pa.DataType) -> None:
    stats = stats_of(type_, [None, None])

    assert stats["nullCount"] == {"x": 2}
    assert stats["minValues"] == {}


@pytest.mark.parametrize("type_", [pa.map_(pa.string(), pa.string()), pa.list_(pa.int32())])
def test_nested_columns_have_no_statistics(type_: pa.DataType) -> None:
    assert stats_of(type_, [None])["nullCount"] == {}


def test_only_the_first_32_columns_are_looked_at() -> None:
    schema = pa.schema([(f"c{number}", pa.int32()) for number in range(40)])
    collected = FileStatistics(schema)
    collected.add(pa.RecordBatch.from_pylist([dict.fromkeys(schema.names, 1)], schema=schema))

    assert len(json.loads(collected.to_json())["maxValues"]) == 32


@given(st.lists(st.lists(st.none() | st.text(), max_size=4), max_size=3))
def test_every_text_lies_within_its_bounds(batches: list[Any]) -> None:
    low, high = bounds_of(pa.string(), *batches)

    for text in filter(None, [text for batch in batches for text in batch]):
        assert low.encode() <= text.encode()
        assert high is None or text.encode() <= high.encode()


@given(st.lists(st.integers(-(2**55), 2**55), min_size=1))
def test_every_time_lies_within_its_bounds(micros: list[int]) -> None:
    low, high = bounds_of(pa.timestamp("us", "UTC"), micros)

    assert datetime.fromisoformat(low) <= EPOCH + timedelta(microseconds=min(micros))
    assert datetime.fromisoformat(high) >= EPOCH + timedelta(microseconds=max(micros))


def test_only_columns_whose_values_repeat_have_a_dictionary(tmp_path: Path) -> None:
    """K7: at any depth; the first row group shows it."""
    count = 2000
    rows = pa.RecordBatch.from_pydict(
        {
            "each": pa.array([f"key-{at}" for at in range(count)]),
            "tag": pa.array([("created", "paid")[at % 2] for at in range(count)]),
            "properties": pa.array(
                [[("KEYS", str(at))] for at in range(count)], pa.map_(pa.string(), pa.string())
            ),
            "parts": pa.array([[{"one": 1, "each": f"{at}"}] for at in range(count)]),
            "none": pa.nulls(count, pa.binary()),
            "amount": pa.array([None] * count, pa.decimal128(38, 2)),
        }
    )
    file = GrowingFile(fs.LocalFileSystem(), str(tmp_path), rows.schema, {})
    file.add(rows)
    written = tmp_path / file.finish().path

    assert repeated_columns(rows.slice(0, 0)) == []
    group = pq.ParquetFile(written).metadata.row_group(0)
    of_all = [group.column(at) for at in range(group.num_columns)]
    assert [column.path_in_schema for column in of_all if column.has_dictionary_page] == [
        "tag", "properties.key_value.key", "parts.list.element.one", "none", "amount",
    ]  # fmt: skip
    assert pq.read_table(written).equals(pa.Table.from_batches([rows]))
