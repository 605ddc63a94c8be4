"""A checkpoint, an offset table or a sink is taken away or put back to what it was earlier."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from tests.end_to_end.test_orderly_consumer import Consumption
from tests.guarantees.running_query import RunningQuery
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import Orders, check_sink, produce_orders

pytestmark = [pytest.mark.spark, SIM_ONLY]

_LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
"""Where a group that was taken for a new one would begin, and lose everything."""


@pytest.fixture
def consumption(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> Consumption:
    return Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), "direct")


def produce(consumption: Consumption, *, first: int) -> Orders:
    return produce_orders(consumption.cluster.name_servers, consumption.topic, 20, first=first)


def consumed_since(consumption: Consumption, reports: int) -> int:
    return sum(ack.consumed for report in consumption.reports[reports:] for ack in report.acks)


def test_the_checkpoint_of_an_older_batch_loses_and_doubles_nothing(consumption: Consumption) -> None:
    """H2: its plans were made under claims that are gone; the state engine's state is of that batch as well."""
    consumption.engine = "state"
    checkpoint = consumption.folder / "checkpoint"
    expected = dict(produce(consumption, first=0))
    consumption.drain(max_offsets_per_trigger=60)
    shutil.copytree(checkpoint, consumption.folder / "backup")
    expected |= produce(consumption, first=20)
    consumption.drain(max_offsets_per_trigger=60)
    shutil.rmtree(checkpoint)
    shutil.move(consumption.folder / "backup", checkpoint)
    expected |= produce(consumption, first=40)

    consumption.drain(max_offsets_per_trigger=60)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 300


def test_a_checkpoint_whose_first_plan_was_not_written_whole_is_begun_again(consumption: Consumption) -> None:
    """H2: killed in that moment, it holds a temporary file, with which Spark 4.2 starts no query of its own."""
    leftover = consumption.folder / "checkpoint" / "offsets" / ".0.0e070b0f-aebe-437f-b4d5-4f4cbcc03b94.tmp"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    expected = dict(produce(consumption, first=0))

    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 100


def test_without_its_offset_table_a_group_goes_on_where_its_sink_is(consumption: Consumption) -> None:
    """H2, F2: whatever consume_from_where says; the listener gets nothing again."""
    expected = dict(produce(consumption, first=0))
    consumption.drain(mirror_offsets=False)
    done = len(consumption.reports)
    shutil.rmtree(consumption.folder / "offsets")
    expected |= produce(consumption, first=20)

    consumption.drain(mirror_offsets=False, consume_from_where=_LAST)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert (report.rows, consumed_since(consumption, done)) == (200, 100)


def test_an_offset_table_that_vanishes_under_a_query_ends_it_and_a_restart_loses_nothing(
    consumption: Consumption,
) -> None:
    """H2: nothing is consumed meanwhile, and the error says what to do."""
    expected = dict(produce(consumption, first=0))
    with RunningQuery(consumption, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET) as query:
        query.await_consumed(100)
        # At once, or the query might still write into what is being removed.
        (consumption.folder / "offsets").rename(consumption.folder / "removed")
        expected |= produce(consumption, first=20)
        assert "start the query again" in query.await_failure()

    consumption.drain(consume_from_where=_LAST)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 200


def test_a_sink_restored_to_an_earlier_version_is_refused_until_it_is_followed(
    consumption: Consumption,
) -> None:
    """H1: what the error says is what helps; each row is there once afterwards."""
    expected = dict(produce(consumption, first=0))
    consumption.drain()
    version = DeltaTable(consumption.sink).version()
    expected |= produce(consumption, first=20)
    consumption.drain()
    DeltaTable(consumption.sink).restore(version)
    expected |= produce(consumption, first=40)

    with pytest.raises(StreamingQueryException, match=r"stop every query .*follow_restore"):
        consumption.drain()
    DeltaSink(consumption.sink).follow_restore(consumption.group, consumption.store)
    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 300
