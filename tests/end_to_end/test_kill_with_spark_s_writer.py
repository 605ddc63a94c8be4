"""Sinks that Spark's writer writes, under kills."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_rocketmq.cli.demo.report import check_order
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.orders import produce_orders
from tests.helpers.spark_sink_driver import KILL_POINTS
from tests.object_stores.server import KEY, SECRET, Bucket
from tests.real_broker.artifacts import fetch_s3a_jars

_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "order_id", "step")


def found_after_kills(cluster: Backend, work: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's output; each message is in the table once, and in order, beside rows of another writer."""
    topic = ClusterUnderTest(cluster, "sim").create_topic(queues=2)
    expected = produce_orders(cluster.name_servers, topic, 60)
    config = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "group": "written-by-spark",
        "work": str(work),
        "result": str(work / "result.json"),
        "points": KILL_POINTS,
        "maxOffsetsPerTrigger": 50,
        **config,
    }
    log, deaths = work / "driver.log", len(config["points"])

    exit_codes = [
        run_driver("tests.helpers.spark_sink_driver", config, log, timeout_s=280) for _ in range(deaths + 1)
    ]

    assert exit_codes == [-signal.SIGKILL] * deaths + [0], log.read_text()[-4000:]
    found: dict[str, Any] = json.loads((work / "result.json").read_text())
    others = [row for row in found["rows"] if row["topic"] == "other"]
    assert len(others) > deaths
    own = [tuple(row[name] for name in _COLUMNS) for row in found["rows"] if row["topic"] != "other"]
    assert set(Counter(row[:4] for row in own).values()) == {1}
    report = check_order(own, expected)
    assert report.is_clean, report
    assert report.messages == 300
    return found


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.timeout(1500)
def test_every_message_is_once_in_a_table_of_a_hive_metastore_after_kills_at_every_step(
    sim_cluster: Backend, tmp_path: Path
) -> None:
    """J5, J7, H1, H2: beside another writer; made again, the table is refused at the start."""
    metastore = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
    }
    found = found_after_kills(
        sim_cluster,
        tmp_path,
        {"sink": "shop.orders", "store": str(tmp_path / "offsets"), "settings": settings},
    )

    assert "spark_catalog.shop.orders may lack rows" in found["refusal"]
    assert "the sink is now another table" in found["refusal"]


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.timeout(1500)
def test_every_message_is_once_in_a_table_that_spark_writes_on_s3_after_kills(
    sim_cluster: Backend, s3: Bucket, tmp_path: Path
) -> None:
    """J1, H1, H2: column mapping, so Spark's writer by Hadoop's S3A; all options are those of Spark."""
    settings = {
        "spark.jars": ",".join(map(str, sorted(fetch_s3a_jars().glob("*.jar")))),
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.endpoint": s3.patient_options()["aws_endpoint_url"],
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        # This driver is the only one that writes by Spark, one process after the other.
        "spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore",
    }
    config = {
        "sink": s3.uri("orders"),
        "store": s3.uri("offsets"),
        "settings": settings,
        # The others are before and after what the storage sees.
        "points": ("before_append", "after_append"),
    }

    found_after_kills(sim_cluster, tmp_path, config)
