"""What a text names: a table of a catalog, or a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_rocketmq import DeltaOffsetStore, DeltaSink
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.errors import OptionError


@pytest.mark.parametrize(
    ("text", "parts", "shown"),
    [
        ("shop.orders", ("shop", "orders"), "shop.orders"),
        ("main.shop.orders", ("main", "shop", "orders"), "main.shop.orders"),
        ("`my-catalog`.shop.`a.b`", ("my-catalog", "shop", "a.b"), "`my-catalog`.shop.`a.b`"),
        ("shop.`a``b`", ("shop", "a`b"), "shop.`a``b`"),
        ("shop.`a/b`", ("shop", "a/b"), "shop.`a/b`"),
    ],
)
def test_names_are_read_as_spark_reads_them(text: str, parts: tuple[str, ...], shown: str) -> None:
    """J5: and shown as they can be given again."""
    name = TableName.of(text)

    assert name == TableName(parts)
    assert str(name) == shown
    assert TableName.of(str(name)) == TableName.of(str(TableName.of(name.sql))) == name


@pytest.mark.parametrize(
    "place",
    [
        *("/lake/orders", "/lake/a `b` c", "./orders", "./a`b", "../a`b", "lake/a.b", "s3://lake/a.b", ".."),
        *(Path("orders"), Path("a.b")),
    ],
)
def test_what_has_a_slash_or_a_scheme_is_a_path(place: str | Path) -> None:
    """J5: as before."""
    assert TableName.of(place) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders", r"'orders' has 1 part; .*CATALOG\.SCHEMA\.TABLE, for a folder write './orders' or an abs"),
        ("a.b.c.d", r"has 4 parts; .*'./a\.b\.c\.d'"),
        ("orders-v1.2", r"not the name of a table.*backquotes.*'./orders-v1\.2'"),
        ("a..b", "not the name of a table"),
        ("delta.`/lake/orders`", "write '/lake/orders'"),
    ],
)
def test_what_could_be_either_is_refused_with_both_ways(text: str, said: str) -> None:
    """J5: a folder of that name was meant before there were names."""
    with pytest.raises(OptionError, match=said):
        DeltaSink(text)


def test_a_name_beside_a_delta_table_in_the_folder_of_that_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.orders" / "_delta_log").mkdir(parents=True)

    with pytest.raises(OptionError, match=r"for a folder write './shop\.orders', .*`shop`\.`orders`"):
        DeltaSink("shop.orders")

    assert DeltaSink("./shop.orders").path == str(tmp_path / "shop.orders")
    assert DeltaSink("`shop`.`orders`").path == "shop.orders"


def test_an_offset_table_has_no_name() -> None:
    """J5: a bare word stays a folder."""
    with pytest.raises(OptionError, match=r"delta-rs writes the offset table.*'\./main\.shop\.offsets'"):
        DeltaOffsetStore("main.shop.offsets")

    assert DeltaOffsetStore("offsets").spec == f"delta:{Path('offsets').absolute()}"
    assert DeltaOffsetStore("offsets-v1.2").spec.endswith("/offsets-v1.2")


def test_a_sink_that_is_named_needs_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """J5."""
    monkeypatch.setattr("pyspark_rocketmq.sinks.delta.spark_writer.living_session", lambda _: None)

    with pytest.raises(
        OptionError, match=r"shop\.orders is the name of a table, which needs a Spark session"
    ):
        DeltaSink("shop.orders").watermarks("g")
