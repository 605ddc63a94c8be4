"""Java's DefaultMQProducer sends; our own client reads the same messages back."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.model import MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients, JavaError

_GROUP = "java-producer"


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Return a new topic with two queues on each of the two brokers."""
    return cluster.create_topic(queues=2)


Read = Callable[[dict[str, Any]], MessageExt]


@pytest.fixture
def read(client: BrokerClient, cluster: ClusterUnderTest) -> Read:
    """Read the message that a SendResult names."""

    def read_one(result: dict[str, Any]) -> MessageExt:
        queue = MessageQueue(result["topic"], result["brokerName"], result["queueId"])
        address = cluster.broker_addresses[queue.broker_name]
        await_readable(client, address, queue, result["queueOffset"] + 1)
        request = PullRequest(
            consumer_group="readers", queue=queue, queue_offset=result["queueOffset"], max_msg_nums=1
        )
        (message,) = decode_messages(client.pull(address, request).body, queue.broker_name)
        return message

    return read_one


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_message_is_stored_as_java_sent_it(
    how: str, java: JavaClients, topic: str, read: Read, cluster: ClusterUnderTest
) -> None:
    """G2: body, tags, keys, flag, user properties; the SendResult names the place and both ids."""
    sent: dict[str, Any] = {
        "topic": topic,
        "body": "größer \u7ea2 \U0001f600",
        "tags": "TagA",
        "keys": "k1 k2",
        "flag": 7,
        "properties": {"color": "\u7ea2\u8272"},
    }
    (result,) = java.call("producer.send", group=_GROUP, how=how, messages=[sent])
    stored = read(result)

    assert result["status"] == "SEND_OK"
    assert stored.body.decode() == sent["body"]
    assert (stored.tags, stored.keys, stored.flag) == ("TagA", "k1 k2", 7)
    assert sent["properties"].items() <= dict(stored.properties).items()
    assert stored.msg_id == result["msgId"] == result["transactionId"]
    assert result["regionId"] == "DefaultRegion"
    place = (cluster.broker_addresses[result["brokerName"]], stored.commit_log_offset)
    assert decode_offset_message_id(result["offsetMsgId"]) == place


def test_a_oneway_message_is_stored(
    java: JavaClients, cluster: ClusterUnderTest, client: BrokerClient, read: Read
) -> None:
    """G2: the producer does not learn where."""
    topic = cluster.create_topic(queues=1, brokers=["broker-a"])
    assert java.call(
        "producer.send", group=_GROUP, how="oneway", messages=[{"topic": topic, "body": "oneway"}]
    ) == [None]

    stored = read({"topic": topic, "brokerName": "broker-a", "queueId": 0, "queueOffset": 0})
    assert stored.body == b"oneway"


def test_a_batch_is_stored_in_one_queue_with_one_id(java: JavaClients, topic: str, read: Read) -> None:
    """G2, H6: the members follow each other; each lists its offset message id, all show the batch's key."""
    bodies = [f"member {number}" for number in range(5)]
    (result,) = java.call(
        "producer.send",
        group=_GROUP,
        how="batch",
        messages=[{"topic": topic, "body": body, "keys": body, "tags": "B"} for body in bodies],
    )
    stored = [read({**result, "queueOffset": result["queueOffset"] + at}) for at in range(5)]

    assert [message.body.decode() for message in stored] == bodies
    assert [message.keys for message in stored] == bodies
    assert len({message.msg_id for message in stored}) == 1
    offsets = [decode_offset_message_id(each)[1] for each in result["offsetMsgId"].split(",")]
    assert offsets == [message.commit_log_offset for message in stored]


def test_a_delayed_message_comes_when_its_level_is_over(java: JavaClients, topic: str, read: Read) -> None:
    """E3: it keeps its level, its topic and its queue among the properties (golden fact 3)."""
    (result,) = java.call(
        "producer.send", group=_GROUP, how="sync", messages=[{"topic": topic, "body": "d", "delayLevel": 2}]
    )
    stored = read({**result, "queueOffset": 0})

    assert stored.body == b"d"
    delivered = {name: stored.properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID")}
    assert delivered == {"DELAY": "2", "REAL_TOPIC": topic, "REAL_QID": str(result["queueId"])}
    assert stored.store_timestamp - stored.born_timestamp >= 1000


def test_the_hash_selector_finds_the_queue_we_find(java: JavaClients, topic: str) -> None:
    """B1: SelectMessageQueueByHash over the queues of both brokers, in route order."""
    queues = java.call("producer.queues", group=_GROUP, topic=topic)
    keys = [f"order-{number}" for number in range(12)] + ["", "polygenelubricants", "Größe"]
    for key in keys:
        (result,) = java.call(
            "producer.send", group=_GROUP, how="hash", arg=key, messages=[{"topic": topic, "body": "x"}]
        )
        chosen = {name: result[name] for name in ("topic", "brokerName", "queueId")}
        assert chosen == queues[select_by_hash(key, len(queues))], key
    assert [(each["brokerName"], each["queueId"]) for each in queues] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
        ("broker-b", 1),
    ]


def test_a_big_body_is_stored_compressed_and_read_whole(java: JavaClients, topic: str, read: Read) -> None:
    """G2: from 4 KiB on (golden fact 8)."""
    body = "0123456789" * 20_000
    (result,) = java.call(
        "producer.send", group=_GROUP, how="sync", messages=[{"topic": topic, "body": body}]
    )
    stored = read(result)

    assert stored.body.decode() == body
    assert stored.sys_flag & MessageSysFlag.COMPRESSION_ZLIB


