"""What emit() takes for a column: never more than Spark converts, and what a listener plausibly has."""

# ruff: noqa: DTZ001, DTZ901 - naive times are among what listeners have

from __future__ import annotations

import datetime as dt
import enum
import itertools
import math
import pickle
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st_
from pyspark.sql import Row
from pyspark.sql import types as st
from pyspark.sql.conversion import PandasToArrowConversion

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.row_buffer import to_rows
from pyspark_rocketmq.listeners.row_validation import OutputColumns, RowColumns


class Kind(enum.StrEnum):
    PAID = "paid"


PAIR = st.StructType().add("a", "integer").add("b", "string")
UTC_NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
EAST = dt.timezone(dt.timedelta(hours=2))
TAKEN: list[tuple[st.DataType, list[Any]]] = [
    (st.StringType(), ["", "a", "ü", "订单", "\0", Kind.PAID, np.str_("a")]),
    (st.BinaryType(), [b"", b"\xff", bytearray(b"a"), np.bytes_(b"a")]),
    (st.BooleanType(), [True, False, np.True_]),
    (st.ByteType(), [-128, 127, np.int64(1)]),
    (st.ShortType(), [-(2**15), 2**15 - 1, np.uint8(1)]),
    (st.IntegerType(), [-(2**31), 2**31 - 1, np.int32(1), np.int64(1)]),
    (st.LongType(), [-(2**63), 2**63 - 1, np.int64(1), np.uint64(1)]),
    (st.FloatType(), [1.5, math.nan, math.inf, 1e300, 1, 2**24, np.float64(1.5), np.float32(1.5), np.int32(1)]),
    (st.DoubleType(), [1.5, math.nan, -math.inf, 1, 2**53, np.float64("nan"), np.float32(1.5), np.int64(1)]),
    (st.DecimalType(4, 2), [Decimal("1.5"), Decimal("99.99"), 1, 99]),
    (st.DecimalType(38, 18), [Decimal("1.555"), 2**63, Decimal(-1)]),
    (st.DateType(), [dt.date(2024, 1, 1), dt.date.min, dt.date.max]),
    (st.TimestampType(), [UTC_NOON, UTC_NOON.astimezone(EAST), dt.datetime(2024, 1, 1), pd.Timestamp("2024-01-01")]),
    (st.TimestampNTZType(), [dt.datetime(2024, 1, 1), dt.datetime(1, 1, 1), pd.Timestamp("2024-01-01")]),
    (st.DayTimeIntervalType(), [dt.timedelta(days=1), dt.timedelta(microseconds=-1)]),
    (st.ArrayType(st.IntegerType()), [[], [1, None], (1,), np.array([1]), [np.int64(1)]]),
    (st.ArrayType(st.StringType()), [["a"], ("a", None), np.array(["a"], dtype=object)]),
    (st.ArrayType(st.TimestampType()), [[UTC_NOON, None], [UTC_NOON.astimezone(EAST)]]),
    (st.MapType(st.StringType(), st.IntegerType()), [{}, {"k": 1}, {"k": None}]),
    (st.MapType(st.StringType(), st.ArrayType(PAIR)), [{"k": [{"a": 1, "b": "x"}, None]}, {"k": []}]),
    (PAIR, [{"a": 1, "b": "x"}, {"a": 1}, {}, {"a": None, "b": None}, (1, "x"), Row(a=1, b="x")]),
    (st.ArrayType(PAIR), [[{"a": 1}, (2, "x")], []]),
]  # fmt: skip
ODD: list[Any] = [
    1, 2**31, 2**63, 2**53 + 1, 1.5, 1.0, 1e300, math.nan, math.inf, True, "a", "\ud800", Kind.PAID, b"a",
    bytearray(b"a"),
    memoryview(b"a"), Decimal("1.5"), Decimal("1.555"), Decimal("NaN"), Decimal(10) ** 30, np.int64(1),
    np.float64("nan"),
    np.True_, np.str_("a"), np.datetime64("2024-01-01"), dt.date(2024, 1, 1), dt.datetime(1, 1, 1), UTC_NOON,
    dt.datetime.max, dt.time(1), dt.timedelta(1), dt.timedelta.max,
    pd.Timestamp("2024-01-01 00:00:00.123456789"),
    pd.NaT, pd.NA, [1], ["a"], (1,), (1, "a"), ("a", 1), (1, "a", 2), [None], {1}, [Decimal("1.5")],
    np.array([1.5]),
    np.array([[1]]), [[1]], [b"a"], [True], ["\ud800"], {"a": 1}, {1: "a"}, {"k": "v"}, {None: 1},
    {"k": [None]},
    {"k": ["a"]}, {"k": [{"a": "x"}]}, [("k", 1)], {"a": 1, "c": 1}, Row(a="x", b=1), {}, [], (),
    uuid.UUID(int=1),
    object(), range(2), math.sin, [dt.datetime.max], [dt.datetime.min],
    [dt.datetime.max.replace(tzinfo=dt.UTC)], [dt.datetime.min.replace(tzinfo=EAST)], [pd.NaT],
    pd.Series([1]),
]  # fmt: skip


