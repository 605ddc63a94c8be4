"""Changes as values."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from pyspark_rocketmq.change_data.change import Change, Kind, Operation, SourceTable, SourceType

ORDERS = SourceTable("shop", None, "orders")


def test_table_shows_its_parts() -> None:
    assert str(ORDERS) == "shop.orders"
    assert str(SourceTable("shop", "public", "orders")) == "shop.public.orders"


@pytest.mark.parametrize(
    ("kind", "precision", "scale", "spark"),
    [
        (Kind.DECIMAL, 20, 0, "decimal(20,0)"),
        (Kind.DECIMAL, 38, 30, "decimal(38,30)"),
        (Kind.DECIMAL, 65, 30, "string"),
        (Kind.DECIMAL, 2, -3, "decimal(5,0)"),
        (Kind.DECIMAL, 3, 5, "decimal(5,5)"),
        (Kind.DECIMAL, 2, -37, "string"),
        (Kind.DECIMAL, None, None, "string"),
        (Kind.LONG, None, None, "bigint"),
        (Kind.TIMESTAMP_NTZ, None, None, "timestamp_ntz"),
    ],
)
def test_type_names_a_spark_type_that_holds_every_value(
    kind: Kind, precision: int | None, scale: int | None, spark: str
) -> None:
    assert SourceType("text", kind, precision, scale).spark == spark


def test_array_has_the_type_of_its_elements() -> None:
    element = SourceType("int32", Kind.INT)

    assert SourceType("array", Kind.ARRAY, element=element).spark == "array<int>"


def test_change_survives_a_task_boundary() -> None:
    change = Change(
        table=ORDERS,
        operation=Operation.UPDATE,
        key={"id": 7},
        row={"id": 7, "price": Decimal("1.10"), "at": datetime(2026, 1, 2, tzinfo=UTC)},
        before={"id": 7},
        position=(0, 3, 4711, 0),
        absent=frozenset({"notes"}),
        types={"id": SourceType("bigint", Kind.LONG)},
    )
    plain = Change(table=ORDERS, operation=Operation.TRUNCATE)

    assert pickle.loads(pickle.dumps(change)) == change
    assert pickle.loads(pickle.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operation": Operation.TRUNCATE, "key": {"id": 1}}, "no key and no row"),
        ({"operation": Operation.DELETE, "row": {"id": 1}}, "no row after it"),
        (
            {"operation": Operation.UPDATE, "row": {"a": 1}, "absent": frozenset("a")},
            "in the row and absent; give each",
        ),
    ],
)
def test_change_that_contradicts_itself_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Change(table=ORDERS, **change)  # type: ignore[arg-type]


def test_positions_of_one_table_compare_part_by_part() -> None:
    """Change data, decision 1: the order is the source's."""
    positions = [(1, 2, 900, 0), (1, 10, 4, 1), (1, 10, 4, 0), (0, 99, 1, 0)]

    assert sorted(positions) == [(0, 99, 1, 0), (1, 2, 900, 0), (1, 10, 4, 0), (1, 10, 4, 1)]
