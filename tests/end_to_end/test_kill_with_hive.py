"""A sink that a Hive metastore names, under kills."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from jobs.demo.report import check_order
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.hive_sink_driver import KILL_POINTS
from tests.helpers.orders import produce_orders

_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "order_id", "step")


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.timeout(1500)
def test_every_message_is_once_in_a_table_of_a_hive_metastore_after_kills_at_every_step(
    sim_cluster: Backend, tmp_path: Path
) -> None:
    """J5, J7, H1, H2: beside another writer; made anew, the table is refused at the start."""
    topic = ClusterUnderTest(sim_cluster, "sim").create_topic(queues=2)
    expected = produce_orders(sim_cluster.name_servers, topic, 60)
    config = {
        "nameServers": sim_cluster.name_servers,
        "topic": topic,
        "group": "named-by-hive",
        "work": str(tmp_path),
        "result": str(tmp_path / "result.json"),
        "points": KILL_POINTS,
        "maxOffsetsPerTrigger": 50,
    }
    log = tmp_path / "driver.log"

    exit_codes = [
        run_driver("tests.helpers.hive_sink_driver", config, log, timeout_s=280)
        for _ in range(len(KILL_POINTS) + 1)
    ]

    assert exit_codes == [-signal.SIGKILL] * len(KILL_POINTS) + [0], log.read_text()[-4000:]
    found = json.loads((tmp_path / "result.json").read_text())
    others = [row for row in found["rows"] if row["topic"] == "other"]
    assert len(others) > len(KILL_POINTS)
    own = [tuple(row[name] for name in _COLUMNS) for row in found["rows"] if row["topic"] != "other"]
    assert set(Counter(row[:4] for row in own).values()) == {1}
    report = check_order(own, expected)
    assert report.is_clean, report
    assert report.messages == 300
    assert "spark_catalog.shop.orders lacks rows" in found["refusal"]
    assert "it is another table" in found["refusal"]
