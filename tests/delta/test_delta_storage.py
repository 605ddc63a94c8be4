"""Where a table may be: storage that creates files exclusively, and Spark's addresses of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pyspark_rocketmq import DeltaOffsetStore, DeltaSink
from pyspark_rocketmq.delta.paths import check_exclusive_create
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.sinks.delta.spark_writer import log_store_problem, spark_address
from tests.helpers.sink_rows import GROUP
from tests.sinks.sink_conformance import SCHEMA


def without_links(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSYS) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


def use_sink(path: Path) -> None:
    DeltaSink(path).prepare(SCHEMA)


def use_store(path: Path) -> None:
    DeltaOffsetStore(path).read(GROUP)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("use", [use_sink, use_store])
def test_a_table_on_a_mount_without_exclusive_creation_is_refused_before_anything_is_written(
    use: Callable[[Path], None], is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2."""
    path = tmp_path / "volume" / "orders"
    if not is_new:
        use(path)
    before = sorted(path.rglob("*"))
    without_links(monkeypatch)

    with pytest.raises(OptionError, match=r"cannot create a file exclusively .*s3://…, abfss://…") as refusal:
        use(path)

    assert str(path) in str(refusal.value)
    assert [each for each in sorted(path.rglob("*")) if each.is_file()] == [
        each for each in before if each.is_file()
    ]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_each_way_in_which_a_file_system_says_that_it_has_no_links_is_known(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2."""
    without_links(monkeypatch, number)

    with pytest.raises(OptionError, match=os.strerror(number)):
        check_exclusive_create(str(tmp_path))


def test_a_full_disk_a_missing_folder_and_an_object_store_are_left_to_the_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_exclusive_create(str(tmp_path / "missing"))
    check_exclusive_create("s3://bucket/orders")
    without_links(monkeypatch, errno.ENOSPC)
    check_exclusive_create(str(tmp_path))


@pytest.mark.parametrize("use", [use_sink, use_store])
@pytest.mark.parametrize("name", ["100%25", "a%2fb", "a%20b"])
def test_a_path_that_delta_rs_would_decode_is_refused(
    use: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    """J2: nothing is left in the folder that was named, or in the one that would be read."""
    with pytest.raises(
        OptionError, match=rf"{name}/orders has %2., for which delta-rs reads .* another name"
    ):
        use(tmp_path / name / "orders")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["50%", "a%zz", "a b", "订单"])
def test_other_names_of_folders_are_taken(name: str, tmp_path: Path) -> None:
    """J2: also with a percent sign that begins no code."""
    use_sink(tmp_path / name)
    assert (tmp_path / name / "_delta_log").is_dir()


def test_a_disk_keeps_nothing_of_the_trial(tmp_path: Path) -> None:
    check_exclusive_create(tmp_path.as_uri())

    assert list(tmp_path.iterdir()) == []


def session(*readable: str) -> Any:
    """A Spark session that reads tables at these addresses."""

    def load(address: str) -> Any:
        if address not in readable:
            raise AnalysisException("No FileSystem for scheme")
        return SimpleNamespace(schema="its columns")

    return SimpleNamespace(read=SimpleNamespace(format=lambda _: SimpleNamespace(load=load)))


@pytest.mark.parametrize(
    ("readable", "found"),
    [
        (["s3://bucket/orders"], "s3://bucket/orders"),
        (["s3a://bucket/orders"], "s3a://bucket/orders"),
        (["s3://bucket/others"], None),
    ],
)
def test_spark_s_writer_uses_the_address_at_which_spark_finds_the_table(
    readable: list[str], found: str | None
) -> None:
    """J5: no setting shows it, and open-source Spark knows S3 by another name."""
    assert spark_address(session(*readable), "s3://bucket/orders") == found


def test_without_a_session_there_is_no_address() -> None:
    assert spark_address(None, "/orders") is None


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_log_store_on_s3_that_could_overwrite_a_commit_is_refused(scheme: str) -> None:
    """J1, J5."""
    settings: dict[str, str] = {}
    problem = log_store_problem(f"{scheme}://bucket/orders", settings.get)

    assert problem is not None
    assert f"Set spark.delta.logStore.{scheme}.impl" in problem


@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("/orders", {}),
        ("abfss://orders@account.dfs.core.windows.net/", {}),
        ("s3a://bucket/orders", {"spark.delta.logStore.s3a.impl": "org.example.Exclusive"}),
        ("s3a://bucket/orders", {"spark.delta.logStore.class": "org.example.Exclusive"}),
        ("s3://bucket/orders", {"spark.databricks.clusterUsageTags.sparkVersion": "17.3.x"}),
    ],
)
def test_a_log_store_that_was_chosen_or_needs_no_choice_is_used(
    address: str, settings: dict[str, str]
) -> None:
    assert log_store_problem(address, settings.get) is None


@pytest.mark.parametrize("address", ["s3://bucket/orders", "s3a://bucket/orders"])
@pytest.mark.parametrize("more", [{}, {"spark.delta.logStore.class": "org.example.Exclusive"}], ids=str)
def test_databricks_orders_only_commits_of_its_own_writers(address: str, more: dict[str, str]) -> None:
    """J1, J5: not those of a sink that delta-rs commits."""
    settings = {"spark.databricks.clusterUsageTags.sparkVersion": "17.3.x", **more}

    assert log_store_problem(address, settings.get) is None
    problem = log_store_problem(address, settings.get, beside_delta_rs=True)

    assert problem is not None
    assert "Databricks coordinates only its own writers" in problem
    assert log_store_problem("abfss://c@a.dfs.core.windows.net/", settings.get, beside_delta_rs=True) is None


@pytest.mark.parametrize("path", ["s3://bucket/orders", "/orders"])
def test_a_sink_on_s3_warns_of_spark_s_writers_on_databricks(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """J1, J5"""
    settings = {"spark.databricks.clusterUsageTags.sparkVersion": "17.3.x"}
    conf = SimpleNamespace(get=settings.get)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(conf=conf))

    DeltaSink(path)._table._warn_of_spark()

    assert len(caplog.messages) == path.startswith("s3:")
    assert all("by OPTIMIZE, its commits on S3 could overwrite" in text for text in caplog.messages)
