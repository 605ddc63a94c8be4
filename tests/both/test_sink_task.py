"""What a task of the sink sends, without Spark: stored, delayed, compressed, and read by Java."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.errors import RowNotSent
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.compression import COMPRESSION_TYPE_SHIFT, CompressionType
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.both.support import ANSWER_S
from tests.both.test_java_interop import read_by_java, read_topic
from tests.helpers.cluster import REAL_ONLY, SIM_ONLY, ClusterUnderTest
from tests.helpers.sent_rows import send_as_one_task
from tests.real_broker.harness import RealCluster


def send(cluster: ClusterUnderTest, rows: Sequence[dict[str, Any]], **options: Any) -> int:
    """Send rows of equal columns as one task; the number of messages."""
    return send_as_one_task(
        cluster.name_servers, rows, **{"requestTimeoutMs": int(ANSWER_S * 1000)} | options
    )


@pytest.fixture
def queues(cluster: ClusterUnderTest) -> list[MessageQueue]:
    """Four queues of a new topic, two on each broker, in route order."""
    topic = cluster.create_topic(queues=2)
    return [MessageQueue(topic, name, n) for name in ("broker-a", "broker-b") for n in range(2)]


@pytest.mark.parametrize("kind", ["none", "zlib", "lz4", "zstd"])
def test_bodies_come_back_whole_however_they_are_compressed(
    cluster: ClusterUnderTest, client: BrokerClient, queues: list[MessageQueue], kind: str
) -> None:
    """G2 ★: requests with compressed and with plain bodies keep the order of their key."""
    rows = [{"body": bytes([n]) * (1 + n * 97 % 400), "keys": str(n)} for n in range(200)]

    sent = send(
        cluster,
        rows,
        topic=queues[0].topic,
        shardingKey="k",
        batchSize=16,
        compressionType=kind,
        compressOverBytes=200,
    )
    by_queue = read_topic(client, cluster, queues, len(rows))

    assert sent == len(rows)
    messages = by_queue[queues[select_by_hash("k", 4)]]
    assert [(m.keys, m.body) for m in messages] == [(row["keys"], row["body"]) for row in rows]


def test_a_row_with_a_delay_level_is_given_out_later(
    cluster: ClusterUnderTest, client: BrokerClient, queues: list[MessageQueue]
) -> None:
    """G2 ★: alone, beside a batch of those that are not; compressed as the options say."""
    rows = [{"body": str(n) * (n + 1), "delayLevel": 1 if n == 2 else None} for n in range(5)]

    send(cluster, rows, topic=queues[0].topic, shardingKey="k", compressionType="lz4", compressOverBytes=3)
    messages = read_topic(client, cluster, queues, len(rows))[queues[select_by_hash("k", 4)]]

    # On a busy machine its time comes before the others are sent.
    [later] = [m for m in messages if "DELAY" in m.properties]
    assert [m.body for m in messages if m is not later] == [b"0", b"11", b"3333", b"44444"]
    assert (later.body, later.properties["DELAY"]) == (b"222", "1")
    assert later.store_timestamp - later.born_timestamp >= 1000
    assert later.sys_flag == CompressionType.LZ4 << COMPRESSION_TYPE_SHIFT
    assert int(later.msg_id[-12:], 16) == 2


@SIM_ONLY
def test_a_row_with_a_moment_is_given_out_then(
    cluster: ClusterUnderTest, client: BrokerClient, queues: list[MessageQueue]
) -> None:
    """G2: the real broker of the tests has its timer wheel off."""
    soon = datetime.now(UTC) + timedelta(seconds=1)
    rows: list[dict[str, Any]] = [
        {"body": "later", "deliverTimestamp": soon},
        {"body": "now", "deliverTimestamp": None},
    ]

    send(cluster, rows, topic=queues[0].topic, shardingKey="k")
    messages = read_topic(client, cluster, queues, len(rows))[queues[select_by_hash("k", 4)]]

    # On a busy machine the moment may be over before the other one is sent.
    stored_ms = {m.body: m.store_timestamp for m in messages}
    assert stored_ms.keys() == {b"now", b"later"}
    assert stored_ms[b"later"] >= int(soon.timestamp() * 1000)


@SIM_ONLY
def test_rows_without_a_key_go_on_while_a_broker_is_away_and_those_of_it_fail(
    cluster: ClusterUnderTest, client: BrokerClient, queues: list[MessageQueue]
) -> None:
    """G3, G5: a row of a queue goes nowhere else, and is reported."""
    topic = queues[0].topic
    cluster.stop_broker("broker-b")
    try:
        assert send(cluster, [{"body": str(n)} for n in range(40)], topic=topic, batchSize=2) == 40
        with pytest.raises(
            RowNotSent, match=r"row 0 of the task.*queue 1 of topic|row 0 of the task.*broker-b"
        ):
            send(
                cluster,
                [{"body": "x", "queueId": 1, "brokerName": "broker-b"}],
                topic=topic,
                retryTimeoutMs=300,
            )
    finally:
        cluster.start_broker("broker-b")

    by_queue = read_topic(client, cluster, queues, 40)
    assert {queue.broker_name for queue, messages in by_queue.items() if messages} == {"broker-a"}


@REAL_ONLY
def test_what_the_sink_sends_java_reads_in_order_and_with_an_id_each(
    cluster: ClusterUnderTest, client: BrokerClient, queues: list[MessageQueue], group: str
) -> None:
    """G1, G2, H6 ★: also the messages of one batch, which of Java's producer all show one id."""
    assert isinstance(cluster.backend, RealCluster)
    rows: list[dict[str, Any]] = [
        {"body": f"{n} größe".encode(), "keys": f"k{n % 7}", "tags": "红", "shardingKey": f"k{n % 7}"}
        for n in range(300)
    ]

    send(cluster, rows, topic=queues[0].topic, compressionType="zlib", compressOverBytes=0)
    shown = read_by_java(cluster.backend, queues[0].topic, group, len(rows))

    expected: dict[str, list[bytes]] = defaultdict(list)
    for row in rows:
        expected[row["keys"]].append(row["body"])
    by_key: dict[str, list[bytes]] = defaultdict(list)
    for message in sorted(shown, key=lambda m: (m["brokerName"], m["queueId"], m["queueOffset"])):
        by_key[message["keys"]].append(message["body"])
        assert message["tags"] == "红"
    assert by_key == expected
    assert {len(m["msgId"]) for m in shown} == {32}
    assert sorted(int(m["msgId"][-12:], 16) for m in shown) == list(range(300))
