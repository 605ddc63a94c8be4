"""Several sinks of one query, each with its own rows and watermarks."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.errors import OptionError, SinkConflict
from pyspark_rocketmq.model import POSITION_COLUMNS
from pyspark_rocketmq.sinks.base import QueueGeneration, sends_rows
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink, Route
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.sinks.group_conformance import GroupConformance
from tests.sinks.sink_conformance import (
    SCHEMA,
    rows,
    run,
    steps_of,
    task_rows,
    written_by,
)


def delta(path: Path) -> DeltaSink:
    return DeltaSink(path, sleep=lambda _: None)


@pytest.fixture
def sinks(tmp_path: Path) -> MultiSink:
    """All rows into one, those that are paid into another, with fewer columns into a third."""
    made = MultiSink(
        [
            delta(tmp_path / "all"),
            Route(sink=delta(tmp_path / "paid"), where=pc.field("step") == "paid"),
            Route(sink=delta(tmp_path / "positions"), columns=()),
        ]
    )
    made.prepare(SCHEMA)
    return made


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            pc.field("stepp") == "paid",
            "which have the columns .*step.* No match for FieldRef.Name\\(stepp\\)",
        ),
        (pc.field("Step") == "paid", "names are case-sensitive"),
        (pc.field("step") > 3, "cannot be evaluated on the rows"),
        (pc.field("step"), "cannot be evaluated on the rows"),
    ],
)
def test_a_condition_that_rows_cannot_have_is_refused_at_the_start(
    tmp_path: Path, where: pc.Expression, said: str
) -> None:
    """H1: not in the first task."""
    made = MultiSink([Route(sink=delta(tmp_path / "a"), where=where)])

    with pytest.raises(OptionError, match=said):
        made.prepare(SCHEMA)
    assert not (tmp_path / "a").exists()


def test_rows_travel_to_the_driver_only_if_a_sink_takes_them_there(tmp_path: Path, sinks: MultiSink) -> None:
    """H1: such parts are bounded."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "rows.db")

    database = DatabaseSink(connect, lambda cursor, rows: None)
    both = MultiSink([delta(tmp_path / "all"), database])
    both.prepare(SCHEMA)

    writers = [sink.begin(GROUP, {Q0: 0}).task_writer() for sink in (sinks, database, both)]
    assert list(map(sends_rows, writers)) == [False, True, True]


def stored_in(path: Path) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table()


class TestSeveralSinks(GroupConformance):
    """Of two sinks, either holds what one sink would."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> MultiSink:
        made = MultiSink([delta(tmp_path / "one"), delta(tmp_path / "other")])
        made.prepare(SCHEMA)
        return made

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Callable[[], Any]:
        def both() -> list[tuple[Any, ...]]:
            one, other = (steps_of(stored_in(tmp_path / name)) for name in ("one", "other"))
            assert one == other
            return one

        return both


def test_each_sink_gets_the_rows_and_columns_of_its_route(sinks: MultiSink, tmp_path: Path) -> None:
    """H1: watermarks move where no row came, too."""
    assert run(sinks, {Q0: 2, Q1: 3}, rows(Q0, 0, 2), rows(Q1, 0, 3, "paid")) == 5

    assert stored_in(tmp_path / "all").num_rows == 5
    assert steps_of(stored_in(tmp_path / "paid")) == [(1, offset, "paid") for offset in range(3)]
    positions = stored_in(tmp_path / "positions")
    assert (positions.num_rows, positions.column_names) == (5, list(POSITION_COLUMNS))
    assert delta_watermark(tmp_path / "paid") == 2


def delta_watermark(path: Path) -> int | None:
    return DeltaTable(path).transaction_version(f"rocketmq:{GROUP}:orders:broker-a:0")


def test_killed_between_two_commits_each_row_is_in_each_sink_once(
    sinks: MultiSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: and the batch that runs again may get farther."""
    batch = sinks.begin(GROUP, {Q0: 0, Q1: 0})
    written = written_by(batch, rows(Q0, 0, 2, "paid"))
    with monkeypatch.context() as patched:
        patched.setattr(batch.batches[1], "commit", _killed)  # type: ignore[attr-defined]
        with pytest.raises(SinkConflict):
            batch.commit(written, {Q0: 2})
    assert [stored_in(tmp_path / name).num_rows for name in ("all", "paid")] == [2, 0]

    assert run(sinks, {Q0: 3}, rows(Q0, 0, 3, "paid")) == 1, "one sink has the others"

    for name in ("all", "paid", "positions"):
        assert sorted(stored_in(tmp_path / name).column("queueOffset").to_pylist()) == [0, 1, 2], name


