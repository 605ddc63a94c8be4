from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.kill_driver import KILL_POINTS
from tests.helpers.orders import check_sink, produce_orders

KILLS_PER_POINT = int(os.environ.get("KILLS_PER_POINT", "0"))
"""How often a consumer is killed at each point before it may finish; `make kill-test` takes 3.

Without it, which saves starts of Spark, each kind of consumer is killed at some of the points once, on the real broker, and
all together at every point.
"""
ALL_HISTORIES = [(point,) * KILLS_PER_POINT for point in KILL_POINTS]


def histories(*points: str) -> list[tuple[str, ...]]:
    """Where consumers are killed; only at ``points`` unless all are asked for."""
    return ALL_HISTORIES if KILLS_PER_POINT else [points]


BACKENDS = (lambda test: test) if KILLS_PER_POINT else REAL_ONLY


@BACKENDS
@pytest.mark.driver
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("engine", "points"),
    [
        *(
            ("direct", points)
            for points in histories("in_listener", "after_data_commit", "before_spark_commit")
        ),
        *(("state", points) for points in histories("after_plan", "after_offset_commit")),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(dict.fromkeys(value)),
)
def test_every_message_is_in_the_sink_once_and_in_order_after_kills_at(
    points: tuple[str, ...], engine: str, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, H2: killed (-9) at any of the steps of a batch and restarted; the listener fails differently each time."""
    topic = cluster.create_topic(queues=4)
    expected = produce_orders(cluster.name_servers, topic, 200)
    config = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "group": cluster.unique_name("group"),
        "work": str(tmp_path),
        "points": points,
        "orderlyEngine": engine,
        "maxOffsetsPerTrigger": 125,
    }

    exit_codes = [_run_to_the_end_or_death(config, tmp_path / "driver.log") for _ in range(len(points) + 1)]

    assert exit_codes == [-signal.SIGKILL] * len(points) + [0], (tmp_path / "driver.log").read_text()[-4000:]
    report = check_sink(tmp_path / "sink", expected)
    assert report.is_clean, str(report)
    assert report.messages == 1000


@BACKENDS
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "points", histories("in_listener"), ids=lambda points: ",".join(dict.fromkeys(points))
)
def test_every_message_of_a_concurrent_consumer_is_in_the_sink_after_kills_at(
    points: tuple[str, ...], cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, E3, E6: each position once; what a killed run sent back, and its next run did not, comes once more from the
    retry topic.
    """
    topic = cluster.create_topic(queues=4)
    expected = produce_orders(cluster.name_servers, topic, 200)
    group = cluster.unique_name("group")
    config = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "group": group,
        "work": str(tmp_path),
        "points": points,
        "isConcurrent": True,
        "maxOffsetsPerTrigger": 125,
    }
    sent = {(order_id, step) for order_id, steps in expected.items() for step in steps}

    exit_codes = [_run_to_the_end_or_death(config, tmp_path / "driver.log") for _ in range(len(points) + 1)]
    # A drain ends with what was there at its start; what was sent back during it comes with the next one.
    for _ in range(3):
        if {(row["order_id"], row["step"]) for row in _rows(tmp_path)} == sent:
            break
        exit_codes.append(_run_to_the_end_or_death(config, tmp_path / "driver.log"))

    assert exit_codes[: len(points)] == [-signal.SIGKILL] * len(points), exit_codes
    assert set(exit_codes[len(points) :]) == {0}, (tmp_path / "driver.log").read_text()[-4000:]
    rows = _rows(tmp_path)
    positions = Counter((row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)
    assert set(positions.values()) == {1}
    assert {(row["order_id"], row["step"]) for row in rows} == sent
    first_hand = Counter((row["order_id"], row["step"]) for row in rows if row["topic"] == topic)
    assert set(first_hand.values()) == {1}
    again = [row for row in rows if row["topic"] != topic]
    assert {row["topic"] for row in again} == {f"%RETRY%{group}"}


def _rows(work: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(work / "sink").to_pyarrow_table().to_pylist())


def _run_to_the_end_or_death(config: dict[str, object], log: Path) -> int:
    return run_driver("tests.helpers.kill_driver", config, log, timeout_s=240)
