from __future__ import annotations

import datetime as dt
import decimal
from typing import Any
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pytest

from pyspark_rocketmq.schemas.structs import as_structs

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=dt.UTC)
NANOS = pd.Timestamp(1_700_000_000_123_456_789, unit="ns", tz=dt.UTC)
HOUR = dt.timedelta(hours=1)
TIMES = [
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
]
INT = pa.int32()


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (INT, 5, float("nan")),
        (INT, 5.0, -5.5),
        (INT, 2**31 - 1, 2**31),
        (INT, 0, True),
        (pa.int64(), 2**63 - 1, 2**63),
        (pa.float32(), 3.4028234663852886e38, 3.5e38),
        (pa.float32(), float("inf"), -1e300),
        (INT, 2.0**30, decimal.Decimal(1)),
        (pa.int64(), 2.0**53 - 1, 2.0**53),
        (pa.float16(), 65504.0, 65520.0),
        (pa.float32(), 2**24, True),
        (pa.float64(), 1e300, "1e300"),
        (pa.float64(), 2**53, 2**53 + 1),
        (pa.float64(), float("inf"), 10**400),
        (pa.date32(), dt.date(2026, 1, 2), AT),
        (pa.timestamp("us", "UTC"), AT, "2026"),
        (pa.timestamp("ms", "UTC"), AT.replace(microsecond=123000), AT),
        (pa.timestamp("s", "UTC"), AT.replace(microsecond=0), AT),
        (pa.timestamp("us", "UTC"), AT, NANOS),
        (pa.timestamp("us", "UTC"), AT, pd.Timestamp(-(2**63), unit="ns", tz=dt.UTC)),
        (pa.timestamp("ns", "UTC"), NANOS, pd.Timestamp(-(2**63), unit="ns", tz=dt.UTC)),
        (pa.timestamp("ns", "UTC"), AT, AT.replace(year=2300)),
        (pa.timestamp("us"), AT.replace(tzinfo=None), AT.date()),
        (pa.date32(), AT.date(), AT.replace(tzinfo=None)),
        (pa.time32("s"), dt.time(1, 2, 3), dt.time(1, 2, 3, 4000)),
        (pa.time32("ms"), dt.time(1, 2, 3, 4000), dt.time(1, 2, 3, 4)),
        (pa.time64("us"), dt.time(1, 2, 3, 4), AT),
        (pa.duration("s"), -HOUR, dt.timedelta(milliseconds=-1500)),
        (pa.duration("ms"), -HOUR, dt.timedelta(microseconds=1)),
        (pa.duration("us"), HOUR, pd.Timedelta(1001, unit="ns")),
        (pa.duration("ns"), pd.Timedelta(-1001, unit="ns"), dt.timedelta(days=200_000)),
        (pa.decimal128(5, 2), decimal.Decimal("123.45"), decimal.Decimal("123.456")),
        (pa.string(), "a", 5),
        (pa.bool_(), True, 1),
        (pa.list_(INT), [1, None, 2], [1, 2.5]),
        (pa.list_(pa.string()), ["a"], [1]),
        (pa.list_(pa.uint8()), [1], [256]),
        (pa.list_(INT, 2), [1, 2], [1, 2.5]),
        (pa.list_view(INT), [1], [1.5]),
        (pa.large_list(pa.date32()), [AT.date()], b"\0"),
        (pa.dictionary(INT, pa.int64()), 5, 5.5),
        (pa.map_(pa.string(), INT), {"a": 1}, {"a": 1.5}),
        (pa.map_(INT, pa.string()), {1: "a"}, {1.5: "a"}),
        (pa.struct([("x", INT), ("y", pa.string())]), {"x": 1, "y": "b"}, {"x": 1.5}),
        (pa.list_(pa.struct([("x", pa.list_(INT))])), [{"x": [1]}, None], [{"x": [1.5]}]),
    ],
)
def test_a_value_is_kept_as_it_is_or_its_record_is_bad(kind: pa.DataType, good: Any, bad: Any) -> None:
    """K4: nothing is rounded, cut or wrapped; other records are not touched."""
    reasons: list[str | None] = [None, None, None]

    found = as_structs([{"v": good}, {"v": bad}, {}], reasons, pa.struct([("v", kind), ("w", pa.string())]))

    values = found.to_pylist(maps_as_pydicts="strict")
    assert values[0] == {"v": good, "w": None}
    assert values[1:] == [None, {"v": None, "w": None}]
    assert reasons[0] is reasons[2] is None
    assert (reasons[1] or "").startswith("The body's record does not fit the columns: ")


NUMBERS = [0, 20231114, 1_700_000_000_000, -1, 1.0, True, decimal.Decimal(1), UUID(int=1)]


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_a_number_is_no_time(kind: pa.DataType) -> None:
    """K4: a sender's unit is unknown: 1,700,000,000,000 are milliseconds, 20231114 is a date's digits."""
    nested = pa.list_(pa.struct([("at", kind)]))
    values: list[Any] = [{"v": value} for value in NUMBERS] + [{"w": [{"at": value}]} for value in NUMBERS]
    reasons: list[str | None] = [None] * len(values)

    found = as_structs(values, reasons, pa.struct([("v", kind), ("w", nested)]))

    assert found.null_count == len(values)
    for reason, name in zip(reasons, "v" * len(NUMBERS) + "w" * len(NUMBERS), strict=True):
        assert f"the value of {name} would change. A column of times takes only times" in (reason or "")
