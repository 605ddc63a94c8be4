"""With Java's own client at the other end, through a real broker: what it sends we read,
what we send it reads.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.compression import CompressionType
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.both.support import ANSWER_S
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.real_broker.harness import RealCluster

pytestmark = REAL_ONLY

ORDERS, STEPS = 20, 10


@pytest.fixture
def java(cluster: ClusterUnderTest) -> RealCluster:
    """The cluster as one that can run Java programs against itself."""
    assert isinstance(cluster.backend, RealCluster)
    return cluster.backend


@pytest.fixture
def queues(cluster: ClusterUnderTest) -> list[MessageQueue]:
    """Four queues of a new topic, two on each broker, in route order."""
    topic = cluster.create_topic(queues=2)
    return [MessageQueue(topic, name, n) for name in ("broker-a", "broker-b") for n in range(2)]


def read_topic(
    client: BrokerClient, cluster: ClusterUnderTest, queues: list[MessageQueue], count: int
) -> dict[MessageQueue, list[MessageExt]]:
    """Everything in ``queues``, which must become ``count`` messages."""

    def ends() -> dict[MessageQueue, int]:
        return {
            queue: client.max_offset(cluster.broker_addresses[queue.broker_name], queue) for queue in queues
        }

    wait_until(
        lambda: sum(ends().values()) >= count, ANSWER_S, reason=f"{count} messages in {queues[0].topic}"
    )
    assert sum(ends().values()) == count
    return {queue: read_queue(client, cluster, queue, end) for queue, end in ends().items()}


def read_queue(
    client: BrokerClient, cluster: ClusterUnderTest, queue: MessageQueue, end: int
) -> list[MessageExt]:
    address = cluster.broker_addresses[queue.broker_name]
    messages: list[MessageExt] = []
    at = 0
    while at < end:
        result = client.pull(address, PullRequest(consumer_group="readers", queue=queue, queue_offset=at))
        messages += decode_messages(result.body, queue.broker_name)
        at = result.next_begin_offset
    return messages


def read_by_java(java: RealCluster, topic: str, group: str, count: int) -> list[dict[str, Any]]:
    """What Java's lite pull consumer shows of ``count`` messages, in its reading order."""
    output = java.java("LitePullDump", java.name_servers, topic, group, count, int(3 * ANSWER_S))
    shown = [json.loads(line) for line in output.splitlines()]
    for message in shown:
        message["body"] = base64.b64decode(message["body"])
    return shown


def assert_orders_are_complete_and_in_order(by_queue: dict[MessageQueue, list[MessageExt]]) -> None:
    """Every order's steps lie in the one queue its key hashes to, in ascending order."""
    queues = list(by_queue)
    steps: dict[str, list[str]] = defaultdict(list)
    for queue, messages in by_queue.items():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        for message in messages:
            order, step = message.body.decode().rstrip().split(":")
            assert (message.keys, message.tags) == (order, step)
            assert queues[select_by_hash(order, len(queues))] == queue
            steps[order].append(step)
    assert steps == {f"order-{o}": [f"step-{s}" for s in range(STEPS)] for o in range(ORDERS)}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param((1, 0, False), id="one by one"),
        pytest.param((1, 5000, True), id="one by one, compressed"),
        pytest.param((8, 5000, False), id="in batches, which Java does not compress"),
    ],
)
def test_what_java_sends_in_order_we_read_in_order(
    cluster: ClusterUnderTest,
    java: RealCluster,
    client: BrokerClient,
    queues: list[MessageQueue],
    how: tuple[int, int, bool],
) -> None:
    """G1, G2, D1: SelectMessageQueueByHash and ours agree; every message is there, whole."""
    batch, body_bytes, is_compressed = how
    java.java("OrderedProducer", java.name_servers, queues[0].topic, ORDERS, STEPS, batch, body_bytes)

    by_queue = read_topic(client, cluster, queues, ORDERS * STEPS)

    assert_orders_are_complete_and_in_order(by_queue)
    for messages in by_queue.values():
        for message in messages:
            assert len(message.body) >= body_bytes
            assert (message.sys_flag == MessageSysFlag.COMPRESSION_ZLIB) == is_compressed


