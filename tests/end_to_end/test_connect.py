"""What works through Spark Connect, and the words of what does not, as docs/how-to/sql.md has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.orders import STEPS, produce_orders

TIMEOUT_S = 800


@SIM_ONLY
@pytest.mark.long
@pytest.mark.timeout(900)
def test_source_and_sink_work_through_spark_connect_and_the_rest_is_refused_in_a_sentence(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H3, G6: batch, stream and SQL; by_sharding_key without the number of cores,
    which Connect does not tell.
    """
    source, target = (cluster.create_topic(queues=2, brokers=["broker-a"]) for _ in range(2))
    produce_orders(cluster.name_servers, source, 10)
    count = 10 * len(STEPS)
    config = {
        "nameServers": cluster.name_servers,
        "source": source,
        "target": target,
        "folder": str(tmp_path),
    }
    log = tmp_path / "log"

    code = run_driver("tests.helpers.connect_driver", config, log, timeout_s=TIMEOUT_S)

    assert code == 0, log.read_text()[-4000:]
    found = json.loads(log.read_text().splitlines()[-1])
    assert found.pop("session") == "pyspark.sql.connect.session"
    refusals = {name: found.pop(name) for name in ("push_consumer", "replay", "job")}
    assert found == {
        "register": None,
        "read": count,
        "view": count,
        "read_stream": count,
        "write": count,
        "write_stream": 2 * count,
    }
    assert "A PushConsumer does not work with Spark Connect" in refusals["push_consumer"]
    assert "A Replay does not work with Spark Connect" in refusals["replay"]
    assert "Job 'demo' does not work with Spark Connect" in refusals["job"]
