"""The bodies of administration, against those of Java's tools and servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerData, MessageQueue
from pyspark_rocketmq.wire.requests.admin import (
    OffsetWrapper,
    decode_broker_config,
    decode_client_config_check,
    decode_cluster_info,
    decode_consume_stats,
    decode_consumer_connection,
    decode_group_list,
    decode_topic_list,
    encode_client_config_check,
    encode_cluster_info,
    encode_consume_stats,
    encode_consumer_connection,
    encode_group_list,
    encode_topic_list,
)
from pyspark_rocketmq.wire.requests.bodies import ConsumeType
from pyspark_rocketmq.wire.requests.topics import (
    SubscriptionGroupConfig,
    TopicConfig,
    decode_group_config,
    decode_topic_config,
    encode_group_config,
    encode_topic_config,
)
from tests.helpers.golden import golden, recorded_command

RECORDED = {
    "consumer connection": (51, True, decode_consumer_connection, encode_consumer_connection),
    "consume stats": (49, True, decode_consume_stats, encode_consume_stats),
    "no consume stats": (55, True, decode_consume_stats, encode_consume_stats),
    "topic config": (50, True, decode_topic_config, encode_topic_config),
    "group config": (81, False, decode_group_config, encode_group_config),
    "client check": (89, False, decode_client_config_check, lambda check: encode_client_config_check(*check)),
    "topic list": (54, True, decode_topic_list, encode_topic_list),
    "group list": (75, True, decode_group_list, encode_group_list),
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
    """A3: members of one group with different subscriptions can be told from this."""
    connection = decode_consumer_connection(recorded_command(51, is_response=True).body)

    assert [client.client_id for client in connection.connections] == ["127.0.0.1@i-order"]
    assert connection.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert set(connection.subscriptions) == {"%RETRY%FrOrderG", "FrOrder"}


def test_a_group_s_progress_is_read_per_queue() -> None:
    stats = decode_consume_stats(recorded_command(49, is_response=True).body)

    assert stats.offsets[MessageQueue("FrOrder", "broker-a", 1)] == OffsetWrapper(
        broker_offset=2, consumer_offset=2, pull_offset=2, last_timestamp=1795207140490
    )
    assert stats.consume_tps == pytest.approx(0.13333333333333333)


def test_the_cluster_is_read_from_its_odd_keys() -> None:
    """A2: a bare integer as key."""
    brokers = decode_cluster_info(recorded_command(66, is_response=True).body)

    assert brokers == (
        BrokerData(broker_name="broker-a", cluster="DefaultCluster", addresses={0: "127.0.0.1:20911"}),
    )


def test_defaults_are_java_s() -> None:
    """A topic or group that says nothing of a setting has Java's value."""
    numbers = golden("numbers.json")
    group = json.loads(encode_group_config(SubscriptionGroupConfig(group_name="G")))
    topic = json.loads(encode_topic_config(TopicConfig(topic_name="T")))

    expected = numbers["defaults_SubscriptionGroupConfig_json"]
    assert group == json.loads(expected) | {"groupName": "G"}
    assert decode_group_config(b'{"groupName":"G"}') == SubscriptionGroupConfig(group_name="G")
    assert topic == json.loads(numbers["defaults_TopicConfig_json"])


def test_a_broker_s_configuration_is_lines_of_properties() -> None:
    config = decode_broker_config("brokerName=broker-a\nfilter=a=b\n\nodd\nname=订单\n".encode())

    assert config == {"brokerName": "broker-a", "filter": "a=b", "name": "订单"}
    with pytest.raises(RemoteProtocolError, match="not UTF-8"):
        decode_broker_config(b"\xff\xfe=1")


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        (
            b'{"connectionSet":3,"consumeType":"CONSUME_ODDLY","messageModel":1,"offsetTable":{1:2},'
            b'"topicName":7,"groupName":[],"clientId":1,"topicList":[{}],"groupList":"x","brokerAddrTable":{"b":1}}'
        ),
    ],
)
def test_anything_else_is_the_peer_s_error(decode: Callable[[bytes], Any], body: bytes) -> None:
    """A1: never another exception."""
    with pytest.raises(RemoteProtocolError):
        decode(body)
