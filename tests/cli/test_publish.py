"""Job ``publish``, in this process and on the run's Spark session."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from pyspark_rocketmq.cli.options import PublishSettings
from pyspark_rocketmq.cli.publish import publish
from pyspark_rocketmq.cli.settings import JobFailed, load_settings
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.write import WriteOptions
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.wait import PATIENCE_S

ORDERS, STEPS = 20, 10


def settings(**given: Any) -> PublishSettings:
    return load_settings(PublishSettings, "publish", None, [f"{key}={value}" for key, value in given.items()])


@pytest.fixture
def events(tmp_path: Path) -> str:
    """Steps of orders in files of their own, newest first."""
    for step in range(STEPS):
        lines = [json.dumps({"order": f"order-{order}", "step": step}) for order in range(ORDERS)]
        (tmp_path / f"{STEPS - step}.json").write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path)


@pytest.mark.spark
@SIM_ONLY
def test_rows_of_files_are_sent_in_order_by_key(
    session: SparkSession, cluster: ClusterUnderTest, events: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """G1, G6: chosen, arranged and counted; the summary says how many."""
    topic = cluster.create_topic(queues=2)
    chosen = settings(
        nameServers=cluster.name_servers,
        topic=topic,
        input=events,
        inputFormat="json",
        select="string(step) AS body, order AS keys, order AS shardingKey",
        where="step <> 3",
        orderBy="step",
        batchSize=3,
        # A request that is sent again for want of an answer would be rows twice.
        requestTimeoutMs=int(PATIENCE_S * 1000),
    )

    publish(chosen, Console(width=120))
    rows = (
        session.read.format("rocketmq")
        .options(nameServers=cluster.name_servers, topic=topic)
        .load()
        .orderBy("brokerName", "queueId", "queueOffset")
        .collect()
    )

    for order in range(ORDERS):
        steps = [int(row.body) for row in rows if row.keys == f"order-{order}"]
        assert steps == [step for step in range(STEPS) if step != 3]
    count = ORDERS * (STEPS - 1)
    assert f"Published {count} messages to topic {topic}" in capsys.readouterr().out


@pytest.mark.spark
@SIM_ONLY
def test_rows_that_cannot_be_sent_fail_the_job_in_a_sentence(
    session: SparkSession, cluster: ClusterUnderTest, events: str
) -> None:
    """G2: without Spark's stack traces."""
    chosen = settings(
        nameServers=cluster.name_servers,
        topic=cluster.create_topic(queues=1),
        input=events,
        inputFormat="json",
        select="order AS body, step AS colour",
    )

    with pytest.raises(JobFailed, match=r"Publishing failed: .*column 'colour' means nothing here"):
        publish(chosen, Console(width=120))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option 'nameServers' is required"),
        ({"nameServers": "h:1", "topic": "t", "input": "/lake/x", "batchSize": "0"}, "option batchSize='0'"),
        ({"nameServers": "h:1", "topic": "t", "input": "/lake/x", "tags": "a"}, "unknown option 'tags'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        settings(**given)


def test_every_setting_of_the_sink_reaches_it() -> None:
    """G2, A5: as the sink takes it; what the job does not have, its SELECT says."""
    given = {
        "nameServers": "h:1;h:2",
        "topic": "t",
        "producerGroup": "p",
        "batchSize": "7",
        "batchBytes": "9000",
        "batchSend": "false",
        "maxMessageSize": "9500",
        "maxInFlightBytes": "10000",
        "compressionType": "lz4",
        "compressOverBytes": "100",
        "properties": '{"source": "lake"}',
        "requireSendOk": "false",
        "sendLatencyFaultEnable": "true",
        "checkShardingKeys": "false",
        "writeId": "w",
        "requestTimeoutMs": "70",
        "retryTimeoutMs": "80",
        "namespace": "n",
        "brokerAddresses": '{"10.0.0.5:10911": "1.2.3.4:10911"}',
        "accessKey": "a",
        "secretKey": "s",
        "securityToken": "z",
        "useTls": "true",
        "tlsCaFile": "ca.pem",
        "tlsCertFile": "c.pem",
        "tlsKeyFile": "k.pem",
        "tlsKeyPassword": "p",
        "tlsVerifyHostname": "false",
    }
    unchecked = {key: text for key, text in given.items() if key != "tlsCaFile"}
    unchecked["tlsVerifyCertificate"] = "false"
    of_the_sink = {each.metadata["spec"].key for each in fields(WriteOptions)}
    of_another_cluster = {"namespaceV2"}
    said_by_select = {"tags", "keys", "shardingKey", "queueId", "delayLevel"}

    for each in (given, unchecked):
        assert each.items() <= settings(input="/lake/x", **each).sink_options().items()
    assert given.keys() | unchecked.keys() == of_the_sink - said_by_select - of_another_cluster


def test_without_settings_the_sink_has_its_own_defaults() -> None:
    """G2"""
    required = {"nameServers": "h:1", "topic": "t"}
    chosen = WriteOptions.parse(settings(input="/lake/x", **required).sink_options())

    assert chosen == WriteOptions.parse(required)