def test_what_we_send_in_order_java_reads_in_order(
    cluster: ClusterUnderTest, java: RealCluster, queues: list[MessageQueue], group: str
) -> None:
    """G1, G2: keys, tags, text in any script, large bodies compressed by us."""
    topic = queues[0].topic
    large = "ж" * 3000
    sent = [
        (f"Bestellung-{order}", f"{order}:{step}:{large if step == 2 else 'ж'}")
        for step in range(4)
        for order in range(12)
    ]
    expected: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    with Producer(java.name_servers, "tests", send_timeout_s=ANSWER_S) as producer:
        for key, text in sent:
            message = Message(topic=topic, body=text.encode(), properties={"KEYS": key, "TAGS": "größe"})
            result = producer.send(message, sharding_key=key)
            expected[result.queue.broker_name, result.queue.queue_id].append(message.body)

    shown = read_by_java(java, topic, group, len(sent))

    by_queue: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for each in shown:
        by_queue[each["brokerName"], each["queueId"]].append(each["body"])
        assert each["keys"].startswith("Bestellung-")
        assert each["tags"] == "größe"
    assert by_queue == expected


@pytest.mark.parametrize("kind", CompressionType)
def test_compressed_bodies_of_every_size_are_read_by_java(
    cluster: ClusterUnderTest,
    java: RealCluster,
    queues: list[MessageQueue],
    group: str,
    kind: CompressionType,
) -> None:
    """G2: a frame has blocks of 64 KiB; Java's consumer silently drops an answer that it cannot decode."""
    sizes = [100, 1 << 16, (1 << 16) + 1, 200_000, 1 << 21]
    bodies = [(b"%d," % size * size)[:size] for size in sizes]
    with Producer(
        java.name_servers, "tests", send_timeout_s=ANSWER_S, compress_over_bytes=0, compression_type=kind
    ) as producer:
        for body in bodies:
            producer.send(Message(topic=queues[0].topic, body=body), sharding_key="k")

    shown = read_by_java(java, queues[0].topic, group, len(bodies))

    assert [message["body"] for message in shown] == bodies


def test_what_we_send_in_batches_java_reads_in_order(
    cluster: ClusterUnderTest, java: RealCluster, client: BrokerClient, queues: list[MessageQueue], group: str
) -> None:
    """G2: Java and we show the same message ids, one per batch (golden fact 2)."""
    topic = queues[0].topic
    keyed = [
        (f"key-{number % 7}", Message(topic=topic, body=b"%d" % number, properties={"TAGS": "t"}))
        for number in range(300)
    ]
    with Producer(java.name_servers, "tests", send_timeout_s=ANSWER_S) as producer:
        assert producer.send_ordered(keyed) == len(keyed)

    shown = read_by_java(java, topic, group, len(keyed))
    read = read_topic(client, cluster, queues, len(keyed))

    for queue, messages in read.items():
        of_queue = [
            m for m in shown if (m["brokerName"], m["queueId"]) == (queue.broker_name, queue.queue_id)
        ]
        assert [(m["queueOffset"], m["body"], m["msgId"]) for m in of_queue] == [
            (m.queue_offset, m.body, m.msg_id) for m in messages
        ]
        expected = [m.body for key, m in keyed if queues[select_by_hash(key, len(queues))] == queue]
        assert [m.body for m in messages] == expected


def test_the_admin_tool_and_we_see_the_same_bounds(
    cluster: ClusterUnderTest, java: RealCluster, client: BrokerClient, queues: list[MessageQueue]
) -> None:
    """F2: ``mqadmin topicStatus`` against GET_TOPIC_STATS_INFO."""
    topic = queues[0].topic
    java.java("OrderedProducer", java.name_servers, topic, ORDERS, STEPS, 8)
    read_topic(client, cluster, queues, ORDERS * STEPS)

    table = java.mqadmin("topicStatus", "-t", topic)
    stats = {
        queue: bounds
        for address in cluster.broker_addresses.values()
        for queue, bounds in client.topic_stats(address, topic).items()
    }

    rows = [line.split() for line in table.splitlines() if line.startswith("broker-")]
    assert {
        MessageQueue(topic, name, int(queue_id)): (int(low), int(high))
        for name, queue_id, low, high, *_ in rows
    } == {queue: (bounds.min_offset, bounds.max_offset) for queue, bounds in stats.items()}
    assert sum(bounds.max_offset for bounds in stats.values()) == ORDERS * STEPS
