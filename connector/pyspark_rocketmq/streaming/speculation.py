"""Refuses a Spark that would call a listener twice at the same time."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import OptionError


def check_speculation(spark: SparkSession) -> None:
    """See that Spark does not start a second copy of a slow task, whose listener would get the same messages (D1).

    Raises:
        OptionError: If ``spark.speculation`` is on.
    """
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        problem = (
            "spark.speculation is on: a second copy of a slow task would give the listener the same messages at the "
            "same time, out of their order; start the session with spark.speculation=false"
        )
        raise OptionError((problem,), where="Spark session")
