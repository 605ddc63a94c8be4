"""The bodies of administration, against those of Java's tools and servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from broker_sim.bodies import (
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    consume_stats,
    encode_cluster_info,
    encode_group_list,
    encode_group_status,
    encode_topic_list,
)
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue
from pyspark_rocketmq.wire.fastjson import decode_body, dumps_java
from pyspark_rocketmq.wire.requests.admin import ConsumerConnection, decode_cluster_info, decode_topic_list
from pyspark_rocketmq.wire.requests.bodies import ConsumeType
from tests.helpers.golden import golden, recorded_command

RECORDED = {
    "consumer connection": (51, True, partial(decode_body, ConsumerConnection), dumps_java),
    "group config": (81, False, partial(decode_body, SubscriptionGroupConfig), dumps_java),
    "topic list": (54, True, decode_topic_list, encode_topic_list),
    "cluster info": (66, True, decode_cluster_info, encode_cluster_info),
}
DECODERS = [case[2] for case in RECORDED.values()]


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED.keys())
def test_java_s_bodies_come_back_byte_for_byte(
    case: tuple[int, bool, Callable[[bytes], Any], Callable[[Any], bytes]],
) -> None:
    """A1: what Java's tools send and what they read."""
    pair_id, is_response, decode, encode = case
    body = recorded_command(pair_id, is_response=is_response).body

    assert encode(decode(body)) == body


def test_a_group_s_connections_show_who_subscribes_to_what() -> None:
    """A3: members of one group with different subscriptions can be found by this."""
    connection = decode_body(ConsumerConnection, recorded_command(51, is_response=True).body)

    assert [client.client_id for client in connection.connections] == ["127.0.0.1@i-order"]
    assert connection.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert set(connection.subscriptions) == {"%RETRY%FrOrderG", "FrOrder"}


def _wrapper(offset: int, last_timestamp: int) -> OffsetWrapper:
    return OffsetWrapper(
        broker_offset=offset, consumer_offset=offset, pull_offset=offset, last_timestamp=last_timestamp
    )


def test_a_broker_s_answers_are_those_of_java() -> None:
    """A1: what only the simulator writes."""
    orders = [MessageQueue("FrOrder", "broker-a", queue_id) for queue_id in (1, 0)]
    stats = {
        MessageQueue("%RETRY%FrOrderG", "broker-a", 0): _wrapper(0, 0),
        orders[0]: _wrapper(2, 1795207140490),
        orders[1]: _wrapper(2, 1795207140488),
    }
    retries = TopicConfig(topic_name="%RETRY%FrOrderG", read_queue_nums=1, write_queue_nums=1)
    written = {
        49: dumps_java(consume_stats(stats, 0.13333333333333333)),
        50: dumps_java(retries),
        55: dumps_java(consume_stats({})),
        63: encode_group_status({"127.0.0.1@i-order": dict.fromkeys(orders, 2)}),
        75: encode_group_list(["FrOrder", "FrOrderG"]),
    }

    for pair_id, body in written.items():
        assert body == recorded_command(pair_id, is_response=True).body


def test_the_cluster_is_read_from_its_odd_keys() -> None:
    """A2: a bare integer as key."""
    brokers = decode_cluster_info(recorded_command(66, is_response=True).body)

    assert brokers == (
        BrokerData(
            broker_name="broker-a", cluster="DefaultCluster", addresses={0: BrokerAddress("127.0.0.1:20911")}
        ),
    )


def test_defaults_are_java_s() -> None:
    """A topic or group that says nothing of a setting has Java's value."""
    numbers = golden("numbers.json")
    group = json.loads(dumps_java(SubscriptionGroupConfig(group_name="G")))
    topic = json.loads(dumps_java(TopicConfig(topic_name="T")))

    expected = numbers["defaults_SubscriptionGroupConfig_json"]
    assert group == json.loads(expected) | {"groupName": "G"}
    assert decode_body(SubscriptionGroupConfig, b'{"groupName":"G"}') == SubscriptionGroupConfig(
        group_name="G"
    )
    assert topic == json.loads(numbers["defaults_TopicConfig_json"])


@pytest.mark.parametrize("decode", DECODERS, ids=RECORDED.keys())
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        (
            b'{"connectionSet":3,"consumeType":"CONSUME_ODDLY","messageModel":1,"offsetTable":{1:2},'
            b'"topicName":7,"groupName":[],"clientId":1,"topicList":[{}],"groupList":"x",'
            b'"brokerAddrTable":{"b":1}}'
        ),
    ],
)
def test_anything_else_is_the_peer_s_error(decode: Callable[[bytes], Any], body: bytes) -> None:
    """A1: never another exception."""
    with pytest.raises(RemoteProtocolError):
        decode(body)
