"""Types of a Delta table as SQL writes them, and which of their metadata is a part of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.delta.ddl import columns_ddl, names_within, type_ddl
from pyspark_rocketmq.delta.table import as_nullable, column_differences, parse_columns


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def field(name: str, type_: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def array(element: Any, *, nulls: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def map_of(key: Any, value: Any, *, nulls: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nulls}


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("integer", "int"),
        ("long", "bigint"),
        ("decimal(10,2)", "decimal(10,2)"),
        (struct(field("a", "short", nullable=False)), "struct<a: smallint NOT NULL>"),
        (struct(field("order-id", "byte"), field("p.q", "date")), "struct<`order-id`: tinyint, `p.q`: date>"),
        (struct(field("a`b", "string")), "struct<`a``b`: string>"),
        (array(struct(field("a", "string"))), "array<struct<a: string>>"),
        (array("long", nulls=False), "array<bigint NOT NULL>"),
        (map_of("string", array("integer")), "map<string, array<int>>"),
        (map_of("string", "long", nulls=False), "map<string, bigint NOT NULL>"),
        ({"type": "udt", "class": "x"}, '{"class": "x", "type": "udt"}'),
    ],
)
def test_a_type_is_shown_as_sql(type_: Any, text: str) -> None:
    assert type_ddl(type_) == text


def test_every_name_is_quoted_in_a_statement() -> None:
    """J5: names of fields, too, as JSON has them."""
    inner = struct(field("@type", "string", nullable=False), field("p.q", array("integer", nulls=False)))
    schema = json.dumps(struct(field("v", "long", nullable=False), field("s", inner)))

    statement = columns_ddl(schema)

    assert statement == "`v` bigint NOT NULL, `s` struct<`@type`: string NOT NULL, `p.q`: array<int>>"
    assert columns_ddl(schema, as_nullable=True).startswith("`v` bigint, ")
    assert list(names_within(schema)) == ["v", "s", "@type", "p.q"]


@pytest.mark.parametrize(
    "metadata",
    [{"comment": "text"}, {"delta.columnMapping.id": 3}, {"CURRENT_DEFAULT": "1"}, {"delta.invariants": "x"}],
)
@pytest.mark.parametrize("where", ["struct", "array", "map key", "map value", "deep"])
def test_what_a_field_within_a_type_is_marked_with_is_no_part_of_it(
    metadata: dict[str, Any], where: str
) -> None:
    """H4, J5: a comment made a table of the same columns another one."""

    def column(**more: Any) -> str:
        inner = struct(field("a", "integer", **more))
        types = {
            "struct": inner,
            "array": array(inner),
            "map key": map_of(inner, "string"),
            "map value": map_of("string", inner),
            "deep": struct(field("b", array(map_of("string", struct(field("c", inner)))))),
        }
        return json.dumps(struct(field("x", types[where])))

    [plain], [marked] = parse_columns(column()), parse_columns(column(**metadata))

    assert plain.type == marked.type
    assert marked.marks_within == metadata.keys() - {"comment"}


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        ("struct<a: int NOT NULL>", "struct<a: int>", True),
        ("array<int NOT NULL>", "array<int>", True),
        ("struct<a: int>", "struct<a: int NOT NULL>", False),
        ("struct<a: int>", "struct<a: bigint>", False),
    ],
)
def test_values_that_are_never_null_fit_where_nulls_may_be(wanted: str, found: str, fits: bool) -> None:
    """H4: and not the other way round, for nobody would look at the values."""
    assert (column_differences({"s": wanted}, {"s": found}, "the table") == ()) is fits


def test_a_column_is_made_nullable_at_every_depth() -> None:
    """H4"""
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    deep = pa.map_(
        inner, pa.field("value", pa.list_(pa.field("element", inner, nullable=False)), nullable=False)
    )

    made = as_nullable(pa.field("m", deep, nullable=False))

    loose = pa.struct([("a", pa.int32())])
    assert made == pa.field("m", pa.map_(loose, pa.list_(pa.field("element", loose))))