def columns_of(data_type: st.DataType) -> OutputColumns:
    return OutputColumns.of(st.StructType().add("c", data_type))


def is_taken(columns: OutputColumns, value: Any) -> bool:
    if columns.is_plainly["c"](value):
        return True
    try:
        columns.check("c", value)
    except SchemaError:
        return False
    return True


@given(value=st_.one_of(
    st_.decimals(allow_nan=True), st_.decimals(-10_000, 10_000, places=2), st_.dates(),
    st_.datetimes(), st_.datetimes(timezones=st_.sampled_from([dt.UTC, EAST])),
))  # fmt: skip
@pytest.mark.parametrize(
    "data_type",
    [st.DecimalType(*size) for size in ((4, 2), (2, 2), (38, 0), (38, 38), (10, 0))]
    + [st.DateType(), st.TimestampType(), st.TimestampNTZType()],
    ids=lambda value: value.simpleString(),
)
def test_the_quick_check_takes_nothing_that_the_thorough_one_refuses(
    data_type: st.DataType, value: Any
) -> None:
    columns = columns_of(data_type)

    if columns.is_plainly["c"](value):
        columns.check("c", value)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (st.DecimalType(10, 2), Decimal("-12345678.90")), (st.DecimalType(38, 38), Decimal("0E-38")),
        (st.DateType(), dt.date.max), (st.TimestampType(), UTC_NOON), (st.TimestampNTZType(), dt.datetime.min),
    ],
)  # fmt: skip
def test_the_quick_check_takes_what_is_common(data_type: st.DataType, value: Any) -> None:
    assert pickle.loads(pickle.dumps(columns_of(data_type))).is_plainly["c"](value)


def convert_as_spark(values: list[Any], data_type: st.DataType, *, safely: bool) -> pa.Array:
    """As the serializer of applyInPandasWithState does."""
    batch = PandasToArrowConversion.convert(
        pd.DataFrame({"c": pd.Series([*values, None], dtype=object)}),
        st.StructType().add("c", data_type),
        timezone="Europe/Berlin",
        safecheck=safely,
        arrow_cast=True,
        assign_cols_by_name=True,
    )
    return batch.column(0)


def convert_directly(values: list[Any], data_type: st.DataType) -> pa.RecordBatch:
    """As the direct engine does."""
    columns = RowColumns(st.StructType().add("c", data_type))
    return columns.to_batch({"c": [*values, None]}, len(values) + 1)


@pytest.mark.parametrize(
    ("data_type", "values"), TAKEN, ids=lambda value: getattr(value, "simpleString", str)()
)
def test_values_that_fit_their_type_are_taken(data_type: st.DataType, values: list[Any]) -> None:
    columns = columns_of(data_type)

    assert [value for value in values if not is_taken(columns, value)] == []