def test_rows_that_no_route_takes_are_not_rows_left_out(tmp_path: Path) -> None:
    """H1: what is left out is what a sink has already."""
    sinks = MultiSink(
        [Route(sink=delta(tmp_path / step), where=pc.field("step") == step) for step in ("paid", "sent")]
    )
    sinks.prepare(SCHEMA)
    made = (rows(Q0, 0, 2, "paid"), rows(Q0, 2, 5, "sent"), rows(Q0, 5, 6, "created"))

    assert task_rows(sinks.begin(GROUP, {Q0: 0}), *made).left_out == 0
    run(sinks, {Q0: 6}, *made)
    assert task_rows(sinks.begin(GROUP, {Q0: 0}), *made).left_out == 5


def test_two_sinks_of_one_place_are_refused(tmp_path: Path) -> None:
    """H1: the first one's commit would have the other drop rows that it never wrote."""
    orders = delta(tmp_path / "orders")

    with pytest.raises(OptionError, match="have one place for their watermarks"):
        MultiSink([orders, Route(sink=delta(tmp_path / "orders"), where=pc.field("step") == "paid")])
    with pytest.raises(OptionError, match=r"sink=\[\] is an empty list"):
        MultiSink([])


def test_all_of_them_are_where_the_last_one_is(sinks: MultiSink) -> None:
    """H2: a query without offsets goes on from there; of a queue that one has nothing of,
    from its beginning.
    """
    run(sinks, {Q0: 2}, rows(Q0, 0, 2))
    run(sinks._routes[0].sink, {Q0: 3, Q1: 1}, rows(Q0, 2, 3), rows(Q1, 0, 1))

    assert sinks.watermarks(GROUP) == {QueueGeneration(Q0, 0): 2, QueueGeneration(Q1, 0): 0}


def _killed(*_: object) -> None:
    raise SinkConflict("killed")


def test_a_column_that_the_rows_do_not_have_is_refused(tmp_path: Path) -> None:
    sinks = MultiSink([Route(sink=delta(tmp_path / "orders"), columns=("stepp",))])

    with pytest.raises(OptionError, match="columns names stepp, which the rows do not have; they have topic"):
        sinks.prepare(SCHEMA)


@pytest.mark.parametrize("other", ["x/../lake", "file", "link"])
def test_one_delta_table_under_two_names_is_refused(tmp_path: Path, other: str) -> None:
    """H8: the first one's commit would have the other drop its rows."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    second = f"file://{tmp_path}/lake" if other == "file" else f"{tmp_path}/{other}"

    with pytest.raises(OptionError, match="have one place for their watermarks"):
        MultiSink([DeltaSink(tmp_path / "lake"), DeltaSink(second)])


def test_one_delta_table_under_two_names_is_recognised_by_its_id(tmp_path: Path) -> None:
    """H8: a folder mounted twice."""
    DeltaSink(tmp_path / "lake").prepare(SCHEMA)
    shutil.copytree(tmp_path / "lake", tmp_path / "mounted")
    sinks = MultiSink([DeltaSink(tmp_path / "lake"), DeltaSink(tmp_path / "mounted")])

    with pytest.raises(OptionError, match="have one place for their watermarks"):
        sinks.prepare(SCHEMA)
