"""Sessions that run slow tasks twice: what is refused, and what can only be warned of.

And how many tasks run beside each other.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import OptionError, RocketMQError
from pyspark_rocketmq.format import register
from pyspark_rocketmq.hub.state import Slots
from pyspark_rocketmq.publish.keys import by_sharding_key
from pyspark_rocketmq.source.checkpoint import foreign_offset
from pyspark_rocketmq.spark.session import (
    check_classic,
    check_delta,
    encrypts_network,
    is_speculative,
    living_session,
    most_slots,
    task_slots,
)


def session(*, with_copies: bool) -> Any:
    """What is asked of one of Spark Connect; it takes every data source."""
    conf = {"spark.speculation": str(with_copies).lower()}
    return SimpleNamespace(conf=conf, dataSource=SimpleNamespace(register=lambda source: None))


@pytest.mark.parametrize("with_copies", [True, False])
def test_settings_of_the_context_s_start_count_and_not_later_ones(with_copies: bool) -> None:
    """D1, G6: ``getOrCreate`` changes only the session's copy, and no task looks at that."""
    classic = create_autospec(SparkSession, instance=True)
    classic.sparkContext.getConf.return_value = {"spark.speculation": str(with_copies).lower()}
    classic.conf = {"spark.speculation": str(not with_copies).lower()}

    assert is_speculative(classic) == with_copies


@pytest.mark.parametrize(
    ("settings", "is_encrypted"),
    [
        ({}, False),
        ({"spark.network.crypto.enabled": "true"}, True),
        ({"spark.ssl.enabled": " True"}, True),
        ({"spark.ssl.rpc.enabled": "true"}, True),
        ({"spark.authenticate": "true", "spark.authenticate.enableSaslEncryption": "true"}, True),
        ({"spark.authenticate": "true"}, False),
        ({"spark.io.encryption.enabled": "true", "spark.network.crypto.enabled": "false"}, False),
    ],
)
def test_connections_within_a_query_are_encrypted_where_spark_s_are(
    settings: dict[str, str], is_encrypted: bool
) -> None:
    """A5: of a classic session the context's settings count."""
    classic = create_autospec(SparkSession, instance=True)
    classic.sparkContext.getConf.return_value = settings

    assert encrypts_network(classic) == is_encrypted
    assert encrypts_network(SimpleNamespace(conf=settings)) == is_encrypted  # type: ignore[arg-type]