@pytest.mark.parametrize(
    ("data_type", "values"), TAKEN, ids=lambda value: getattr(value, "simpleString", str)()
)
def test_spark_converts_all_that_is_taken_also_side_by_side(
    data_type: st.DataType, values: list[Any]
) -> None:
    """D5: nothing a listener emits may end the query behind its back."""
    columns = columns_of(data_type)
    taken = values + [value for value in ODD if is_taken(columns, value)]

    for pair, safely in itertools.product(itertools.product(taken, repeat=2), (True, False)):
        convert_as_spark(list(pair), data_type, safely=safely)


@pytest.mark.parametrize(
    ("data_type", "values"), TAKEN, ids=lambda value: getattr(value, "simpleString", str)()
)
def test_both_engines_convert_alike(data_type: st.DataType, values: list[Any]) -> None:
    """D5, H1: instants too, wherever the session is."""
    columns = columns_of(data_type)
    taken = values + [value for value in ODD if is_taken(columns, value)]

    batch = convert_directly(taken, data_type)

    (made,) = batch.columns
    assert made.equals(convert_as_spark(taken, data_type, safely=True).cast(made.type))


@pytest.mark.parametrize(
    ("data_type", "values"), TAKEN, ids=lambda value: getattr(value, "simpleString", str)()
)
def test_rows_that_wait_for_a_commit_come_back_as_they_were(
    data_type: st.DataType, values: list[Any]
) -> None:
    """D4"""
    columns = columns_of(data_type)
    batch = convert_directly([value for value in values if is_taken(columns, value)], data_type)

    again = [value for (value,) in to_rows(batch)]

    assert all(value is None or is_taken(columns, value) for value in again)
    assert convert_directly(again[:-1], data_type).equals(batch)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (st.StringType(), 1),
        (st.StringType(), b"a"),
        (st.StringType(), "\ud800"),
        (st.BinaryType(), "a"),
        (st.BinaryType(), memoryview(b"a")),
        (st.BooleanType(), 1),
        (st.IntegerType(), True),
        (st.IntegerType(), 2**31),
        (st.IntegerType(), 1.0),
        (st.IntegerType(), "1"),
        (st.LongType(), 2**63),
        (st.LongType(), Decimal("1.5")),
        (st.LongType(), dt.datetime(2024, 1, 1)),
        (st.DoubleType(), "1.5"),
        (st.DoubleType(), 2**53 + 1),
        (st.DecimalType(4, 2), Decimal("1.555")),
        (st.DecimalType(4, 2), 1.5),
        (st.DateType(), dt.datetime(2024, 1, 1)),
        (st.DateType(), pd.NaT),
        (st.TimestampType(), "2024-01-01"),
        (st.ArrayType(st.TimestampType()), [dt.datetime(2024, 1, 1)]),
        (st.ArrayType(st.IntegerType()), "abc"),
        (st.ArrayType(st.IntegerType(), containsNull=False), [None]),
        (st.MapType(st.StringType(), st.IntegerType()), [None]),
        (st.MapType(st.StringType(), st.IntegerType()), {None: 1}),
        (PAIR, {"a": 1, "c": "x"}),
        (PAIR, (1,)),
    ],
)
def test_values_that_would_fail_later_or_be_altered_are_refused(data_type: st.DataType, value: Any) -> None:
    """D5"""
    assert not is_taken(columns_of(data_type), value)


def test_the_refusal_names_column_type_and_value() -> None:
    with pytest.raises(
        SchemaError, match=r"given Decimal\('1.5'\) of type decimal.Decimal for column 'c', .* type int "
    ):
        columns_of(st.IntegerType()).check("c", Decimal("1.5"))


def test_a_type_that_cannot_be_emitted_is_refused_with_the_schema() -> None:
    with pytest.raises(
        SchemaError, match=r"Column 'c' of the listener's output schema: A listener cannot emit type v"
    ):
        columns_of(st.VariantType())


def test_the_checks_travel_to_the_executors() -> None:
    for data_type, values in TAKEN:
        columns = pickle.loads(pickle.dumps(columns_of(data_type)))
        assert all(is_taken(columns, value) for value in values)
    assert not is_taken(pickle.loads(pickle.dumps(columns_of(PAIR))), (1,))
