"""A checkpoint, an offset table or a sink is taken away or put back to what it was earlier."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_rocketmq.cli.main import cli
from pyspark_rocketmq.errors import SinkSetBack
from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
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
    """H2: its plans were made under claims that are gone;
    the state engine's state is of that batch as well.
    """
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
    """H2: killed in that moment, it holds a temporary file,
    with which Spark 4.2 starts no query of its own.
    """
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

    with pytest.raises(StreamingQueryException, match=r"Stop every query .*follow_restore"):
        consumption.drain()
    DeltaSink(consumption.sink).follow_restore(consumption.group, consumption.store)
    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 300


def operate(consumption: Consumption, *words: str) -> None:
    """What an operator types, as the error says it."""
    options = [f"offsetStore={consumption.store.spec}", f"consumerGroup={consumption.group}"]
    options += [f"nameServers={consumption.cluster.name_servers}", "requestTimeoutMs=30000"]
    command = ["offsets", *words, *(part for option in options for part in ("--option", option))]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("way", ["start over", pytest.param("accept the gap", marks=pytest.mark.long)])
def test_a_sink_that_was_deleted_while_the_query_was_stopped_is_not_made_again_in_silence(
    consumption: Consumption, way: str
) -> None:
    """H7: nothing is consumed and no table is made before somebody has chosen."""
    first = produce(consumption, first=0)
    consumption.drain()
    shutil.rmtree(consumption.sink)
    second = produce(consumption, first=20)
    done = len(consumption.reports)

    with pytest.raises(SinkSetBack, match="the sink is not there any more") as refusal:
        consumption.drain()
    assert not consumption.sink.exists()
    assert len(consumption.reports) == done
    consumption.await_departure()
    if way == "start over":
        assert "`pyspark-rocketmq offsets reset --to earliest" in str(refusal.value)
        operate(consumption, "reset", "--to", "earliest")
    else:
        assert "`pyspark-rocketmq offsets accept-gap" in str(refusal.value)
        operate(consumption, "accept-gap")
    consumption.drain()

    report = check_sink(consumption.sink, {**first, **second} if way == "start over" else second)
    assert report.is_clean, str(report)
    assert report.rows == (200 if way == "start over" else 100)


def test_a_sink_put_back_to_a_backup_gets_what_it_lost_when_the_offsets_go_back_to_it(
    consumption: Consumption,
) -> None:
    """H7: each row is there once afterwards."""
    expected = dict(produce(consumption, first=0))
    consumption.drain()
    shutil.copytree(consumption.sink, consumption.folder / "backup")
    expected |= produce(consumption, first=20)
    consumption.drain()
    shutil.rmtree(consumption.sink)
    (consumption.folder / "backup").rename(consumption.sink)
    expected |= produce(consumption, first=40)

    with pytest.raises(
        SinkSetBack, match=r"restored to an earlier state.*`pyspark-rocketmq offsets reset --to sink --sink"
    ):
        consumption.drain()
    consumption.await_departure()
    operate(consumption, "reset", "--to", "sink", "--sink", str(consumption.sink))
    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 300


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("deleted", marks=pytest.mark.long),
        pytest.param("made again", marks=pytest.mark.long),
        "put back",
    ],
)
def test_a_sink_that_changes_under_a_running_query_ends_it_before_anything_is_lost(
    consumption: Consumption, what: str
) -> None:
    """H7"""
    produce(consumption, first=0)
    with RunningQuery(consumption) as query:
        query.await_consumed(100)
        shutil.copytree(consumption.sink, consumption.folder / "backup")
        produce(consumption, first=20)
        query.await_consumed(200)
        consumption.sink.rename(consumption.folder / "removed")
        if what == "made again":
            DeltaSink(consumption.sink).prepare(
                DeltaTable(consumption.folder / "removed").schema().to_arrow()
            )
        elif what == "put back":
            (consumption.folder / "backup").rename(consumption.sink)
        produce(consumption, first=40)
        said = query.await_failure()

    assert {
        "deleted": "the sink is not there any more",
        "made again": "another table (id",
        "put back": "restored to an earlier state",
    }[what] in said
    assert "choose one of three" in said
    assert sum(consumption.next_offsets().values()) == 200, "what came after that was passed"


def test_an_offset_table_that_is_put_back_under_a_query_ends_it_and_a_restart_doubles_nothing(
    consumption: Consumption,
) -> None:
    """H2: by Delta's own RESTORE; the sink has what is consumed again."""
    expected = dict(produce(consumption, first=0))
    with RunningQuery(consumption) as query:
        query.await_consumed(100)
        table = DeltaTable(consumption.folder / "offsets")
        table.restore(max(1, table.version() - 1))
        expected |= produce(consumption, first=20)
        assert "restored to an earlier state or replaced" in query.await_failure()

    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 200