def test_the_first_message_creates_its_topic(
    java: JavaClients, cluster: ClusterUnderTest, read: Read
) -> None:
    """G1: as many queues as the producer asks for, at most those of TBW102."""
    topic = cluster.unique_name("created")
    group = f"{_GROUP}-three-queues"
    (result,) = java.call(
        "producer.send",
        group=group,
        how="sync",
        defaultTopicQueueNums=3,
        messages=[{"topic": topic, "body": "first"}],
    )
    wait_until(lambda: cluster.routed_brokers(topic), ANSWER_S, reason=f"A route of {topic}")

    assert read(result).body == b"first"
    java.call("producer.stop", group=group)
    queues = java.call("producer.queues", group=f"{group}-again", topic=topic)
    assert {each["queueId"] for each in queues if each["brokerName"] == result["brokerName"]} == {0, 1, 2}


def test_a_producer_follows_a_topic_that_lost_queues(
    java: JavaClients, cluster: ClusterUnderTest, client: BrokerClient
) -> None:
    """G1: a queue beyond the topic's number is refused; the others take messages."""
    topic = cluster.create_topic(queues=4, brokers=["broker-a"])
    cluster.create_topic(topic, queues=1, brokers=["broker-a"])
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 3}
    message = {"topic": topic, "body": "x"}

    with pytest.raises(AssertionError, match=r"CODE: 29 .*request queueId\[3\] is illegal"):
        java.call("producer.send", group=_GROUP, how="queue", queue=queue, messages=[message])
    (result,) = java.call(
        "producer.send", group=_GROUP, how="queue", queue={**queue, "queueId": 0}, messages=[message]
    )
    assert result["queueOffset"] == 0


def test_what_java_reads_is_what_java_sent(java: JavaClients, cluster: ClusterUnderTest, topic: str) -> None:
    """G2: the whole way in Java, through the lite pull consumer."""
    sent = [
        {"topic": topic, "body": f"body {number}", "keys": f"k{number}", "tags": "T"} for number in range(8)
    ]
    java.call("producer.send", group=_GROUP, how="sync", messages=sent)
    name = cluster.unique_name("lite")
    java.call("lite.start", name=name, group=name)
    queues = java.call("lite.queues", name=name, topic=topic)
    java.call("lite.stop", name=name)
    java.call("lite.start", name=name, group=name, assign=queues)
    read = java.call("lite.poll", name=name, count=8, timeoutMillis=60_000)

    by_key = {message["keys"]: base64.b64decode(message["body"]).decode() for message in read}
    assert by_key == {message["keys"]: message["body"] for message in sent}
    java.submit("lite.stop", name=name)


def test_a_reply_comes_to_the_producer_that_asked(
    java: JavaClients, topic: str, cluster: ClusterUnderTest, client: BrokerClient
) -> None:
    """A1: 325 and 326, at whichever broker the reply arrives; the reply is stored, too."""
    question = {"topic": topic, "body": "how many?"}
    reply = java.submit("producer.request", group="asker", message=question)
    where = [
        (address, MessageQueue(topic, name, queue_id))
        for name, address in cluster.broker_addresses.items()
        for queue_id in range(2)
    ]
    asked = wait_until(
        lambda: next((each for each in where if client.max_offset(*each)), None),
        ANSWER_S,
        reason="A question",
    )
    request = PullRequest(consumer_group="readers", queue=asked[1], queue_offset=0, max_msg_nums=1)
    (message,) = decode_messages(client.pull(asked[0], request).body, asked[1].broker_name)
    to = dict(message.properties)
    sent = java.call("producer.reply", group="answerer", body="seven", to=to)

    assert reply.result(ANSWER_S) == "seven"
    assert (sent["status"], sent["topic"]) == ("SEND_OK", "DefaultCluster_REPLY_TOPIC")
    stored_in = MessageQueue(sent["topic"], sent["brokerName"], sent["queueId"])
    address = cluster.broker_addresses[sent["brokerName"]]
    await_readable(client, address, stored_in, sent["queueOffset"] + 1)
    request = PullRequest(
        consumer_group="readers", queue=stored_in, queue_offset=sent["queueOffset"], max_msg_nums=1
    )
    (stored,) = decode_messages(client.pull(address, request).body, sent["brokerName"])
    assert stored.body == b"seven"
    assert stored.properties.items() >= {
        ("MSG_TYPE", "reply"), ("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true"),
        ("CORRELATION_ID", to["CORRELATION_ID"]), ("REPLY_TO_CLIENT", to["REPLY_TO_CLIENT"]),
    }  # fmt: skip
    assert stored.properties.keys().isdisjoint({"CLUSTER", "PUSH_REPLY_TIME"})


def test_a_reply_for_a_producer_that_is_not_there_fails(java: JavaClients, cluster: ClusterUnderTest) -> None:
    """A1: 325, with the broker's own answer."""
    to = {"CLUSTER": "DefaultCluster", "REPLY_TO_CLIENT": "nobody@x", "CORRELATION_ID": "1", "TTL": "3000"}
    with pytest.raises(
        JavaError, match=r"CODE: 1 .*push reply message fail, channel of <nobody@x> not found\."
    ):
        java.call("producer.reply", group="answerer", body="seven", to=to)
