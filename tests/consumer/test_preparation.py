"""Checks before a query starts."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_rocketmq.consumer.preparation import check_commits_groups
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import as_single_sink

ROWS = pa.schema(
    [
        ("order_id", pa.string()),
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
    ]
)


class OneCommit:
    """A sink of an application, whose batches are committed once."""

    place = "one commit"

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> object:
        return object()

    def __repr__(self) -> str:
        return "OneCommit()"


def built_in(folder: Path) -> list[Sink]:
    sinks: list[Sink] = [
        DeltaSink(folder / "table"),
        DatabaseSink(partial(sqlite3.connect, folder / "rows.db"), lambda connection, rows: None),
    ]
    for sink in sinks:
        sink.prepare(ROWS)
    return sinks


def test_the_sinks_of_this_package_commit_while_a_batch_runs(tmp_path: Path) -> None:
    for sink in built_in(tmp_path):
        check_commits_groups(sink, "g")
    check_commits_groups(as_single_sink(built_in(tmp_path)), "g")


def test_a_sink_that_makes_one_commit_is_refused_by_name(tmp_path: Path) -> None:
    several = as_single_sink([DeltaSink(tmp_path / "table"), OneCommit()])  # type: ignore[list-item]
    several.sinks[0].prepare(ROWS)  # type: ignore[attr-defined]

    with pytest.raises(OptionError) as caught:
        check_commits_groups(several, "g")
    assert caught.value.problems == (
        (
            "commit_interval cannot be used with OneCommit(), which commits once in a micro-batch: its "
            "batches have no method commit_group. Use DeltaSink or DatabaseSink, or leave out commit_interval"
        ),
    )
