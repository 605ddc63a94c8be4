"""Facts of RocketMQ 5.3.3 that surprise,
seen once more on both kinds of brokers (the numbers are golden's).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import NoPermission, OffsetNotFound, TopicNotFound
from pyspark_rocketmq.model import Message, MessageQueue, retry_topic
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.conftest import Put
from tests.helpers.cluster import ClusterUnderTest

_READ_ONLY = 4


@pytest.fixture
def member(client: BrokerClient, address: str, queue: MessageQueue, group: str) -> str:
    """A new group with a member, and with a retry topic by that."""
    subscriptions = tuple(
        build_subscription(topic, "*", sub_version=1) for topic in (queue.topic, retry_topic(group))
    )
    consumer = ConsumerData(group_name=group, subscriptions=subscriptions)
    client.heartbeat(address, HeartbeatData(client_id="client-1", consumers=(consumer,)))
    return group


def test_an_offset_is_stored_for_a_queue_that_does_not_exist(
    client: BrokerClient, address: str, queue: MessageQueue, member: str
) -> None:
    """F1: fact 13."""
    nowhere = queue._replace(queue_id=99)

    client.update_consumer_offset(address, member, nowhere, 7)

    assert client.query_consumer_offset(address, member, nowhere) == 7


def test_a_new_group_begins_a_new_topic_at_0_and_has_no_offset_for_its_retry_topic(
    client: BrokerClient, address: str, queue: MessageQueue, member: str, put: Put
) -> None:
    """F2, F3: fact 16."""
    put(b"one")

    assert client.query_consumer_offset(address, member, queue) == 0
    with pytest.raises(OffsetNotFound):
        client.query_consumer_offset(address, member, MessageQueue(retry_topic(member), "broker-a", 0))


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("body", [b"", b"no JSON"])
def test_a_lock_request_without_a_readable_body_is_an_error(
    broker: Channel, soon: Deadline, code: RequestCode, body: bytes
) -> None:
    """C1: fact 17."""
    assert broker.request(RemotingCommand(code=code, body=body), soon).code == ResponseCode.SYSTEM_ERROR


def test_a_read_only_topic_takes_messages_and_a_write_only_one_gives_none(
    cluster: ClusterUnderTest, client: BrokerClient, address: str
) -> None:
    """G1: fact 18: brokers check the permission of pulls only."""
    message, settings = Message(topic="", body=b"m"), SendSettings(producer_group="facts")
    read_only, write_only = (
        MessageQueue(cluster.create_topic(queues=1, brokers=["broker-a"], perm=perm), "broker-a", 0)
        for perm in (_READ_ONLY, 2)
    )
    for queue in (read_only, write_only):
        assert client.send(address, message, queue, settings).queue_offset == 0

    client.pull(address, PullRequest(consumer_group="facts", queue=read_only, queue_offset=0))
    with pytest.raises(NoPermission):
        client.pull(address, PullRequest(consumer_group="facts", queue=write_only, queue_offset=0))


def test_without_a_timer_wheel_a_topic_is_deleted_and_the_answer_is_an_error(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, broker: Channel, soon: Deadline
) -> None:
    """F4: fact 26."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    is_sim = cluster.kind == "sim"  # the real brokers of the harness have none
    with _configured(broker, soon, b"timerWheelEnable=%s") if is_sim else nullcontext():
        answer = broker.request(
            RemotingCommand(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic}), soon
        )

    assert answer.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(TopicNotFound):
        client.topic_stats(address, topic)


@contextmanager
def _configured(broker: Channel, soon: Deadline, setting: bytes) -> Iterator[None]:
    """The setting false, and true again for other tests."""
    _configure(broker, soon, setting % b"false")
    try:
        yield
    finally:
        _configure(broker, soon, setting % b"true")


def _configure(broker: Channel, soon: Deadline, setting: bytes) -> None:
    answer = broker.request(RemotingCommand(code=RequestCode.UPDATE_BROKER_CONFIG, body=setting), soon)
    assert answer.code == ResponseCode.SUCCESS
