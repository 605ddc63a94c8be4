"""Paths that are one folder, folders within each other, and paths that machines do not share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.consumer.preparation import check_and_prepare, folders_of_tables, table_places
from pyspark_rocketmq.errors import OptionError, StorageNotShared
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.change_table.tables import ChangeTables
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink
from pyspark_rocketmq.sinks.shared_storage import check_not_nested, check_shared, normal_place


@pytest.mark.parametrize("other", ["x/../lake", "./lake", "lake/", "link"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_one_folder_under_two_names_is_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, scheme: str
) -> None:
    """H8"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")

    assert normal_place(f"{scheme}{tmp_path}/{other}") == normal_place(f"{tmp_path}/lake")
    assert normal_place("lake") == f"{tmp_path.resolve()}/lake"


def test_a_uri_is_one_place_however_it_is_written() -> None:
    """H8"""
    assert normal_place("s3a://bucket/x/../lake/") == normal_place("S3://bucket/lake") == "s3://bucket/lake"
    assert normal_place("file:///data%20lake") == "/data lake"


def test_a_uri_with_a_single_slash_is_no_folder_of_that_name(tmp_path: Path) -> None:
    """H8: Hadoop's way to write a path of this machine is that path; of other storage it names nothing."""
    assert DeltaSink(f"file:{tmp_path}/data%20lake").path == f"{tmp_path}/data%20lake"
    assert DeltaOffsetStore(f"file:{tmp_path}").spec == f"delta:{tmp_path}"

    for make in (DeltaSink, DeltaOffsetStore):
        with pytest.raises(OptionError, match=r"'hdfs:/lake' is neither .* write hdfs://AUTHORITY/lake"):
            make("hdfs:/lake")
        with pytest.raises(OptionError, match=r"'dbfs:/mnt/lake'.* write /dbfs/mnt/lake"):
            make("dbfs:/mnt/lake")


@pytest.mark.parametrize(
    ("sink", "store", "problem"),
    [
        ("/lake/orders", "/lake/../lake/orders", "are one place"),
        ("/lake/orders", "/lake/orders/offsets", r"lie within each other: .*\(/lake/orders\) removes files"),
        ("s3://lake/_offsets/orders", "s3a://lake/_offsets", r"lie within .*\(s3://lake/_offsets\)"),
    ],
)
def test_tables_in_one_place_or_within_each_other_are_refused(sink: str, store: str, problem: str) -> None:
    """H8: VACUUM of the outer one, which the offset table does by itself, removes the inner one's files."""
    with pytest.raises(OptionError, match=rf"sink='{sink}' and offset_store='{store}' {problem}"):
        check_not_nested({"sink": sink, "offset_store": store})


@pytest.mark.parametrize(
    ("sink", "store"),
    [
        ("/lake/orders", "/lake/orders_offsets"),
        ("/lake", "/lake/_offsets"),
        ("/lake/orders", "s3://lake/orders"),
    ],
)
def test_tables_beside_each_other_or_in_a_hidden_folder_are_taken(sink: str, store: str) -> None:
    check_not_nested({"sink": sink, "offset_store": store})


def _check(sinks: list[Sink], store: str) -> None:
    sink = MultiSink(sinks) if sinks[1:] else sinks[0]
    check_not_nested(table_places(sink, DeltaOffsetStore(store)), folders_of_tables(sink))


def _change_tables(folder: str) -> ChangeTables:
    return ChangeTables(folder, envelope="canal", source_time_zone="UTC")


@pytest.mark.parametrize(
    ("folder", "store", "problem"),
    [
        ("/lake", "/lake", "are one place"),
        ("/lake/shop", "/lake/../lake/shop", "are one place"),
        ("/lake", "/lake/shop", r"lie within .* at any place below /lake, .* at /lake/shop removes"),
        ("/lake", "/lake/shop/orders", r"lie within .* at /lake/shop/orders removes"),
        ("s3://lake/a", "s3a://lake/a/b/_offsets", "lie within .* at any place below s3://lake/a"),
        ("/lake/shop", "/lake", r"VACUUM of the outer table \(/lake\)"),
    ],
)
def test_a_table_at_a_place_for_change_tables_is_refused(folder: str, store: str, problem: str) -> None:
    """H8: the change tables lie anywhere below their folder, so its VACUUM could remove their files."""
    with pytest.raises(
        OptionError, match=rf"offset_store='{store}' and change tables='{folder}' .*{problem}"
    ):
        _check([_change_tables(folder)], store)


