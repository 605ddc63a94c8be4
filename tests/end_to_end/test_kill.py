from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from deltalake import DeltaTable

from tests.helpers.cluster import REAL_ONLY, SIM_ONLY, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.kill_driver import CONCURRENT, CONSUMERS, KILL_POINTS
from tests.helpers.orders import STEPS, Orders, check_sink, produce_orders
from tests.object_stores.server import COMMIT, Bucket

Test = TypeVar("Test", bound=Callable[..., None])

KILLS_PER_POINT = int(os.environ.get("KILLS_PER_POINT", "0"))
"""How often each consumer is killed at each point before it may finish; `make kill-test` takes 3,
on either backend.

0: at each point some consumer is killed, and each consumer at two.
"""
BACKENDS: Callable[[Test], Test] = (lambda test: test) if KILLS_PER_POINT else REAL_ONLY


def points_of_deaths() -> dict[str, Sequence[str]]:
    """By consumer, where it dies: no two of them in the same place at the same time.

    One that waits in its listener for the others to die with it occupies a task.
    """
    if not KILLS_PER_POINT:
        return {name: (KILL_POINTS * 2)[2 * number :][:2] for number, name in enumerate(CONSUMERS)}
    points = KILL_POINTS * KILLS_PER_POINT
    return {name: points[shift:] + points[:shift] for shift, name in enumerate(CONSUMERS)}


@pytest.mark.every_spark
@pytest.mark.long
@BACKENDS
@pytest.mark.driver
@pytest.mark.timeout(1800 + 600 * KILLS_PER_POINT)
def test_every_message_is_in_the_sink_after_kills_at_every_step_of_a_batch(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H1, H2, E3, E6: killed (-9) and restarted; the listener fails differently each time.

    Orderly, by either engine: each message once and in order. Concurrently: each position once;
    what a killed run sent back, and its next run did not, comes once more from the retry topic.
    """
    kill_and_check(cluster, tmp_path, points_of_deaths())


@pytest.mark.every_spark
@pytest.mark.long
@SIM_ONLY
@pytest.mark.driver
@pytest.mark.timeout(1800 + 600 * KILLS_PER_POINT)
def test_every_message_is_in_a_sink_on_s3_after_kills(
    cluster: ClusterUnderTest, s3: Bucket, tmp_path: Path
) -> None:
    """H1, H2, J1, J4: sink and store on an object store, some of whose answers are lost, too."""
    few = {"direct": KILL_POINTS[2:4], CONCURRENT: KILL_POINTS[1:3]}
    points = points_of_deaths() if KILLS_PER_POINT else few
    s3.behave({"where": COMMIT, "times": 5})
    kill_and_check(cluster, tmp_path, points, s3)
    assert s3.faults_left() == 0, "an answer was not lost"


def kill_and_check(
    cluster: ClusterUnderTest,
    work: Path,
    points: Mapping[str, Sequence[str]],
    s3: Bucket | None = None,
) -> None:
    topic = cluster.create_topic(queues=4)
    expected = produce_orders(cluster.name_servers, topic, 200)
    messages = 200 * len(STEPS)
    group = cluster.unique_name("group")
    tables = str(work) if s3 is None else s3.uri("kills")
    storage_options = None if s3 is None else s3.patient_options()
    config = {
        "tables": tables,
        "storageOptions": storage_options,
        "nameServers": cluster.name_servers,
        "topic": topic,
        "messages": messages,
        "group": group,
        "work": str(work),
        "points": points,
        "maxOffsetsPerTrigger": 125,
    }
    [deaths] = {len(of_consumer) for of_consumer in points.values()}
    log = work / "driver.log"

    exit_codes = [
        run_driver("tests.helpers.kill_driver", config, log, timeout_s=550) for _ in range(deaths + 1)
    ]

    assert exit_codes == [-signal.SIGKILL] * deaths + [0], log.read_text()[-4000:]
    for engine in points.keys() - {CONCURRENT}:
        report = check_sink(f"{tables}/{engine}/sink", expected, storage_options=storage_options)
        assert report.is_clean, f"{engine}: {report}"
        assert report.messages == messages
    if CONCURRENT not in points:
        return
    concurrent = DeltaTable(f"{tables}/{CONCURRENT}/sink", storage_options=storage_options)
    check_concurrent(concurrent, expected, topic, f"%RETRY%{group}-{CONCURRENT}")


def check_concurrent(sink: DeltaTable, expected: Orders, topic: str, retry_topic: str) -> None:
    """Check that each position is in the sink once, and each message; some also from the retry topic."""
    sent = {(order_id, step) for order_id, steps in expected.items() for step in steps}
    rows: list[Mapping[str, Any]] = sink.to_pyarrow_table().to_pylist()
    positions = Counter((row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)
    assert set(positions.values()) == {1}
    assert {(row["order_id"], row["step"]) for row in rows} == sent
    first_hand = Counter((row["order_id"], row["step"]) for row in rows if row["topic"] == topic)
    assert set(first_hand.values()) == {1}
    again = [row for row in rows if row["topic"] != topic]
    assert {row["topic"] for row in again} == {retry_topic}
