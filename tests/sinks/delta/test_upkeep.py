"""A sink's log is looked after beside its batches, which do not wait for it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.sinks.delta import table as sink_table
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import GROUP, Q0, run_batch
from tests.sinks.sink_conformance import SCHEMA, rows

EVERY = 5
_TIMEOUT_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def sink_of(path: Path, merge_keys: tuple[str, ...] = (), **properties: str) -> DeltaSink:
    """A sink whose table has these properties, at version 1."""
    sink = DeltaSink(path, merge_keys=merge_keys)
    sink.prepare(SCHEMA)
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": str(EVERY), **properties})
    return sink


def run(sink: DeltaSink, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        run_batch(sink, {Q0: number + 1}, rows(Q0, number, number + 1), queues=[Q0])
        sink._table.wait_for_upkeep(_TIMEOUT_S)


def names_in(path: Path, pattern: str) -> list[int]:
    return sorted(int(one.name[:20]) for one in (path / "_delta_log").glob(pattern))


@pytest.mark.parametrize("merge_keys", [(), ("step",)])
def test_checkpoints_are_made_as_often_as_the_table_wants(path: Path, merge_keys: tuple[str, ...]) -> None:
    run(sink_of(path, merge_keys), 3 * EVERY)

    assert names_in(path, "*.checkpoint.parquet") == [EVERY, 2 * EVERY, 3 * EVERY]
    again = DeltaSink(path)
    again.prepare(SCHEMA)
    assert again.begin(GROUP, {Q0: 0}).watermarks == {Q0: 3 * EVERY}


@pytest.mark.parametrize("is_wanted", [True, False])
def test_expired_files_of_the_log_are_removed_now_and_then(
    path: Path, is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with each commit, and not where the table's properties say no."""
    monkeypatch.setattr(sink_table, "_CLEAN_UP_EVERY", 2 * EVERY)
    properties = {
        "delta.logRetentionDuration": "interval 0 seconds",
        "delta.enableExpiredLogCleanup": str(is_wanted).lower(),
    }
    sink = sink_of(path, (), **properties)

    run(sink, 2 * EVERY - 2)
    assert names_in(path, "*.json") == list(range(2 * EVERY))

    run(sink, 2, first=2 * EVERY - 2)
    assert (min(names_in(path, "*.json")) > 0) is is_wanted
    run(sink, 3, first=2 * EVERY)
    assert sink.begin(GROUP, {Q0: 0}).watermarks == {Q0: 2 * EVERY + 3}


def test_batches_do_not_wait_for_it_nor_fail_with_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H1: the batch is stored; what could not be done is done the next time."""
    sink, goes_on, real = sink_of(path), threading.Event(), DeltaTable.create_checkpoint

    def failing(_: DeltaTable) -> None:
        assert goes_on.wait(_TIMEOUT_S)
        raise DeltaError("the storage does not answer")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(DeltaTable, "create_checkpoint", failing)
        for number in range(EVERY + 1):
            run_batch(sink, {Q0: number + 1}, rows(Q0, number, number + 1), queues=[Q0])
        goes_on.set()
        sink._table.wait_for_upkeep(_TIMEOUT_S)

    assert DeltaTable.create_checkpoint is real
    assert "maintenance of sink table failed, the next run makes up for it" in caplog.text
    assert "the storage does not answer" in caplog.text
    run(sink, EVERY, first=EVERY + 1)
    assert names_in(path, "*.checkpoint.parquet") == [2 * EVERY]


@pytest.mark.parametrize("interval", ["0", "-3", "many", ""])
def test_an_interval_that_is_none_is_delta_s_default(interval: str) -> None:
    assert sink_table.checkpoint_interval({"delta.checkpointInterval": interval}) == 100
    assert sink_table.checkpoint_interval({}) == 100