def test_other_sinks_at_a_place_for_change_tables_are_refused() -> None:
    """H8: such as another sink's change tables; two of these may be beside each other."""
    whole = _change_tables("/lake")
    pairs: list[list[Sink]] = [[DeltaSink("/lake/shop"), whole], [whole, _change_tables("/lake/shop")]]
    for sinks in pairs:
        with pytest.raises(OptionError, match=r"at any place below /lake, .* at /lake/shop removes"):
            _check(sinks, "/offsets")
    _check([DeltaSink("/shop"), _change_tables("/lake"), _change_tables("/lake2")], "/offsets")


def test_a_query_with_a_table_at_a_place_for_change_tables_does_not_start() -> None:
    """H8: it ends before it asks a broker or makes a table."""
    nothing: Any = None
    store, sink = DeltaOffsetStore("/lake/shop"), _change_tables("/lake")
    with pytest.raises(OptionError, match="at any place below /lake"):
        check_and_prepare(nothing, nothing, store, sink, nothing, is_orderly=True)


@pytest.mark.parametrize("store", ["/lake/_offsets", "/lake/.offsets", "/lake_offsets", "/other/lake"])
def test_a_table_beside_change_tables_or_in_a_hidden_folder_of_theirs_is_taken(store: str) -> None:
    """H8: only their table of watermarks counts for the check of shared folders."""
    sink = _change_tables("/lake")
    _check([sink], store)
    assert sink.folders == ("/lake/_changes",)


class Session:
    """Of a cluster; tasks run after ``before_tasks``, which makes this machine look as another one does."""

    def __init__(self, master: str, before_tasks: Callable[[], None]) -> None:
        self.master = master
        self.defaultParallelism = 4
        self.jobs = 0
        self._before_tasks = before_tasks
        self._rows: list[dict[str, Any]] = []

    @property
    def sparkContext(self) -> Session:  # noqa: N802 - Spark's
        return self

    def setJobGroup(self, *_: object, **__: object) -> None:  # noqa: N802 - Spark's
        self.jobs += 1

    def range(self, *_: int) -> Session:
        return self

    def mapInArrow(  # noqa: N802 - Spark's
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> Session:
        self._before_tasks()
        self._rows = [row for batch in function(iter(())) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def test_a_path_that_is_another_folder_on_an_executor_is_refused(tmp_path: Path) -> None:
    """H7: rows would be written where the table's readers never look."""
    (tmp_path / "sink").mkdir()
    (tmp_path / "other").mkdir()

    def on_an_executor() -> None:
        (tmp_path / "sink").rename(tmp_path / "of the driver")
        (tmp_path / "other").rename(tmp_path / "sink")

    spark: Any = Session("spark://master:7077", on_an_executor)
    with pytest.raises(
        StorageNotShared, match=r"sink='.*/sink' is another folder on .* Name storage that all machines share"
    ):
        check_shared(spark, {"offset_store": str(tmp_path / "store"), "sink": f"file://{tmp_path}/sink"})


def test_a_folder_that_all_machines_have_mounted_is_taken_and_nothing_is_left_there(tmp_path: Path) -> None:
    (tmp_path / "sink").mkdir()
    spark: Any = Session("yarn", lambda: None)

    check_shared(spark, {"sink": str(tmp_path / "sink")})

    assert spark.jobs == 1
    assert list((tmp_path / "sink").iterdir()) == []


@pytest.mark.parametrize(
    ("master", "path"), [("local", "/x"), ("local[4]", "/x"), ("yarn", "s3://bucket/orders"), ("yarn", None)]
)
def test_nothing_is_looked_for_on_one_machine_or_on_shared_storage(master: str, path: str | None) -> None:
    spark: Any = Session(master, lambda: None)

    check_shared(spark, {"sink": path} if path else {})

    assert spark.jobs == 0
