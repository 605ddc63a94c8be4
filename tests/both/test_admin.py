"""What administrators ask, of a real broker and of the simulator."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, ConsumerNotOnline, ExpressionInvalid
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.fastjson import loads
from pyspark_rocketmq.wire.namespace import SYSTEM_TOPICS
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import SQL92, SubscriptionData, build_subscription
from tests.both.conftest import Put
from tests.both.support import ANSWER_S
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker import plain_remoting


@pytest.fixture
def admin(pool: ChannelPool) -> BrokerClient:
    return BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)


def heartbeat(client: BrokerClient, address: str, group: str, topic: str) -> None:
    member = ConsumerData(group_name=group, subscriptions=(build_subscription(topic, "*", sub_version=1),))
    client.heartbeat(address, HeartbeatData(client_id="me", consumers=(member,)))


def test_a_group_s_members(
    admin: BrokerClient, client: BrokerClient, address: str, put: Put, queue: MessageQueue
) -> None:
    """A1: 203."""
    group = f"group-of-{queue.topic}"
    put(b"a")
    with pytest.raises(ConsumerNotOnline):
        admin.consumer_connection(address, group)
    heartbeat(client, address, group, queue.topic)

    connection = admin.consumer_connection(address, group)
    assert [member.client_id for member in connection.connections] == ["me"]
    assert set(connection.subscriptions) == {queue.topic}


def test_a_broker_checks_an_expression_when_asked(
    admin: BrokerClient, address: str, group: str, cluster: ClusterUnderTest
) -> None:
    """A4: 46, the only request that refuses a bad SQL92 expression."""
    if cluster.kind == "sim":  # its brokers do not filter by properties, as by default
        with pytest.raises(BrokerError):
            admin.check_subscription(address, "me", group, sql("a > 5"))
        return
    admin.check_subscription(address, "me", group, sql("a > 5"))
    with pytest.raises(ExpressionInvalid):
        admin.check_subscription(address, "me", group, sql("a >>> 5"))


def sql(expression: str) -> SubscriptionData:
    return SubscriptionData(topic="any", sub_string=expression, expression_type=SQL92, sub_version=1)


def test_a_broker_s_own_topics(address: str) -> None:
    """A1: 305."""
    answer = plain_remoting.call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {})

    assert answer.code == 0
    assert set(loads(answer.body)["topicList"]) >= SYSTEM_TOPICS
