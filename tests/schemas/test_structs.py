from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.schemas.structs import as_structs

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=dt.UTC)
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
        (pa.float64(), 1e300, "1e300"),
        (pa.date32(), dt.date(2026, 1, 2), AT),
        (pa.timestamp("us", "UTC"), AT, "2026"),
        (pa.timestamp("ms", "UTC"), AT.replace(microsecond=123000), AT),
        (pa.timestamp("s", "UTC"), AT.replace(microsecond=0), AT),
        (pa.time32("ms"), dt.time(1, 2, 3, 4000), dt.time(1, 2, 3, 4)),
        (pa.decimal128(5, 2), decimal.Decimal("123.45"), decimal.Decimal("123.456")),
        (pa.string(), "a", 5),
        (pa.bool_(), True, 1),
        (pa.list_(INT), [1, None, 2], [1, 2.5]),
        (pa.list_(pa.string()), ["a"], [1]),
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
