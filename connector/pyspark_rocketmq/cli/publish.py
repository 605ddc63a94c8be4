"""Command ``publish``: the rows of a table or of files as messages of a topic."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console

from pyspark_rocketmq.cli.offsets.cluster import broker_bounds
from pyspark_rocketmq.cli.options import PublishSettings
from pyspark_rocketmq.cli.running import Shown, failure_sentence, spark_session
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.keys import by_sharding_key
from pyspark_rocketmq.publish.rows import SHARDING_KEY
from pyspark_rocketmq.spark.session import check_speculation

_POLL_S: Final = 0.5
_JOIN_S: Final = 5.0
_VIEW: Final = "rocketmq_publish_input"


def publish(settings: PublishSettings, console: Console) -> None:
    """Send the rows that ``settings`` choose from a table or from files to a topic, and show the progress.

    Raises:
        OptionError: If the settings or the session cannot be used.
        JobFailed: If the rows cannot be read, or one could not be sent.
    """
    # Before Spark starts: a wrong option should not cost ten seconds.
    WriteOptions.parse(settings.sink_options())
    with spark_session("publish", needs_delta=settings.input_format == "delta") as spark:
        check_speculation(spark)
        try:
            rows = _rows(spark, settings)
            total = rows.count()
            console.print(f"Rows to publish: {total:,}")
            counted = Observation("published")
            started_s = time.monotonic()
            with _watched(_stored(settings), total, console):
                _write(rows.observe(counted, sf.count(sf.lit(1)).alias("rows")), settings)
        except PySparkException as error:
            raise JobFailed(f"Publishing failed: {failure_sentence(str(error))}") from error
        took_s = time.monotonic() - started_s
        sent = counted.get["rows"]
    console.print(
        f"Published {sent:,} messages to topic {settings.topic} in {took_s:.1f} s, {sent / took_s:,.0f} per "
        "second; all of them acknowledged",
        markup=False,
    )


def _rows(spark: SparkSession, settings: PublishSettings) -> DataFrame:
    spark.read.format(settings.input_format).load(settings.input).createOrReplaceTempView(_VIEW)
    where = f" WHERE {settings.where}" if settings.where else ""
    order = f" ORDER BY {settings.order_by}" if settings.order_by else ""
    # The SQL comes from whoever starts the job, for their own data.
    rows = spark.sql(f"SELECT {settings.select} FROM {_VIEW}{where}{order}")  # noqa: S608
    is_keyed = SHARDING_KEY.lower() in map(str.lower, rows.columns)
    return by_sharding_key(rows, partitions=settings.tasks) if is_keyed else rows


def _write(rows: DataFrame, settings: PublishSettings) -> None:
    rows.write.format("rocketmq").options(**settings.sink_options()).mode("append").save()


def _stored(settings: PublishSettings) -> Callable[[], int | None]:
    """Return a function that returns how many messages the topic has got since ``_stored`` was called.

    The function returns None if the cluster does not answer now, or did not answer then.
    """

    def messages() -> int | None:
        access = settings.access_options()
        try:
            bounds = broker_bounds(settings.topic, settings.name_servers, settings.request_timeout_ms, access)
        except RocketMQError:
            # Only for the display: the write itself reports errors.
            return None
        return sum(one.max_offset for one in bounds.values())

    before = messages()

    def since() -> int | None:
        now = messages()
        return None if now is None or before is None else now - before

    return since


@contextmanager
def _watched(done: Callable[[], int | None], total: int, console: Console) -> Iterator[None]:
    """Show the progress of the ``with`` block twice a second: ``done()`` of ``total`` messages.

    Another thread shows it: the block must stay on this thread, on which Spark finds its session.
    """
    is_over = threading.Event()
    # Ctrl-C inside a call to the JVM would be reported with a traceback.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with Shown(console, "messages stored") as shown:

        def show() -> None:
            while not is_over.wait(_POLL_S):
                shown(min(done() or 0, total), total)

        watcher = threading.Thread(target=show, name="publish-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join(_JOIN_S)
        shown(total, total)
