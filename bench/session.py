"""The Spark session of the benchmarks: two cores and the jobs' settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.helpers.spark_session import delta_jars

_REPO = Path(__file__).parent.parent
_DEFAULTS = _REPO / "conf" / "spark-defaults.conf"
CORES = 2
"""Tasks at once."""


@contextmanager
def bench_session(
    work: Path, *, with_delta: bool = False, jars: Sequence[Path] = ()
) -> Iterator[SparkSession]:
    """Start a session that keeps its files below ``work``; workers find the connector and the benchmarks.

    It has no Delta jars unless requested, since delta-rs does the writing. ``jars`` are further ones.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The jobs' settings name Delta's classes, whose jars may not be here; those that count are given below.
    os.environ.pop("SPARK_CONF_DIR", None)
    before = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_REPO / "connector"), str(_REPO), *before])
    # Spark's own way to write out state makes pandas warn once per worker.
    os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning:pyspark.sql.pandas.serializers"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("pyspark-rocketmq bench")
    for key, value in _defaults(with_delta=with_delta).items():
        builder = builder.config(key, value)
    class_path = [*(delta_jars() if with_delta else ()), *jars]
    if class_path:
        builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(map(str, class_path)))
    session = (
        builder.config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={work / 'derby'}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _defaults(*, with_delta: bool) -> dict[str, str]:
    """The jobs' settings, by default without those that need Delta's jars."""
    lines = (line.split() for line in _DEFAULTS.read_text(encoding="utf-8").splitlines())
    pairs = {words[0]: words[1] for words in lines if len(words) == 2}
    if with_delta:
        return pairs
    return {key: value for key, value in pairs.items() if "delta" not in value and "delta" not in key}
