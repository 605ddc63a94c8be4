"""A micro-batch that commits what it has consumed while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.end_to_end.test_given_up_in_batch import SlowQuery
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.wait import wait_until

pytestmark = [pytest.mark.spark, SIM_ONLY]

_PATIENCE_S = 240.0
_COMMITS = 4


@pytest.fixture(params=[True, False], ids=["orderly", "concurrent"])
def slow(
    request: pytest.FixtureRequest, spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> Iterator[SlowQuery]:
    running = SlowQuery(spark, cluster, tmp_path, orderly=request.param, commit_interval="200 milliseconds")
    yield running
    running.query.stop()


def test_rows_and_offsets_move_while_the_batch_runs(slow: SlowQuery) -> None:
    """H1: each row once, and no offset before its rows; the other queue is not waited for."""
    wait_until(lambda: len(slow.reports) >= _COMMITS, _PATIENCE_S, reason="Some commits")
    offsets = slow.offsets()
    rows = slow.rows()

    assert {report.batch_id for report in slow.reports[:_COMMITS]} == {0}
    versions = [report.sink_version for report in slow.reports[:_COMMITS]]
    assert len(set(versions)) == _COMMITS
    assert len(rows) == len(set(rows))
    assert {(queue_id, at) for queue_id, end in offsets.items() for at in range(end)} <= set(rows)
    assert 0 < sum(offsets.values()) <= len(rows) <= len(slow.delivered())

    assert slow.consumer.stop(slow.query, _PATIENCE_S)
    assert slow.query.exception() is None
    assert slow.rows() == sorted(slow.delivered())
    assert sum(slow.offsets().values()) == len(slow.rows())
    assert {report.batch_id for report in slow.reports} == {0}
    assert DeltaTable(slow.sink).version() >= _COMMITS
