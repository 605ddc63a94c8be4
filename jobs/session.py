"""The Spark session of a job."""

from __future__ import annotations

from pyspark.sql import SparkSession

import pyspark_rocketmq


def open_session(job: str) -> SparkSession:
    """Start or join the session; settings come from conf/spark-defaults.conf through spark-submit.

    The data source is registered by name: Spark's own look-up does not see packages that came with --py-files.
    """
    spark = SparkSession.builder.appName(f"pyspark-rocketmq {job}").getOrCreate()
    pyspark_rocketmq.register(spark)
    return spark
