"""The Spark session of a job."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

import pyspark_rocketmq
from pyspark_rocketmq.source.session import check_classic


@contextmanager
def spark_session(job: str) -> Iterator[SparkSession]:
    """Start or join the session and stop it at the end; settings come from conf/spark-defaults.conf.

    The data source is registered by name: Spark's own look-up does not see packages that came with --py-files.

    Raises:
        RocketMQError: If it is one of Spark Connect (``SPARK_REMOTE``).

    Interrupted, the session is left alone: Ctrl-C reaches the JVM as well, which is gone before it could be asked.
    """
    print("Starting Spark, which takes some seconds.", file=sys.stderr)
    spark = SparkSession.builder.appName(f"pyspark-rocketmq {job}").getOrCreate()
    check_classic(spark, f"Job '{job}'", "it does its work in this process, which is not the driver there")
    # Spark's own handler asks the JVM to cancel its jobs first.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pyspark_rocketmq.register(spark)
    try:
        yield spark
    except Exception:
        spark.stop()
        raise
    spark.stop()
