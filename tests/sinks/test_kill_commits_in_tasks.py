"""Tasks that commit by themselves, killed (-9) before and after their transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pyspark_rocketmq.cli.demo.report import check_order
from tests.end_to_end.test_kill_within_batches import MICRO_BATCHES, REAL_TIME, Traffic, kill_all
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.killing_database import TRANSACTION_POINTS, make_table, rows_in
from tests.helpers.live_kill_driver import deaths_at
from tests.helpers.orders import STEPS, Row
from tests.helpers.running import running
from tests.postgres.server import Postgres

pytestmark = [SIM_ONLY, pytest.mark.driver]

_POINTS = (
    *TRANSACTION_POINTS,
    "part_sent",
    "part_taken",
    "at_end",
    "part_received",
    "after_offset_commit",
    "before_free",
    "between_batches",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    yield from running(Postgres())


def kill_and_check(
    cluster: ClusterUnderTest,
    server: Postgres,
    work: Path,
    deaths: Sequence[tuple[str, str]],
    *,
    orderly_by: str | None = "queue",
    trigger: Mapping[str, str] = REAL_TIME,
) -> None:
    """Kill each victim at its point; every message's row is in the database once, in the queue's order.

    ``orderly_by``: the consumer's argument; None for a concurrent listener.
    """
    make_table(server.address)
    is_orderly = orderly_by is not None
    traffic = Traffic(cluster, work, len(deaths), is_orderly=is_orderly)
    more = {"database": server.address} | ({} if orderly_by is None else {"orderlyBy": orderly_by})
    kill_all(traffic, work, deaths, is_orderly=is_orderly, trigger=trigger, **more)
    rows = rows_in(server.address)
    if is_orderly:
        report = check_order(rows, traffic.expected)
        assert report.is_clean, report
        assert report.messages == len(traffic.expected) * len(STEPS)
    else:
        _check_each_once(rows, traffic)


def _are_overtaken(log: DeliveryLog) -> bool:
    """Return whether a message was delivered before one of another key that its queue has before it."""
    firsts = [
        list(dict.fromkeys(offset for each in deliveries for offset in each.queue_offsets))
        for deliveries in log.by_queue().values()
    ]
    return any(offsets != sorted(offsets) for offsets in firsts)


def _check_each_once(rows: Sequence[Row], traffic: Traffic) -> None:
    """Check that each message has one row; one that was sent back has one in the retry topic, too."""
    places = [row[:4] for row in rows]
    assert len(places) == len(set(places))
    found = {(order_id, step) for *_, order_id, step in rows}
    assert found == {(order_id, step) for order_id in traffic.expected for step in STEPS}


@pytest.mark.long
def test_rows_of_killed_workers_are_there_once_in_real_time(
    cluster: ClusterUnderTest, server: Postgres, tmp_path: Path
) -> None:
    """I6, H1: before and after a transaction, and with the whole query after one."""
    deaths = [*((point, "worker") for point in TRANSACTION_POINTS), ("after_transaction", "group")]
    kill_and_check(cluster, server, tmp_path, deaths)


@pytest.mark.long
def test_rows_of_a_worker_killed_in_a_micro_batch_are_there_once(
    cluster: ClusterUnderTest, server: Postgres, tmp_path: Path
) -> None:
    """I6, H1: the next attempt of the task begins where the database is."""
    deaths = [(point, "worker") for point in TRANSACTION_POINTS]
    kill_and_check(cluster, server, tmp_path, deaths, trigger=MICRO_BATCHES)


def test_rows_in_the_order_of_their_keys_are_there_once_after_deaths_of_workers(
    cluster: ClusterUnderTest, server: Postgres, tmp_path: Path
) -> None:
    """I6, I8, H1: calls for keys of one queue overlap, and a transaction has what comes before the first
    message that is not consumed.
    """
    deaths = [*((point, "worker") for point in TRANSACTION_POINTS), ("part_taken", "worker")]
    kill_and_check(cluster, server, tmp_path, deaths, orderly_by="sharding_key")
    assert _are_overtaken(DeliveryLog(tmp_path / "deliveries"))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trigger", [REAL_TIME, MICRO_BATCHES], ids=["real time", "micro-batches"])
@pytest.mark.parametrize(
    ("orderly_by", "first"),
    [("queue", "driver"), ("sharding_key", "group"), (None, "driver")],
    ids=["orderly", "keyed", "concurrent"],
)
def test_rows_are_there_once_after_deaths_at_every_step(
    cluster: ClusterUnderTest,
    server: Postgres,
    tmp_path: Path,
    trigger: Mapping[str, str],
    *,
    orderly_by: str | None,
    first: str,
) -> None:
    """I6, I8, H1, H2: of a worker, and of a driver or group."""
    deaths = deaths_at(_POINTS, first=first)
    kill_and_check(cluster, server, tmp_path, deaths, orderly_by=orderly_by, trigger=trigger)
