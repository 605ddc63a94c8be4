"""What administrators ask, of a real broker and of the simulator."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.client.admin import AdminClient
from pyspark_rocketmq.client.broker import Boundary, BrokerClient, PullRequest, PullStatus, SendTerms
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, ConsumerNotOnline, ExpressionInvalid, TopicNotFound
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.topics import SubscriptionGroupConfig
from pyspark_rocketmq.wire.subscription import SQL92, SubscriptionData, build_subscription
from tests.both.conftest import Put
from tests.both.support import ANSWER_S
from tests.helpers.wait import wait_until


@pytest.fixture
def admin(pool: ChannelPool) -> AdminClient:
    return AdminClient(pool, SystemClock(), request_timeout_s=ANSWER_S)


def heartbeat(client: BrokerClient, address: str, group: str, topic: str) -> None:
    member = ConsumerData(group_name=group, subscriptions=(build_subscription(topic, "*", sub_version=1),))
    client.heartbeat(address, HeartbeatData(client_id="me", consumers=(member,)))


def test_a_topic_is_made_and_shown(admin: AdminClient, address: str, cluster) -> None:
    """A1: 17, 351."""
    topic = cluster.unique_name()
    admin.create_topic(address, topic, 3, perm=6, attributes="+message.type=FIFO")
    config = admin.topic_config(address, topic)

    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm) == (
        topic,
        3,
        3,
        6,
    )
    assert config.attributes == {"message.type": "FIFO"}
    with pytest.raises(TopicNotFound):
        admin.topic_config(address, cluster.unique_name("never"))


def test_a_group_is_made_shown_and_deleted(admin: AdminClient, address: str, group: str) -> None:
    """A1: 200, 352, 207."""
    wanted = SubscriptionGroupConfig(group_name=group, retry_max_times=3, consume_message_orderly=True)
    admin.create_group(address, wanted)

    assert admin.group_config(address, group) == wanted
    admin.delete_group(address, group, clean_offset=True)
    # Asked about, a group is made again with what the broker has for defaults.
    assert admin.group_config(address, group).retry_max_times == 16


def test_a_group_s_members_progress_and_reset(
    admin: AdminClient, client: BrokerClient, address: str, put: Put, queue: MessageQueue
) -> None:
    """A1: 203, 208, 222, 300; the reset is what the group's offset is afterwards."""
    group = f"group-of-{queue.topic}"
    put(b"a", b"b", b"c")
    with pytest.raises(ConsumerNotOnline):
        admin.consumer_connection(address, group)
    heartbeat(client, address, group, queue.topic)
    client.update_consumer_offset(address, group, queue, 2)

    connection = admin.consumer_connection(address, group)
    assert [member.client_id for member in connection.connections] == ["me"]
    assert set(connection.subscriptions) == {queue.topic}
    progress = admin.consume_stats(address, group, queue.topic).offsets[queue]
    assert (progress.consumer_offset, progress.broker_offset) == (2, 3)
    assert group in admin.groups_of_topic(address, queue.topic)
    client.unregister(address, "me", consumer_group=group)
    assert admin.reset_offset(address, group, queue.topic, 0) == {queue: 0}


def test_a_message_is_found_by_where_it_is_and_by_its_keys(
    admin: AdminClient, client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """A1: 33 and 12, by KEYS and by UNIQ_KEY."""
    properties = {"KEYS": "k1 k2", "UNIQ_KEY": "0123456789ABCDEF0123456789ABCDEF"}
    message = Message(topic=queue.topic, body=b"wanted", properties=properties)
    sent = client.send(address, message, queue, SendTerms(producer_group="tests"))
    commit_log_offset = decode_offset_message_id(sent.offset_msg_id)[1]

    assert admin.view_message(address, commit_log_offset, "broker-a", queue.topic).body == b"wanted"

    def found(key: str, **more: bool) -> list[bytes]:
        messages = admin.query_messages(address, queue.topic, key, "broker-a", **more)
        return [each.body for each in messages]

    # The index is built in the background.
    wait_until(lambda: found("k2") == [b"wanted"], ANSWER_S)
    assert found(properties["UNIQ_KEY"], is_unique_key=True) == [b"wanted"]
    assert found("no such key") == []


def test_a_broker_checks_an_expression_when_asked(admin: AdminClient, address: str, group: str) -> None:
    """A4: 46, the only request that refuses a bad SQL92 expression."""
    if admin.broker_config(address).get("enablePropertyFilter") != "true":
        with pytest.raises(BrokerError):
            admin.check_subscription(address, "me", group, sql("a >>> 5"))
        return
    admin.check_subscription(address, "me", group, sql("a > 5"))
    with pytest.raises(ExpressionInvalid):
        admin.check_subscription(address, "me", group, sql("a >>> 5"))


def sql(expression: str) -> SubscriptionData:
    return SubscriptionData(topic="any", sub_string=expression, expression_type=SQL92, sub_version=1)


def test_offsets_by_time_have_two_sides(
    client: BrokerClient, address: str, put: Put, queue: MessageQueue
) -> None:
    """A1: 29 LOWER and UPPER, 32, and 361 beside 11."""
    assert client.earliest_message_time(address, queue) is None
    put(b"a", b"b")
    stored_ms = client.earliest_message_time(address, queue)
    pull = PullRequest(consumer_group="readers", queue=queue, queue_offset=0)

    assert stored_ms is not None
    assert client.search_offset(address, queue, stored_ms) == 0
    assert client.search_offset(address, queue, stored_ms + 86_400_000, Boundary.UPPER) in (1, 2)
    assert client.search_offset(address, queue, stored_ms - 86_400_000, Boundary.UPPER) == 0
    lite = client.lite_pull(address, pull)
    assert (lite.status, lite.body) == (PullStatus.FOUND, client.pull(address, pull).body)
