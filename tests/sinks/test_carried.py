"""Values of columns that a query lacks, as text with their types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from pyspark_rocketmq.change_data.change import Kind, SourceType
from pyspark_rocketmq.sinks.change_table.carried import (
    arrow_type,
    carried,
    carried_values,
    common_type,
    fitted,
)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.BOOLEAN, True),
        (Kind.LONG, 2**63 - 1),
        (Kind.DOUBLE, 0.1),
        (Kind.STRING, 'ä"\n'),
        (Kind.BINARY, b"\x00\xff"),
        (Kind.DATE, date(2026, 11, 27)),
        (Kind.TIMESTAMP, datetime(2026, 11, 27, 1, 2, 3, 4, UTC)),
        (Kind.TIMESTAMP_NTZ, datetime(2026, 11, 27, 1, 2, 3, 4)),  # noqa: DTZ001 - a time without a zone
        (Kind.INT, None),
    ],
)
def test_a_value_comes_back_as_it_was(kind: Kind, value: Any) -> None:
    """K3: exactly, with its type."""
    source = SourceType("t", kind)
    types = {"x": source, "xs": SourceType("t[]", Kind.ARRAY, element=source)}
    found = carried_values(carried({"x": value, "xs": (value,)}, types))
    assert found == {"x": (kind.value, value), "xs": (f"array<{kind.value}>", [value])}
    arrow_type(found["xs"][0])


def test_decimals_are_exact() -> None:
    """K3: with their digits; one that no type holds, and one without a type, is text."""
    types = {
        "x": SourceType("t", Kind.DECIMAL, precision=20, scale=2),
        "y": SourceType("t", Kind.DECIMAL),
    }
    found = carried_values(carried(dict.fromkeys("xyz", Decimal("1E+2")), types))
    assert found == {"x": ("decimal(20,2)", Decimal(100)), "y": ("string", "1E+2"), "z": ("string", "1E+2")}


@pytest.mark.parametrize(
    ("types", "common"),
    [
        (["int", "bigint", "tinyint"], "bigint"),
        (["int", "decimal(5,2)"], "decimal(12,2)"),
        (["decimal(38,0)", "decimal(5,2)"], "string"),
        (["float", "double"], "double"),
        (["float", "int"], "string"),
        (["date", "timestamp"], "string"),
        (["binary"], "binary"),
    ],
)
def test_the_type_for_values_of_several_types(types: list[str], common: str) -> None:
    """K3: the narrowest that holds all of them exactly, in any order."""
    assert common_type(types) == common_type(reversed(types)) == common


@pytest.mark.parametrize(
    ("value", "type_", "wanted"),
    [
        (5, "bigint", 5),
        (5, "decimal(10,2)", Decimal(5)),
        (Decimal(2**63 - 1), "bigint", 2**63 - 1),
        (Decimal("-7.00"), "tinyint", -7),
        (Decimal("1E+3"), "int", 1000),
        (1.5, "double", 1.5),
        (5, "double", 5),
        (Decimal("0.10"), "double", 0.1),
        (Decimal("0.5"), "float", 0.5),
        (0.1, "float", 0.10000000149011612),
        (5, "string", "5"),
        (True, "string", "true"),
        (date(2026, 1, 1), "string", "2026-01-01"),
        (["a", 1], "string", '["a",1]'),
        (None, "int", None),
    ],
)
def test_a_value_that_a_wider_column_holds(value: Any, type_: str, wanted: Any) -> None:
    """K3: it is converted, exactly."""
    assert fitted(value, type_) == wanted


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (2**31, "int"),
        (1.5, "int"),
        (0.1000000001, "float"),
        (2**53 + 1, "double"),
        (True, "int"),
        ("5", "int"),
        (Decimal("1.555"), "decimal(10,2)"),
        (Decimal(2**63), "bigint"),
        (Decimal("1E+99999999"), "bigint"),
        (Decimal("0.00000001"), "bigint"),
        (Decimal("1E-2000000"), "bigint"),
        (Decimal("NaN"), "bigint"),
        (Decimal("NaN"), "double"),
        (Decimal("1E+400"), "double"),
        (Decimal("1E+39"), "float"),
        (datetime(2026, 1, 1, tzinfo=UTC), "timestamp_ntz"),
        (datetime(2026, 1, 1, tzinfo=UTC), "date"),
        (b"x", "string"),
    ],
)
def test_a_value_that_a_column_cannot_hold(value: Any, type_: str) -> None:
    """K3: nothing is rounded, cut or moved to a zone."""
    with pytest.raises(ValueError, match=r"."):
        fitted(value, type_)
