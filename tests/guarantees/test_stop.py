"""A query is stopped while a listener is at work."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.spark.session import BatchInterrupted, stoppable
from tests.end_to_end.test_orderly_consumer import Consumption
from tests.guarantees.running_query import OFTEN, RunningQuery
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.orders import check_sink, produce_orders
from tests.helpers.wait import wait_until

_SPARKS = re.compile(
    r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\\r\\n|\\r|\\n)*)"
    r"(java.lang.InterruptedException|java.io.InterruptedIOException|"
    r"java.nio.channels.ClosedByInterruptException)"
)
"""``StreamExecution.PROXY_ERROR`` of Spark 4.2."""
_BUSY_S = 120.0


class JavaError:
    """As much of a Java exception as anybody asks for."""

    def __init__(self, name: str, message: str | None, cause: JavaError | None = None) -> None:
        self._name, self._message, self._cause = name, message, cause
        self._target_id = "o1"

    def getClass(self) -> Any:  # noqa: N802 - Java's name
        return self

    def getName(self) -> str:  # noqa: N802 - Java's name
        return self._name

    def getMessage(self) -> str | None:  # noqa: N802 - Java's name
        return self._message

    def getCause(self) -> JavaError | None:  # noqa: N802 - Java's name
        return self._cause


def thrown(error: JavaError) -> Any:
    def fail(batch: DataFrame, batch_id: int) -> None:
        raise Py4JJavaError("An error occurred while calling o1.collectToPython.\n", error)

    return stoppable(fail)


@pytest.mark.parametrize(
    "error",
    [
        JavaError("java.lang.InterruptedException", None),
        JavaError(
            "org.apache.spark.SparkException", "x" * 9999, JavaError("java.io.InterruptedIOException", "")
        ),
        JavaError("org.apache.spark.SparkException", "[SPARK_JOB_CANCELLED] Job 7 cancelled " + "x" * 9999),
    ],
)
def test_interruption_becomes_a_short_error_that_spark_recognises(error: JavaError) -> None:
    """H2: its regular expression overflows the stack over the text of a Java stack trace."""
    with pytest.raises(BatchInterrupted) as told:
        thrown(error)(None, 0)

    assert _SPARKS.search(str(told.value))
    assert len(str(told.value)) < 400


def test_any_other_error_stays_what_it_is() -> None:
    """H2"""
    with pytest.raises(Py4JJavaError) as told:
        thrown(JavaError("org.apache.spark.SparkException", "a task failed"))(None, 0)
    assert told.value.java_exception.getMessage() == "a task failed"


@pytest.mark.spark
@SIM_ONLY
@pytest.mark.parametrize("trigger", [OFTEN, {"realTime": "5 minutes"}], ids=["micro-batches", "real-time"])
def test_a_query_that_is_stopped_within_a_batch_ends_without_an_error_and_goes_on_later(
    trigger: Mapping[str, str], spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H2, I1: the batch is given up. When the query is started again, it comes again, or the plan in Spark's
    log is not run because it was open.
    """
    consumption = Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), "direct")
    expected = produce_orders(cluster.name_servers, consumption.topic, 4)
    busy = tmp_path / "busy"

    def wait(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        busy.touch()
        time.sleep(_BUSY_S)
        return ConsumeOrderlyStatus.SUCCESS

    with RunningQuery(consumption, listener=wait, trigger=trigger) as query:
        wait_until(busy.exists, 2 * _BUSY_S, reason="A listener at work")
        assert query.stop() is None
    assert consumption.reports == []
    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
