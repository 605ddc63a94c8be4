"""Fixtures of the tests that run Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.helpers.spark_session import make_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for the whole run."""
    session = make_session(tmp_path_factory.mktemp("spark"))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
