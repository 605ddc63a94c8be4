"""What clients tell of themselves, against the bytes of Java's clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import decode_offset_table, encode_offset_list, encode_offset_table
from pyspark_rocketmq.wire.requests.client_info import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    decode_consumer_status,
    decode_directly_result,
    decode_group_status,
    decode_running_info,
    encode_consumer_status,
    encode_directly_result,
    encode_group_status,
    encode_running_info,
)
from tests.helpers.golden import recorded_command
from tests.wire.test_bodies import int64, names, queues, subscriptions

ORDERS_0 = MessageQueue("FrOrder", "broker-a", 0)
ORDERS_1 = MessageQueue("FrOrder", "broker-a", 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
queue_infos = st.builds(
    ProcessQueueInfo,
    commit_offset=int64,
    cached_msg_count=int64,
    locked=st.booleans(),
    dropped=st.booleans(),
    last_pull_timestamp=int64,
)
statuses = st.builds(ConsumeStatus, pull_rt=finite, consume_ok_tps=finite, consume_failed_msgs=int64)
running_infos = st.builds(
    ConsumerRunningInfo,
    properties=st.dictionaries(names, names, max_size=3),
    subscriptions=st.lists(subscriptions, max_size=2).map(tuple),
    queues=st.dictionaries(queues, queue_infos, max_size=3),
    statuses=st.dictionaries(names, statuses, max_size=2),
    user_info=st.dictionaries(names, names, max_size=2),
    jstack=st.none() | names,
)
results = st.builds(
    ConsumeMessageDirectlyResult,
    consume_result=st.sampled_from(ConsumeResult),
    order=st.booleans(),
    auto_commit=st.booleans(),
    remark=st.none() | names,
    spent_time_mills=int64,
)
DECODERS = [decode_running_info, decode_directly_result, decode_consumer_status, decode_group_status]


@pytest.mark.parametrize(
    ("pair_id", "is_response", "decode", "encode"),
    [
        (52, True, decode_running_info, encode_running_info),
        (53, True, decode_running_info, encode_running_info),
        (68, True, decode_directly_result, encode_directly_result),
        (69, True, decode_directly_result, encode_directly_result),
        (64, True, decode_consumer_status, encode_consumer_status),
        (63, True, decode_group_status, encode_group_status),
        (65, True, decode_group_status, encode_group_status),
        (123, False, decode_offset_table, encode_offset_table),
    ],
)
def test_java_s_bodies_come_back_byte_for_byte(
    pair_id: int, is_response: bool, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> None:
    """A1: pairs 53, 62, 64, 68 and 123 of the recorded traffic; mqadmin reads what we write."""
    body = recorded_command(pair_id, is_response=is_response).body

    assert encode(decode(body)) == body


def test_a_running_consumer_is_read_as_mqadmin_shows_it() -> None:
    """A1: pair 53."""
    info = decode_running_info(recorded_command(53, is_response=True).body)

    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_CLIENT_VERSION"] == "V5_3_3"
    assert [subscription.topic for subscription in info.subscriptions] == ["%RETRY%FrOrderG", "FrOrder"]
    assert (info.queues[ORDERS_1].commit_offset, info.queues[ORDERS_1].locked) == (2, True)
    assert info.statuses["FrOrder"].consume_rt == 1.5
    assert info.jstack is None


def test_a_status_is_read_for_one_client_and_for_a_group() -> None:
    """A1: pairs 64 and 63."""
    assert decode_consumer_status(recorded_command(64, is_response=True).body) == {ORDERS_1: 2, ORDERS_0: 2}
    assert decode_group_status(recorded_command(63, is_response=True).body) == {
        "127.0.0.1@i-order": {ORDERS_1: 2, ORDERS_0: 2}
    }


@given(st.dictionaries(queues, int64, max_size=4))
def test_a_reset_is_read_in_both_forms(offsets: dict[MessageQueue, int]) -> None:
    """A1: the map for Java administrators, the list for C++ ones."""
    assert decode_offset_table(encode_offset_table(offsets)) == offsets
    assert decode_offset_table(encode_offset_list(offsets)) == offsets


@given(running_infos)
def test_any_running_info_is_read_back(info: ConsumerRunningInfo) -> None:
    assert decode_running_info(encode_running_info(info)) == info


@given(results)
def test_any_directly_result_is_read_back(result: ConsumeMessageDirectlyResult) -> None:
    assert decode_directly_result(encode_directly_result(result)) == result


@given(st.dictionaries(names, st.dictionaries(queues, int64, max_size=3), max_size=3))
def test_any_group_status_is_read_back(status: dict[str, dict[MessageQueue, int]]) -> None:
    assert decode_group_status(encode_group_status(status)) == status


body_names = st.sampled_from(
    [
        *("mqTable", "properties", "statusTable", "subscriptionSet", "consumeResult", "order", "jstack"),
        *("consumerTable", "messageQueueTable", "pullRT", "locked", "userConsumerInfo", "spentTimeMills"),
    ]
)
finite_values = st.none() | st.booleans() | int64 | finite | names
json_values = st.recursive(
    finite_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(body_names, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@given(value=json_values)
def test_any_json_raises_nothing_but_remote_protocol_errors(
    decode: Callable[[bytes], Any], value: object
) -> None:
    """A1: a peer may send anything."""
    with contextlib.suppress(RemoteProtocolError):
        decode(dumps_java(value))


def test_a_result_nobody_knows_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="CR_MAYBE"):
        decode_directly_result(b'{"consumeResult":"CR_MAYBE","order":true}')
