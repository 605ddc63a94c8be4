"""What a Spark session must be like: in this process where code of ours runs at the driver, and without copies of slow tasks."""

from __future__ import annotations

import logging
from typing import Any, Final, TypeGuard

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.errors import OptionError, RocketMQError
from pyspark_rocketmq.hub.state import Slots

logger = logging.getLogger(__name__)

_GROWS_WITH_TASKS: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.databricks.clusterUsageTags.clusterScalingType": "autoscaling",
}
"""Settings of clusters that get executors when tasks wait for them: fewer tasks would keep them away."""


def is_classic(spark: object) -> TypeGuard[SparkSession]:
    """Whether the session's driver is this process; that of Spark Connect is elsewhere."""
    return isinstance(spark, SparkSession)


def is_speculative(spark: SparkSession) -> bool:
    """Whether Spark starts a second copy of a slow task."""
    # A session's own copy of the setting may differ from the context's, which is what counts; Connect shows the copy alone.
    settings = spark.sparkContext.getConf() if is_classic(spark) else spark.conf
    return str(settings.get("spark.speculation", "false")).strip().lower() == "true"


def check_speculation(spark: SparkSession) -> None:
    """See that no two copies of a task give a listener the same messages, or send the same rows, at the same time (D1, G6).

    Raises:
        OptionError: If ``spark.speculation`` is on.
    """
    if is_speculative(spark):
        problem = (
            "spark.speculation is on: a second copy of a slow task would give the listener the same messages, or send the "
            "same rows, at the same time, out of their order; start the session with spark.speculation=false"
        )
        raise OptionError((problem,), where="Spark session")


def check_classic(spark: SparkSession, what: str, why: str) -> None:
    """Refuse a session of Spark Connect, whose driver is another process.

    Raises:
        RocketMQError: With what can be done instead.
    """
    if not is_classic(spark):
        raise RocketMQError(
            f"{what} does not work with Spark Connect: {why}. Start it with a classic session, where the driver is (spark-submit, "
            "or a notebook without Connect); format('rocketmq') by itself can be read and written through Spark Connect."
        )


def driver_address(spark: SparkSession) -> tuple[str, str, bool]:
    """Where workers find this process, where it can listen, and whether all of them are on this machine for sure."""
    settings = spark.sparkContext.getConf()
    master = settings.get("spark.master") or ""
    if master == "local" or master.startswith("local["):
        return "127.0.0.1", "127.0.0.1", True
    host = settings.get("spark.driver.host") or "127.0.0.1"
    return host, settings.get("spark.driver.bindAddress") or host, False


def task_slots(spark: SparkSession) -> Slots:
    """How many tasks can run at the same time, as of now."""
    try:
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - spark.default.parallelism may be any number
        at_once = int(
            context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile())
        )
    except Exception as error:  # noqa: BLE001 - a platform may forbid it
        logger.info("how many tasks can run at the same time cannot be asked: %s", error)
        cpus = int(spark.conf.get("spark.task.cpus", "1") or 1)
        return Slots(spark.sparkContext.defaultParallelism // cpus)
    is_growing = any(
        str(spark.conf.get(key, "")).strip().lower() == value for key, value in _GROWS_WITH_TASKS.items()
    )
    return Slots(at_once, 0 if is_growing else at_once)


def is_active(query: StreamingQuery) -> bool:
    """Whether a query runs, as far as anybody can tell."""
    try:
        return bool(query.isActive)
    except Exception:  # noqa: BLE001 - the JVM is gone, or its connection
        return False