def test_rows_are_not_arranged_by_key_where_two_copies_of_a_task_would_send_them() -> None:
    """G6"""
    rows = SimpleNamespace(
        isStreaming=False, columns=["body", "shardingKey"], sparkSession=session(with_copies=True)
    )

    with pytest.raises(
        OptionError, match=r"send the same rows, twice and out of order.*spark\.speculation=false"
    ):
        by_sharding_key(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("with_copies", [True, False])
def test_whoever_registers_the_source_there_is_warned(
    with_copies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """G6: reading is harmless, and what writes cannot see the session."""
    with caplog.at_level(logging.WARNING, "pyspark_rocketmq"):
        register(session(with_copies=with_copies))

    # Members of earlier tests may log meanwhile.
    own = [record.message for record in caplog.records if record.name == "pyspark_rocketmq.format"]
    assert [message.startswith("spark.speculation is on") for message in own] == [True] * with_copies


@pytest.mark.parametrize(
    ("entry", "foreign"),
    [
        ('v1\n{"batchWatermarkMs":0}\n7', "7"),
        ('v1\n{}\n{"logOffset":3}', '{"logOffset":3}'),
        ('v1\n{}\n{"v":1,"seq":4,"plan":{}}\n{"orders":{"0":23}}', '{"orders":{"0":23}}'),
        ("v1\n{}\n[]", "[]"),
        ('v1\n{}\n{"v":1,"seq":4,"plan":{}}', None),
        ('v1\n{}\n{"v":9,"seq":4}', None),
        ("v1\n{}\n-", None),
        ('v1\n{}\n{"v":1,"se', None),
        ("v2\n{}\n7", None),
        ("v1", None),
        ("", None),
    ],
)
def test_only_an_offset_that_is_surely_another_source_s_is_refused(entry: str, foreign: str | None) -> None:
    assert foreign_offset(entry) == foreign


@pytest.mark.spark
def test_how_many_tasks_run_at_the_same_time_is_a_matter_of_cores(spark: SparkSession) -> None:
    """D3: ``defaultParallelism`` can be set to any number."""
    assert task_slots(spark) == Slots(2, 2)


def classic_session(**conf: str) -> Any:
    """A cluster with four executors of two cores."""
    classic = create_autospec(SparkSession, instance=True)
    classic.conf = {key.replace("_", "."): value for key, value in conf.items()}
    classic.sparkContext._jsc.sc().maxNumConcurrentTasks.return_value = 8
    classic.sparkContext.defaultParallelism = 9
    return classic


@pytest.mark.parametrize(
    "setting",
    [
        {"spark_dynamicAllocation_enabled": "true"},
        {"spark_databricks_clusterUsageTags_clusterScalingType": "autoscaling"},
    ],
)
def test_any_number_of_tasks_is_planned_where_executors_come_when_tasks_wait(setting: dict[str, str]) -> None:
    """D3: fewer tasks would keep them away."""
    assert task_slots(classic_session(**setting)) == Slots(8, 0)
    assert task_slots(classic_session()) == Slots(8, 8)


@pytest.mark.parametrize(
    ("executors", "cores", "cpus", "most"),
    [("5", "4", "", 20), ("5", "4", "3", 5), ("5", "", "", 0), ("", "4", "", 0), ("many", "4", "", 0)],
)
def test_how_many_tasks_can_run_once_all_executors_are_there(
    executors: str, cores: str, cpus: str, most: int
) -> None:
    """I7: if settings say it."""
    settings = {
        "spark_dynamicAllocation_maxExecutors": executors,
        "spark_executor_cores": cores,
        "spark_task_cpus": cpus,
    }
    assert most_slots(classic_session(**settings)) == most


def test_any_number_of_tasks_is_planned_where_a_platform_does_not_report_how_many_can_run() -> None:
    """D3: what is known of the cores still says whether a task may wait for others to begin."""
    classic = classic_session(spark_task_cpus="2")
    classic.sparkContext._jsc.sc.side_effect = PermissionError("not allowed")

    assert task_slots(classic) == Slots(4, 0)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_session_whose_context_the_jvm_stopped_is_used_no_more(
    is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: Python does not notice that by itself."""
    given, other = classic_session(), classic_session()
    given.sparkContext._jsc.sc().isStopped.return_value = is_stopped
    other.sparkContext._jsc.sc().isStopped.return_value = False
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: other)

    assert living_session(given) is (other if is_stopped else given)


def test_a_missing_session_is_reported_as_such() -> None:
    with pytest.raises(RocketMQError, match="A Replay needs a Spark session, not None"):
        check_classic(None, "A Replay", "why")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has_delta", "told"),
    [
        (True, r"has no Delta Lake. Start it with configure_spark_with_delta_pip"),
        (False, r"Delta Lake has no release for Spark 4\.3\.0, .* Use Spark 4\.2"),
    ],
)
def test_the_error_of_a_session_without_delta_lake_says_what_it_lacks(
    has_delta: bool, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row J4; as of ``SparkSession.builder.getOrCreate()``."""
    monkeypatch.setattr("pyspark_rocketmq.spark.session.HAS_DELTA", has_delta)
    without: Any = MagicMock(spec=SparkSession, version="4.3.0")
    without._jvm = MagicMock()
    without._jvm.io.delta.tables.DeltaTable = JavaPackage("io.delta.tables.DeltaTable", None)

    with pytest.raises(RocketMQError, match=told):
        check_delta(without)


@pytest.mark.parametrize("version", ["4.4.0", "4.0.1"])
def test_delta_lake_for_another_spark_is_refused_before_a_table_is_made(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row J4; its reads of a table fail with a NoSuchMethodError on Spark 4.3."""
    monkeypatch.setattr("pyspark_rocketmq.spark.session.HAS_DELTA", False)
    session: Any = MagicMock(spec=SparkSession, version="4.3.0")
    session._jvm = MagicMock()
    session._jvm.io.delta.package.VERSION.return_value = version

    with pytest.raises(RocketMQError, match=r"no release for Spark 4\.3\.0, and this session has none"):
        check_delta(session)


@pytest.mark.parametrize("told", [{"return_value": "4.5.0"}, {"side_effect": TypeError("not callable")}])
def test_delta_lake_that_is_newer_or_a_platform_s_own_is_tried(
    told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row J4."""
    monkeypatch.setattr("pyspark_rocketmq.spark.session.HAS_DELTA", False)
    session: Any = MagicMock(spec=SparkSession, version="4.3.0")
    session._jvm = MagicMock()
    session._jvm.io.delta.package.VERSION.configure_mock(**told)

    check_delta(session)
