"""The run's Spark session in place of the one that a job starts and stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

import pyspark_rocketmq.cli.demo.run
import pyspark_rocketmq.cli.publish
import pyspark_rocketmq.cli.replay
from pyspark_rocketmq.format import register


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """What jobs ``demo``, ``publish`` and ``replay`` run on."""

    @contextmanager
    def the_run_s_own(job: str, *, needs_delta: bool = False) -> Iterator[SparkSession]:
        yield spark

    for job in (pyspark_rocketmq.cli.demo.run, pyspark_rocketmq.cli.publish, pyspark_rocketmq.cli.replay):
        monkeypatch.setattr(job, "spark_session", the_run_s_own)
    register(spark)
    return spark
