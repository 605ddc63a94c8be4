"""A real standalone cluster of Spark's: how our code gets to its executors,
and what the loss of one costs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from tests.helpers import doomed_listener
from tests.helpers.driver_process import consume_command, running
from tests.helpers.orders import OUTPUT_SCHEMA, Orders, check_sink, produce_orders
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.standalone_cluster import SPARK_HOME, StandaloneCluster, kill_machine_of
from tests.helpers.wait import wait_until

pytestmark = [pytest.mark.driver, pytest.mark.sim, pytest.mark.long, pytest.mark.timeout(600)]

PATIENCE_S = 240.0
"""More than a job takes to start or to end on a busy machine."""

READ_BY_NAME = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = {"nameServers": sys.argv[1], "topic": "orders", "startingOffsets": "earliest"}
messages = spark.read.format("rocketmq").options(**options).load()
print("messages", messages.select("keys").distinct().count(), messages.count())
query = (
    spark.readStream.format("rocketmq").options(**options).load()
    .writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
print("stream", spark.table("seen").count())
listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
spark.sql(f"CREATE TEMPORARY VIEW orders USING rocketmq OPTIONS ({listed})")
print("view", spark.table("orders").select("msgId", "keys").count())
where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark_rocketmq").__file__).first()
print("executors import", where)
"""


@pytest.fixture(scope="module")
def brokers() -> Iterator[SimCluster]:
    with SimCluster(brokers=1, queues=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def orders(brokers: SimCluster) -> Orders:
    """What was sent to topic ``orders``: a thousand messages in four queues."""
    return produce_orders(brokers.name_servers, "orders", 200)


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("spark-cluster"), workers=2) as cluster:
        yield cluster


def environment_of(cluster: StandaloneCluster, **more: str) -> dict[str, str]:
    """Of somebody who submits to the cluster, on a machine where nothing of ours is installed."""
    ours = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR", "SPARK_HOME"}
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER": cluster.master,
        **more,
    }


def test_a_machine_that_is_killed_under_a_job_costs_nothing_but_time(
    spark_cluster: StandaloneCluster, brokers: SimCluster, orders: Orders, tmp_path: Path
) -> None:
    """H1, H5: Spark's Worker, its executor and its Python, by SIGKILL in the middle of a listener's call."""
    log = tmp_path / "log"
    options = {
        "nameServers": brokers.name_servers,
        "topic": "orders",
        "consumerGroup": "on-a-cluster",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "listener": "doomed_listener:on_orders",
        "pyFiles": doomed_listener.__file__,
        "outputSchema": OUTPUT_SCHEMA,
        "maxOffsetsPerTrigger": "200",
        "trigger": "availableNow",
        "sink": str(tmp_path / "sink"),
        "offsetStore": str(tmp_path / "offsets"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    environment = environment_of(
        spark_cluster,
        SPARK_SUBMIT_ARGS=(
            f"--conf spark.executor.memory=512m --conf spark.executorEnv.{doomed_listener.FOLDER}={tmp_path}"
        ),
    )

    with running(consume_command(options), log, folder=tmp_path, environment=environment) as job:
        doomed = tmp_path / "doomed"
        wait_until(
            lambda: doomed.exists() or job.poll() is not None, PATIENCE_S, reason="a worker that waits"
        )
        assert job.poll() is None, log.read_text()[-4000:]
        kill_machine_of(int(doomed.read_text()))
        exit_code = job.wait(PATIENCE_S)

    assert exit_code == 0, log.read_text()[-4000:]
    assert "Lost executor" in log.read_text()
    spark_cluster.await_workers(1)
    report = check_sink(tmp_path / "sink", orders)
    assert report.is_clean, str(report)
    assert report.rows == 1000


@pytest.fixture
def packed_environment(wheel: Path, tmp_path: Path) -> Path:
    """As docs/how-to/deployment.md makes one; what the wheel needs is the tests' own,
    instead of a download.
    """
    made = tmp_path / "packed"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(made / "bin/python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run(["tar", "-czf", "packed.tar.gz", "-C", "packed", "."], cwd=tmp_path, check=True)
    return tmp_path / "packed.tar.gz"


@pytest.mark.usefixtures("orders")
def test_executors_run_in_an_environment_that_came_packed(
    spark_cluster: StandaloneCluster, brokers: SimCluster, packed_environment: Path, tmp_path: Path
) -> None:
    """A program of one's own; nothing of ours is installed on the cluster,
    and the source is found by its name: in a batch, a stream and SQL.
    """
    folder = tmp_path / "driver"
    (folder / "environment").mkdir(parents=True)
    subprocess.run(["tar", "-xzf", str(packed_environment), "-C", str(folder / "environment")], check=True)
    (folder / "job.py").write_text(READ_BY_NAME)
    command = [str(SPARK_HOME / "bin/spark-submit"), "--master", spark_cluster.master]
    command += ["--archives", f"{packed_environment}#environment", "--conf", "spark.executor.memory=512m"]
    log = tmp_path / "log"
    environment = environment_of(
        spark_cluster, SPARK_HOME=str(SPARK_HOME), PYSPARK_PYTHON="./environment/bin/python"
    )

    with running(
        [*command, "job.py", brokers.name_servers], log, folder=folder, environment=environment
    ) as job:
        assert job.wait(PATIENCE_S) == 0, log.read_text()[-4000:]

    printed = log.read_text()
    assert {"messages 200 1000", "stream 1000", "view 1000"} <= set(printed.splitlines())
    assert re.search(
        r"executors import \S+/app-\S+/environment/lib/\S+/pyspark_rocketmq/__init__.py", printed
    ), printed
