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
    assert list(found.types(types, ["id"])) == ["no"]
    taking = Routed(found.table, TableRoute(rename={"a": "b"}, exclude=["b"]), "x", b"")
    assert taking.types({"a": types["id"], "b": SourceType("text", Kind.STRING)}, []) == {"b": types["id"]}
    other = Router([route], None, "other salt").route(found.table)
    assert other is not None
    assert other.row({"mail": "x@y"}) != {"mail": row["mail"]}
    assert found.row({"mail": b"x@y"}) == {"mail": row["mail"]}


def test_columns_that_a_statement_names() -> None:
    """K3: by their names in the lake, without those that the lake lacks; in whatever case."""
    route = TableRoute(rename={"a": "x"}, exclude=["Note"], include=["a", "b", "note"])
    routed = Router([route], None, "").route(SourceTable("shop", None, "orders"))
    assert routed is not None
    assert routed.names_of(["A", "B", "note", "c"]) == ["x", "B"]


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
    ("route", "columns", "problem"),
    [
        (TableRoute(rename={"a": "b"}), ["a", "b"], "Columns a and b of shop.orders would both be b"),
        (TableRoute(rename={"a": "b"}), ["b", "a"], "Columns b and a of shop.orders would both be b"),
        (TableRoute(rename={"mail": "id"}), ["id", "mail"], "Columns id and mail of shop.orders would both"),
        (TableRoute(rename={"id": "mail"}, exclude=["id"]), ["mail"], "Columns id and mail of shop.orders"),
        (TableRoute(merges=True), ["__source_table"], "Columns __source_table and __source_table of"),
        (TableRoute(rename={"a": "b", "b": "a"}), ["a", "b"], None),
        (TableRoute(rename={"a": "b"}, exclude=["b"]), ["a", "b"], None),
        (TableRoute(rename={"a": "b"}, include=["a"]), ["a", "b"], None),
        (TableRoute(), ["__source_table"], None),
    ],
)
def test_two_columns_do_not_become_one(route: TableRoute, columns: list[str], problem: str | None) -> None:
    """K2: one of two values would be lost."""
    found = routed("shop.orders", route)
    assert found is not None
    reason = found.names_problem(columns, ["id"])
    assert reason is None if problem is None else problem in (reason or "")


@pytest.mark.parametrize(
    ("name", "route", "has_problem"),
    [
        ("shop.orders", TableRoute(), False),
        ("shop.orders", TableRoute(target="{database}/{schema}"), True),
        ("shop.orders", TableRoute(source=r"shop\.(?P<name>a)?.*", target="all/{name}"), True),
        ("shop.a", TableRoute(source=r"shop\.(?P<name>a)?.*", target="all/{name}"), False),
        ("shop.orders", TableRoute(source=r"shop\.(?P<name>a)?.*", target="all/t{name}"), False),
    ],
)
def test_a_folder_has_no_empty_name(name: str, route: TableRoute, has_problem: bool) -> None:
    """K2: the table would be that of the folder above, which may have others within it."""
    found = routed(name, route)
    assert found is not None
    assert (found.folder_problem is not None) is has_problem


def test_the_source_of_a_folder_s_rows() -> None:
    """K2: no two tables have one; merged tables have the same one."""
    names = ("shop.orders", "shop.public.orders", "public.shop.orders")
    found = [routed(name) for name in names]
    assert len({each.source for each in found if each is not None}) == len(names)
    merged = [routed(name, TableRoute(merges=True)) for name in names]
    assert {each.source for each in merged if each is not None} == {"*"}


def test_the_salt_is_not_shown() -> None:
    """K2: neither in the text of a routed table."""
    assert "salt'" not in repr(routed("shop.orders"))


@pytest.mark.parametrize(
    ("routes", "problem"),
    [
        ([], "routes is an empty list; leave it out"),
        ([TableRoute(source="(")], "not a regular expression"),
        (
            [TableRoute(target="{shard}/x")],
            r"has \{shard\}, which is not a placeholder; the placeholders are database",
        ),
        ([TableRoute(target="/x")], "between single slashes"),
        ([TableRoute(target="_x")], "neither a point nor an underscore"),
        ([TableRoute(target="../x")], "neither a point nor an underscore"),
        ([TableRoute(mask=["mail"])], "give mask_salt"),
        ([TableRoute(source="a", target="x"), TableRoute(target="x/{table}")], "one table could be within"),
        ([TableRoute(source="a", target="x"), TableRoute()], "one table could be within"),
        ([TableRoute(source="a", target="1/2/3/x"), TableRoute()], "one table could be within"),
        (
            [TableRoute(rename={"a": "x", "b": "y", "c": "X"})],
            "gives several columns the name X, x; give each another",
        ),
    ],
)
def test_routes_that_cannot_be(routes: list[TableRoute], problem: str) -> None:
    """K2: with what to change."""
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(route_problems(routes, ""))


def test_routes_without_a_problem() -> None:
    """K2: a template may have the pattern's groups."""
    assert route_problems([TableRoute(source=r"(?P<a>\w+)\..*", target="{a}/{table}", mask=["x"])], "s") == []
