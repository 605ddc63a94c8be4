"""The Spark session of the tests, and of the programs tests run as processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.real_broker.artifacts import spark_jars

_DELTA_JARS = REPO / ".cache" / "delta-jars-4.4.0"

QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
"""C1 alone: a test's queries run for seconds, most of which a JVM would spend on compiling better code for later."""
SPILL_THRESHOLD = 20_000
"""Rows after which every sort spills: a spilled sort loses the order within a group."""


def delta_jars() -> list[Path]:
    """What a session needs for Delta.

    Raises:
        AssertionError: If they are not here.
    """
    jars = sorted(_DELTA_JARS.glob("*.jar"))
    if not jars:
        raise AssertionError(
            f"No Delta jars in {_DELTA_JARS.relative_to(REPO)}; run `make test`, which fetches them."
        )
    return jars


def make_session(work: Path, *, python: str = sys.executable, max_failures: int = 1) -> SparkSession:
    """A local session on two cores with the jars for Delta and Avro, whose every larger sort spills.

    A task may fail ``max_failures - 1`` times before its query ends. The tests' modules are on the workers' path, since listeners are pickled by reference.
    """
    jars = [*delta_jars(), *spark_jars().glob("*.jar")]
    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYTHONPATH"] = ENVIRONMENT["PYTHONPATH"]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The daemon of workers forks, so what it imports must start no threads.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    os.environ["OMP_NUM_THREADS"] = "1"
    # Of the JVM that makes the command line of Spark's.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JVM)
    return (
        SparkSession.builder.master(f"local[2,{max_failures}]")
        .appName("pyspark-rocketmq tests")
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.shuffle.spill.numElementsForceSpillThreshold", str(SPILL_THRESHOLD))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.python.daemon.module", "tests.helpers.warm_daemon")
        .config("spark.driver.extraJavaOptions", f"{QUICK_JVM} -Dderby.system.home={work / 'derby'}")
        .getOrCreate()
    )
