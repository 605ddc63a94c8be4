"""A sink whose rows a RESTORE took away, and what an operator runs then."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_rocketmq.errors import OffsetError, SinkConflict
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta_rules import restored_to
from pyspark_rocketmq.sinks.delta_sink import DeltaSink
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.helpers.sink_rows import run_batch as run
from tests.sinks.sink_conformance import SCHEMA, rows
from tests.sinks.test_delta_sink import offsets_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def sink(path: Path) -> DeltaSink:
    """Versions 1 to 3 have the first 3, 5 and 7 rows of one queue; another queue is in version 2."""
    made = DeltaSink(path)
    made.prepare(SCHEMA)
    run(made, {Q0: 3}, rows(Q0, 0, 3))
    run(made, {Q0: 5, Q1: 2}, rows(Q0, 3, 5), rows(Q1, 0, 2))
    run(made, {Q0: 7}, rows(Q0, 5, 7))
    return made


@pytest.fixture
def store() -> MemoryOffsetStore:
    made = MemoryOffsetStore("restored", clock=FakeClock())
    made.reset(GROUP, {Q0: 7, Q1: 2})
    return made


def test_the_group_goes_back_to_where_the_restored_version_was(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    """H1: a queue without a row in it begins at 0; what is consumed again is written again, once."""
    DeltaTable(path).restore(1)

    assert sink.follow_restore(GROUP, store) == {Q0: 3, Q1: 0}

    assert {queue: row.next_offset for queue, row in store.read(GROUP).items()} == {Q0: 3, Q1: 0}
    run(sink, {Q0: 7, Q1: 2}, rows(Q0, 0, 7), rows(Q1, 0, 2))
    assert (offsets_in(path), offsets_in(path, Q1)) == (list(range(7)), [0, 1])


def test_a_restored_version_that_was_restored_itself_is_looked_through(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    DeltaTable(path).restore(1)
    write_deltalake(path, pa.table(rows(Q1, 9, 10)), mode="append")
    DeltaTable(path).restore(4)

    assert sink.follow_restore(GROUP, store) == {Q0: 3, Q1: 0}


def test_after_a_restore_that_was_undone_nothing_is_consumed_again(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    DeltaTable(path).restore(1)
    DeltaTable(path).restore(3)

    assert sink.follow_restore(GROUP, store) == {Q0: 7, Q1: 2}
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 7}


def test_stopped_half_way_it_is_done_again(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets come first: a sink whose watermarks are lower than the offsets would pass messages over."""
    DeltaTable(path).restore(2)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "rewind", _killed)
        with pytest.raises(KeyboardInterrupt):
            sink.follow_restore(GROUP, store)
    with pytest.raises(SinkConflict):
        sink.begin(GROUP, {Q0: 0})

    assert sink.follow_restore(GROUP, store) == {Q0: 5, Q1: 2}
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 5}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_without_a_restore_there_is_nothing_to_follow(sink: DeltaSink, store: MemoryOffsetStore) -> None:
    with pytest.raises(OffsetError, match="no RESTORE"):
        sink.follow_restore(GROUP, store)

    assert store.read(GROUP)[Q0].next_offset == 7


def test_a_restored_version_that_was_vacuumed_is_reported_as_such(
    sink: DeltaSink, path: Path, store: MemoryOffsetStore
) -> None:
    DeltaTable(path).restore(1)
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (path / "_delta_log" / f"{version:020d}.json").unlink()

    with pytest.raises(OffsetError, match=r"cannot be told .* DeltaSink\.rewind"):
        DeltaSink(path).follow_restore(GROUP, store)

    assert store.read(GROUP)[Q0].next_offset == 7


def test_rewinding_no_queue_hides_no_restore(sink: DeltaSink, path: Path) -> None:
    """H1: a commit of the group behind the RESTORE would say that it was dealt with."""
    DeltaTable(path).restore(1)

    assert sink.rewind(GROUP, {}) == DeltaTable(path).version()

    with pytest.raises(SinkConflict, match="follow_restore"):
        sink.begin(GROUP, {Q0: 0})


def test_rewinding_some_queues_hides_no_restore_of_the_others(sink: DeltaSink, path: Path) -> None:
    """H1: their watermarks would keep what is gone from being written again."""
    run(sink, {Q1: 2}, rows(Q1, 0, 2))
    DeltaTable(path).restore(1)

    with pytest.raises(SinkConflict, match=r"rows of .*queue=1 may be gone, too\. .*follow_restore"):
        sink.rewind(GROUP, {Q0: 1})
    with pytest.raises(SinkConflict, match="follow_restore"):
        sink.begin(GROUP, {Q0: 0})

    sink.rewind(GROUP, {Q0: 1, Q1: 0})
    assert sink.begin(GROUP, {Q0: 0, Q1: 0}).watermarks == {Q0: 1, Q1: 0}


@pytest.mark.parametrize("parameters", [{"version": "3"}, {"version": 3, "timestamp": None}])
def test_a_restore_names_a_version(parameters: dict[str, int | str | None]) -> None:
    assert restored_to({"operation": "RESTORE", "operationParameters": parameters}) == 3


@pytest.mark.parametrize(
    "parameters", [{"version": None, "timestamp": "2026-01-01 10:00:00"}, {"datetime": "1767261600000"}]
)
def test_which_version_a_time_meant_is_not_guessed_at(parameters: dict[str, str | None]) -> None:
    with pytest.raises(ValueError, match="names no version, only a time"):
        restored_to({"operation": "RESTORE", "operationParameters": parameters})


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_watermarks_of_a_group_are_found_without_naming_its_queues(
    sink: DeltaSink, path: Path, has_checkpoint: bool
) -> None:
    if has_checkpoint:
        DeltaTable(path).create_checkpoint()
        for version in range(3):
            (path / "_delta_log" / f"{version:020d}.json").unlink()
    again = DeltaSink(path)
    again.prepare(SCHEMA)

    assert again.watermarks(GROUP) == {QueueGeneration(Q0, 0): 7, QueueGeneration(Q1, 0): 2}
    assert again.watermarks("another") == {}
    run(again, {Q1: 4}, rows(Q1, 2, 4))
    assert again.watermarks(GROUP) == {QueueGeneration(Q0, 0): 7, QueueGeneration(Q1, 0): 4}
