"""Disks are full, or refuse to be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.end_to_end.test_orderly_consumer import Consumption
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.disks import Disk, disk_at
from tests.helpers.orders import check_sink, produce_orders
from tests.helpers.wait import wait_until

pytestmark = [pytest.mark.spark, SIM_ONLY]

_PLACES = ("sink", "offsets", "checkpoint")


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[str, Disk]]:
    with ExitStack() as mounted:
        yield {place: mounted.enter_context(disk_at(tmp_path / place)) for place in _PLACES}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_disk_that_takes_nothing_ends_the_query_and_room_on_it_is_all_that_a_restart_needs(
    spark: SparkSession, cluster: ClusterUnderTest, disks: dict[str, Disk], tmp_path: Path
) -> None:
    """H1: of the sink, the offset table and the checkpoint, full or read-only;
    the error contains the disk's own.
    """
    consumption = Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=1), "direct")
    expected = dict(produce_orders(cluster.name_servers, consumption.topic, 20))
    consumption.drain()
    expected |= produce_orders(cluster.name_servers, consumption.topic, 20, first=20)

    for place, disk in disks.items():
        # First, since a write that failed for want of room leaves a file open,
        # with which no disk becomes read-only.
        disk.make_read_only()
        await_failure(consumption, "Read-only file system", place)
        disk.make_writable()
        disk.fill()
        await_failure(consumption, "No space left", place)
        disk.make_room()
    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 200


def await_failure(consumption: Consumption, words: str, place: str) -> None:
    """Drain until that fails by the disk, not because a busy cluster was too late."""
    seen: list[str] = []

    def fails_so() -> bool:
        with pytest.raises(StreamingQueryException) as raised:
            consumption.drain(options={"retryTimeoutMs": "0"})
        seen.append(str(raised.value))
        return "did not answer" not in seen[-1]

    wait_until(fails_so, 120.0, reason=f"A failure of the disk of {place}")
    assert words in seen[-1], (place, seen)
