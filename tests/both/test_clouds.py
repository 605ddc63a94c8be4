"""Options for managed clusters on clusters that need none of them: they change nothing else."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import ConnectFailed
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.properties import SHARDING_KEY
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.both.support import ANSWER_S
from tests.both.test_java_interop import read_topic
from tests.helpers.batch_read import read_batch
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.relay import Relay
from tests.helpers.sent_rows import send_as_one_task
from tests.helpers.wait import wait_until

PATIENT = {"requestTimeoutMs": f"{ANSWER_S * 1000:.0f}"}


def test_a_name_server_is_found_by_the_url_that_consoles_show(
    cluster: ClusterUnderTest,
) -> None:
    """L8 ★."""
    topic = cluster.create_topic(queues=1)
    address = f"http://{cluster.name_servers}"

    assert send_as_one_task(address, [{"body": "x"}], topic=topic, shardingKey="k") == 1
    wait_until(lambda: read_batch(nameServers=address, topic=topic, **PATIENT).num_rows == 1, ANSWER_S)


def test_every_connection_to_a_broker_goes_where_the_option_says(cluster: ClusterUnderTest) -> None:
    """L8 ★: of writes and of reads; closed, there is no other way."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    announced = cluster.broker_addresses["broker-a"]
    with Relay(announced) as relay:
        given = {"topic": topic, "brokerAddresses": json.dumps({announced: relay.address}), **PATIENT}

        assert send_as_one_task(cluster.name_servers, [{"body": "x"}], **given) == 1
        wait_until(lambda: read_batch(nameServers=cluster.name_servers, **given).num_rows == 1, ANSWER_S)
        close_idle_connections()
        relay.close()
        with pytest.raises(
            ConnectFailed, match=f"{relay.address} .which brokerAddresses gives for {announced}"
        ):
            read_batch(nameServers=cluster.name_servers, retryTimeoutMs="0", **given)


def test_messages_that_go_one_by_one_keep_the_order_of_their_key(
    cluster: ClusterUnderTest, client: BrokerClient
) -> None:
    """L8, G1 ★: each with its key, the message group of RocketMQ 5."""
    topic = cluster.create_topic(queues=2)
    queues = [MessageQueue(topic, name, number) for name in ("broker-a", "broker-b") for number in range(2)]
    rows = [{"body": f"{n}", "shardingKey": f"k{n % 5}"} for n in range(60)]

    send_as_one_task(cluster.name_servers, rows, topic=topic, batchSend=False)
    by_queue = read_topic(client, cluster, queues, len(rows))

    for key in range(5):
        found = by_queue[queues[select_by_hash(f"k{key}", 4)]]
        of_key = [m.body for m in found if m.properties[SHARDING_KEY] == f"k{key}"]
        assert of_key == [b"%d" % n for n in range(key, 60, 5)]
