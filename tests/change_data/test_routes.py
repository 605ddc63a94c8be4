"""Routes from the tables of a source to those of a lake."""

from __future__ import annotations

import pickle

import pytest

from pyspark_rocketmq.change_data.change import Kind, SourceTable, SourceType
from pyspark_rocketmq.change_data.routes import (
    SHADOW_TABLES,
    Routed,
    Router,
    TableRoute,
    route_problems,
)


def routed(name: str, *routes: TableRoute, ignored: str | None = SHADOW_TABLES) -> Routed | None:
    database, *schema, table = name.split(".")
    router = Router(routes or [TableRoute()], ignored, "salt")
    found: Routed | None = pickle.loads(pickle.dumps(router)).route(
        SourceTable(database, schema[0] if schema else None, table)
    )
    return found


@pytest.mark.parametrize(
    ("name", "route", "target"),
    [
        ("shop.orders", TableRoute(), "shop/orders"),
        ("shop.public.orders", TableRoute(), "shop/public/orders"),
        ("shop.orders", TableRoute(source=r"shop\.orders"), "shop/orders"),
        ("shop.orders_1", TableRoute(source=r"shop\.orders"), None),
        ("shop_07.orders_12", TableRoute(source=r"shop_\d+\.(?P<t>\w+)_\d+", target="all/{t}"), "all/orders"),
        ("shop.orders", TableRoute(target="lake_{database}_{table}"), "lake_shop_orders"),
        ("shop._orders", TableRoute(), "shop/~5f~orders"),
        ("a/b.o$ ders", TableRoute(), "a~2f~b/o~24~~20~ders"),
        ("shop.~", TableRoute(), "shop/~7e~"),
        ("shop._orders_gho", TableRoute(), None),
        ("shop._orders_old", TableRoute(), None),
        ("shop.orders_old", TableRoute(), "shop/orders_old"),
    ],
)
def test_the_folder_of_a_table(name: str, route: TableRoute, target: str | None) -> None:
    """K2: by pattern and template; no name leaves its folder or is taken for another one."""
    found = routed(name, route)
    assert (None if found is None else found.target) == target


def test_names_of_points_stay_below_the_folder() -> None:
    """K2: a table may have any name."""
    found = Router([TableRoute()], None, "").route(SourceTable("..", None, "."))
    assert found is not None
    assert found.target == "~2e~./~2e~"


def test_the_first_route_counts() -> None:
    """K2: and a table that no route has is passed over."""
    routes = (TableRoute(source=r"shop\..*", target="a/{table}"), TableRoute(source=r".*\.orders"))
    first, second = routed("shop.orders", *routes), routed("mall.orders", *routes)
    assert first is not None
    assert second is not None
    assert (first.target, second.target, routed("mall.carts", *routes)) == ("a/orders", "mall/orders", None)


def test_shadow_tables_can_be_wanted() -> None:
    """K2: ignored_tables=None"""
    found = routed("shop._orders_gho", ignored=None)
    assert found is not None


def test_the_columns_of_a_route() -> None:
    """K2: chosen, renamed and masked; those of the key are kept."""
    route = TableRoute(include=["a", "b", "mail"], exclude=["b"], rename={"id": "no"}, mask=["mail"])
    found = routed("shop.orders", route)
    assert found is not None
    row = found.row({"a": 1, "b": 2, "c": 3, "mail": "x@y"})
    assert ([*row], len(row["mail"])) == (["a", "mail"], 64)
    assert found.row({"mail": None}) == {"mail": None}
    assert found.key({"id": 7}) == {"no": 7}
    types = {name: SourceType("int", Kind.INT) for name in ("id", "mail")}
    assert list(found.types(types)) == ["no"]
    other = Router([route], None, "other salt").route(found.table)
    assert other is not None
    assert other.row({"mail": "x@y"}) != {"mail": row["mail"]}
    assert found.row({"mail": b"x@y"}) == {"mail": row["mail"]}


def test_the_key_of_merged_tables_has_their_names() -> None:
    """K2: rows of two shards with one id are two rows."""
    found = routed("shop.public.orders_1", TableRoute(target="orders", merges=True))
    assert found is not None
    assert found.key({"id": 1}) == {
        "id": 1,
        "__source_database": "shop",
        "__source_table": "public.orders_1",
    }


@pytest.mark.parametrize(
    ("name", "route", "apart"),
    [
        ("shop.orders", TableRoute(), True),
        ("shop.public.orders", TableRoute(), True),
        ("shop.public.orders", TableRoute(target="{database}/{table}"), False),
        ("shop.orders", TableRoute(target="{table}"), False),
        ("shop.orders", TableRoute(merges=True), False),
    ],
)
def test_whether_a_table_has_a_folder_of_its_own(name: str, route: TableRoute, apart: bool) -> None:
    """K2: only then a truncation of the source's table is one of the lake's."""
    found = routed(name, route)
    assert found is not None
    assert found.route.keeps_apart(found.table) is apart


@pytest.mark.parametrize(
    ("routes", "problem"),
    [
        ([], "names none"),
        ([TableRoute(source="(")], "no regular expression"),
        ([TableRoute(target="{shard}/x")], r"has \{shard\}; there are database"),
        ([TableRoute(target="/x")], "between single slashes"),
        ([TableRoute(target="_x")], "neither a point nor an underscore"),
        ([TableRoute(target="../x")], "neither a point nor an underscore"),
        ([TableRoute(mask=["mail"])], "give mask_salt"),
        ([TableRoute(source="a", target="x"), TableRoute(target="x/{table}")], "one table could be within"),
    ],
)
def test_routes_that_cannot_be(routes: list[TableRoute], problem: str) -> None:
    """K2: with what to change."""
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(route_problems(routes, ""))


def test_routes_without_a_problem() -> None:
    """K2: a template may have the pattern's groups."""
    assert route_problems([TableRoute(source=r"(?P<a>\w+)\..*", target="{a}/{table}", mask=["x"])], "s") == []
