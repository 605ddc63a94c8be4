"""The Spark session of the tests, and of the programs that tests run in separate processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession

from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.helpers.jvm_archive import with_archive
from tests.helpers.quick_jvm import QUICK_JVM
from tests.real_broker.artifacts import spark_jars

_CONF = REPO / "conf"

SPILL_THRESHOLD = 20_000
"""Rows after which every sort spills: a spilled sort loses the order within a group."""


def delta_jars() -> list[Path]:
    """Return the settings for Delta; none if there is no Delta for this Spark.

    Raises:
        AssertionError: If they are not here.
    """
    try:
        folder = REPO / ".cache" / f"delta-jars-{version('delta-spark')}"
    except PackageNotFoundError:
        return []
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise AssertionError(
            f"No Delta jars in {folder.relative_to(REPO)}; run `make test`, which fetches them."
        )
    return jars


def extra_jars() -> list[Path]:
    """Return the jars for Delta and Avro on the class path of the tests' sessions."""
    return [*delta_jars(), *sorted(spark_jars().glob("*.jar"))]


def make_session(
    work: Path,
    *,
    python: str = sys.executable,
    max_failures: int = 1,
    jvm: str | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Make a local session on two cores with the jars for Delta and Avro; its larger sorts spill.

    A task may fail ``max_failures - 1`` times before its query ends. The tests' modules are on
    the workers' path, since listeners are pickled by reference. ``jvm`` are the options of its
    JVM, in place of those that make it quick; ``settings`` are further settings of Spark.
    """
    jars = extra_jars()
    options = f"-Dlog4j2.configurationFile={_CONF / 'log4j2.properties'} {jvm or with_archive(jars)}"
    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYTHONPATH"] = ENVIRONMENT["PYTHONPATH"]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The daemon of workers forks, so its imports must start no threads.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    os.environ["OMP_NUM_THREADS"] = "1"
    # A folder with files on the class path forbids an archive of classes. Its settings are made below.
    os.environ["SPARK_CONF_DIR"] = str(_CONF / "none")
    # Of the JVM that makes the command line of Spark's.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JVM)
    return (
        SparkSession.builder.master(f"local[2,{max_failures}]")
        .appName("pyspark-rocketmq tests")
        .config(map={**_defaults(has_delta=bool(delta_jars())), **settings})
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
        .config("spark.shuffle.spill.numElementsForceSpillThreshold", str(SPILL_THRESHOLD))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.python.daemon.module", "tests.helpers.warm_daemon")
        .config("spark.driver.extraJavaOptions", f"{options} -Dderby.system.home={work / 'derby'}")
        .getOrCreate()
    )


def _defaults(*, has_delta: bool) -> dict[str, str]:
    """Return the settings of ``conf/spark-defaults.conf``, which all jobs have."""
    lines = (_CONF / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {key: value for key, value in settings.items() if has_delta or "delta" not in value}
