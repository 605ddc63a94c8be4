"""The whole path on each version of RocketMQ, and through a proxy: send, read, and consume in a group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.producer.transactions import TransactionProducer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.group.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.model import (
    BrokerAddress,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    LocalTransactionState,
    Message,
    MessageQueue,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.real_broker import plain_remoting
from tests.real_broker.artifacts import OTHER_VERSIONS, rocketmq_version
from tests.real_broker.harness import RealCluster
from tests.real_broker.proxy import proxy

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.long, pytest.mark.timeout(900)]

PROXY = f"{rocketmq_version()} through its proxy"
_UPDATE_BROKER_CONFIG = 25
KEYS = 8
COUNT = 200
OPTIONS = {"requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}"}


class Place(NamedTuple):
    """A running RocketMQ."""

    cluster: ClusterUnderTest
    servers: str
    """The users' ``nameServers``."""

    @property
    def is_proxy(self) -> bool:
        return self.servers != self.cluster.name_servers


@pytest.fixture(scope="module", params=[rocketmq_version(), *OTHER_VERSIONS, PROXY])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    version = request.param.split()[0]
    with RealCluster(brokers=2, version=version) as real:
        cluster = ClusterUnderTest(real, "real")
        if request.param != PROXY:
            yield Place(cluster, real.name_servers)
            return
        for address in real.broker_addresses.values():
            # A proxy registers a producer's group only after 20 s, when the brokers of tests have given up.
            plain_remoting.call(address, _UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=1000")
        with proxy(real.name_servers) as servers:
            yield Place(cluster, servers)


@pytest.fixture
def topic(place: Place) -> str:
    """A topic with messages of eight keys."""
    topic = place.cluster.create_topic(queues=2)
    with Producer(place.servers, "senders", send_timeout_s=PATIENCE_S) as producer:
        for number in range(COUNT):
            message = Message(topic=topic, body=b"%d" % number, properties={"KEYS": f"n{number}"})
            producer.send(message, sharding_key=f"key-{number % KEYS}")
    return topic


def orderly(messages: Any, context: Any) -> ConsumeOrderlyStatus:
    for message in messages:
        if message.body.endswith(b"7") and context.attempt == 1:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        context.emit(number=int(message.body), at=time.monotonic_ns())
    return ConsumeOrderlyStatus.SUCCESS


def concurrent(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
    for message in messages:
        if message.body.endswith(b"7") and message.reconsume_times == 0:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        context.emit(number=int(message.body), at=time.monotonic_ns())
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def test_a_topic_is_read_in_a_batch(place: Place, topic: str, spark: SparkSession) -> None:
    """L1 ★, L2 ★: each key's messages in order, in one queue."""
    rows = (
        spark.read.format("rocketmq")
        .options(nameServers=place.servers, topic=topic, **OPTIONS)
        .load()
        .selectExpr("int(string(body)) number", "brokerName", "queueId", "queueOffset")
        .orderBy("brokerName", "queueId", "queueOffset")
        .collect()
    )

    assert sorted(row.number for row in rows) == list(range(COUNT))
    for key in range(KEYS):
        of_key = [row for row in rows if row.number % KEYS == key]
        assert len({(row.brokerName, row.queueId) for row in of_key}) == 1
        assert [row.number for row in of_key] == list(range(key, COUNT, KEYS))


def test_rows_are_written(place: Place, spark: SparkSession) -> None:
    """L1 ★, L2 ★"""
    topic = place.cluster.create_topic(queues=2)
    spark.range(COUNT).selectExpr("string(id) body", "string(id % 8) shardingKey").coalesce(1).write.format(
        "rocketmq"
    ).mode("append").options(nameServers=place.servers, topic=topic, **OPTIONS).save()

    written = spark.read.format("rocketmq").options(nameServers=place.servers, topic=topic, **OPTIONS).load()
    assert sorted(int(row.body) for row in written.select("body").collect()) == list(range(COUNT))


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
def test_a_group_consumes(
    place: Place, topic: str, spark: SparkSession, tmp_path: Path, is_orderly: bool
) -> None:
    """L1 ★, L2 ★: what fails comes again, and brokers know how far the group is."""
    group = place.cluster.unique_name("group")
    consumer = PushConsumer(
        consumer_group=group,
        name_servers=place.servers,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
        mirror_offsets=True,
        options=OPTIONS,
    )
    consumer.subscribe(topic)
    listener = orderly if is_orderly else concurrent
    consumer.register_message_listener(listener, orderly=is_orderly, output_schema="number int, at long")
    query = consumer.start(
        spark,
        sink=DeltaSink(str(tmp_path / "rows")),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"processingTime": "100 milliseconds"},
    )
    try:
        wait_until(lambda: len(numbers_in(tmp_path / "rows")) >= COUNT or not query.isActive, 240)
    finally:
        consumer.stop(query)

    numbers = numbers_in(tmp_path / "rows")
    assert sorted(numbers) == list(range(COUNT))
    if is_orderly:
        for key in range(KEYS):
            assert [each for each in numbers if each % KEYS == key] == list(range(key, COUNT, KEYS))
    assert sum(offsets_of(place, group, topic).values()) == COUNT


def test_a_new_group_has_no_offset(place: Place, topic: str) -> None:
    """L1 ★, F2: brokers before 5.0 answer 0 for a young queue, whatever they are asked."""
    assert offsets_of(place, place.cluster.unique_name("group"), topic) == {}


def test_transactions_are_seen_when_they_are_over(place: Place, spark: SparkSession) -> None:
    """L6 ★"""
    attributes = "+message.type=TRANSACTION" if place.is_proxy else ""
    topic = place.cluster.create_topic(queues=1, brokers=["broker-a"], attributes=attributes)
    states = (LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.COMMIT_MESSAGE)
    of_message: dict[str | None, LocalTransactionState] = {}

    def check(message: Any) -> LocalTransactionState:
        # A proxy passes no outcome on: the broker asks for it, perhaps more than once.
        return of_message[message.keys] if place.is_proxy else LocalTransactionState.UNKNOW

    with TransactionProducer(
        place.servers, "transactions", check, topics=[topic], send_timeout_s=PATIENCE_S
    ) as producer:
        for state in states:
            of_message[state.name] = state
            message = Message(topic=topic, body=state.name.encode(), properties={"KEYS": state.name})
            producer.send(message, lambda _, state=state: state)  # type: ignore[misc]
        wait_until(lambda: bodies_in(spark, place, topic), 120, reason="The message of a transaction")

    seen = bodies_in(spark, place, topic)
    assert set(seen) == {"COMMIT_MESSAGE"}
    assert place.is_proxy or len(seen) == 1


def bodies_in(spark: SparkSession, place: Place, topic: str) -> list[str]:
    rows = spark.read.format("rocketmq").options(nameServers=place.servers, topic=topic, **OPTIONS).load()
    return [bytes(row.body).decode() for row in rows.select("body").collect()]


def offsets_of(place: Place, group: str, topic: str) -> dict[MessageQueue, int]:
    """Return the group's offsets at the brokers."""
    addresses = {name: BrokerAddress(each) for name, each in place.cluster.broker_addresses.items()}
    queues = [MessageQueue(topic, name, number) for name in addresses for number in range(2)]
    with ChannelPool(SystemClock()) as pool:
        brokers = BrokerClient(pool, SystemClock(), request_timeout_s=PATIENCE_S)
        return RemoteBrokerOffsets(group, brokers).read(queues, addresses)


def numbers_in(table: Path) -> list[int]:
    """Return the numbers in the order in which the listener got them."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return [row["number"] for row in sorted(rows, key=itemgetter("at"))]
