"""Job ``replay``, in this process and on the run's Spark session: where its settings lead,
and what it shows.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import pyspark_rocketmq.cli.replay
from pyspark_rocketmq.cli.options import ReplaySettings
from pyspark_rocketmq.cli.replay import replay, summary_text
from pyspark_rocketmq.cli.settings import load_settings
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.replay.replay import OnStep, Replay, ReplaySummary
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.sending import patient_producer
from tests.helpers.wait import PATIENCE_S


def settings(**given: Any) -> ReplaySettings:
    return load_settings(ReplaySettings, "replay", None, [f"{key}={value}" for key, value in given.items()])


def run(chosen: ReplaySettings) -> str:
    """What is shown on a terminal."""
    shown = io.StringIO()
    replay(chosen, Console(file=shown, force_terminal=True, width=200, color_system=None))
    return shown.getvalue()


@pytest.mark.spark
@SIM_ONLY
def test_messages_go_to_the_topic_once_with_a_bar_and_a_summary(
    session: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H3: what is read, where it goes, the steps and the record are those of the settings."""
    topic, copy = (cluster.create_topic(queues=1, brokers=["broker-a"]) for _ in range(2))
    with patient_producer(cluster.name_servers) as producer:
        [queue] = producer.queues(topic)
        messages = [
            Message(topic=topic, body=b"%d" % number, properties={"TAGS": "ab"[number % 2]})
            for number in range(8)
        ]
        producer.send_batch(messages, queue)
    chosen = settings(
        nameServers=cluster.name_servers,
        topic=topic,
        subscription="b",
        toTopic=copy,
        record=tmp_path / "record",
        offsetsPerStep=4,
        requestTimeoutMs=int(PATIENCE_S * 1000),
    )

    first, second = run(chosen), run(chosen)
    rows = session.read.format("rocketmq").options(nameServers=cluster.name_servers, topic=copy).load()

    assert [bytes(row.body) for row in rows.orderBy("queueOffset").collect()] == [b"1", b"3", b"5", b"7"]
    assert "offsets replayed" in first
    assert "8/8" in first
    assert f"queues: 1 · offsets planned: 8 · messages sent to topic {copy}: 4 · steps: 2" in first
    assert f"replayed before: 8 · messages sent to topic {copy}: 0 · steps: 0" in second
    assert (tmp_path / "record" / "_delta_log").is_dir()


@pytest.mark.spark
def test_messages_go_to_the_table(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: with the settings as options of the read; what is then done is tested in tests/end_to_end."""
    told: list[object] = []

    class ToldReplay(Replay):
        def __init__(
            self, spark: SparkSession, options: Mapping[str, str] | ReadOptions, *, offsets_per_step: int
        ) -> None:
            super().__init__(spark, options, offsets_per_step=offsets_per_step)
            told.extend((spark, options, offsets_per_step))

        def to_table(self, path: str, on_step: OnStep | None = None) -> ReplaySummary:
            assert on_step is not None
            on_step(30, 60)
            told.append(path)
            return ReplaySummary(queues=2, planned=60, recorded=0, written=40, steps=3, seconds=1.25)

    monkeypatch.setattr(pyspark_rocketmq.cli.replay, "Replay", ToldReplay)
    chosen = settings(nameServers="h:1", topic="t", toTable="/lake/t", offsetsPerStep=20)

    shown = run(chosen)

    assert told == [session, chosen, 20, "/lake/t"]
    assert "30/60" in shown
    assert "rows added to /lake/t: 40 · steps: 3" in shown


@pytest.mark.parametrize(
    ("store", "secrets"),
    [("s3://lake/offsets", '{"aws_region": "eu"}'), ("s3://other/offsets", None)],
    ids=["the same", "another bucket's"],
)
def test_the_record_is_reached_by_spark_s_settings_where_no_option_says_how(
    store: str, secrets: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H3, J1: where they are the store's, too."""
    conf = SimpleNamespace(
        getAll=lambda: [
            ("spark.hadoop.fs.s3a.endpoint.region", "eu"),
            ("spark.hadoop.fs.s3a.bucket.other.endpoint.region", "us"),
        ]
    )
    spark = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    made = create_autospec(Replay)
    made.return_value.to_topic.return_value = ReplaySummary(
        queues=1, planned=1, recorded=0, written=1, steps=1, seconds=1
    )
    monkeypatch.setattr(pyspark_rocketmq.cli.replay, "Replay", made)
    monkeypatch.setattr(pyspark_rocketmq.cli.replay, "spark_session", lambda *_, **__: nullcontext(spark))

    run(
        settings(
            nameServers="h:1",
            topic="t",
            toTopic="copy",
            record="s3://lake/record",
            offsetStore=store,
            endingOffsets="group",
            endingGroup="g",
        )
    )

    assert made.call_args.args[1].storage_secrets == secrets
    assert ("Spark's settings of storage are not used" in caplog.text) == (secrets is None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give one of the options 'toTable' and 'toTopic'"),
        (
            {"toTable": "/a", "toTopic": "b", "record": "/c"},
            "give one of the options 'toTable' and 'toTopic'",
        ),
        ({"toTopic": "b"}, "options 'toTopic' and 'record' go together"),
        ({"toTable": "/a", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, str], said: str) -> None:
    """H3"""
    with pytest.raises(OptionError, match=said):
        settings(nameServers="h:1", topic="t", **given)


def test_the_summary_mentions_an_earlier_run_only_if_there_was_one() -> None:
    """H3"""
    summary = ReplaySummary(queues=2, planned=60, recorded=0, written=40, steps=3, seconds=1.25)
    again = ReplaySummary(queues=2, planned=60, recorded=60, written=0, steps=0, seconds=0.04)

    assert summary_text(summary, "rows added to /t") == (
        "queues: 2 · offsets planned: 60 · rows added to /t: 40 · steps: 3 · 1.2 s"
    )
    assert "replayed before: 60 · messages sent" in summary_text(again, "messages sent to topic copy")
