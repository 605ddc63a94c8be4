from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.kill_driver import KILL_POINTS
from tests.helpers.orders import check_sink, produce_orders

KILLS_PER_POINT = int(os.environ.get("KILLS_PER_POINT", "0"))
"""How often a consumer is killed at each point before it may finish; `make kill-test` takes 3.

Without it, which saves starts of Spark, one consumer is killed at every point once, on the real broker.
"""
HISTORIES = [(point,) * KILLS_PER_POINT for point in KILL_POINTS] if KILLS_PER_POINT else [KILL_POINTS]
BACKENDS = (lambda test: test) if KILLS_PER_POINT else REAL_ONLY
REPO = Path(__file__).parent.parent.parent


@BACKENDS
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["state", "direct"])
@pytest.mark.parametrize("points", HISTORIES, ids=lambda points: ",".join(dict.fromkeys(points)))
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


def _run_to_the_end_or_death(config: dict[str, object], log: Path) -> int:
    with log.open("ab") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.kill_driver", json.dumps(config)],
            cwd=REPO,
            env=os.environ | {"PYTHONPATH": f"{REPO / 'connector'}{os.pathsep}{REPO}"},
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return driver.wait(timeout=240)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
