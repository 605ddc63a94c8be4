"""Client information, against the bytes of Java's clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.bodies import encode_offset_table
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.fastjson import decode_body, dumps_java, queue_to_json
from pyspark_rocketmq.wire.requests.bodies import decode_offset_table
from pyspark_rocketmq.wire.requests.client_info import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    encode_consumer_status,
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


@pytest.mark.parametrize(
    ("pair_id", "is_response", "decode", "encode"),
    [
        (52, True, partial(decode_body, ConsumerRunningInfo), dumps_java),
        (53, True, partial(decode_body, ConsumerRunningInfo), dumps_java),
        (123, False, decode_offset_table, encode_offset_table),
    ],
)
def test_java_s_bodies_come_back_byte_for_byte(
    pair_id: int, is_response: bool, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> None:
    """A1: mqadmin reads what we write."""
    body = recorded_command(pair_id, is_response=is_response).body

    assert encode(decode(body)) == body


def test_a_running_consumer_is_read_as_mqadmin_shows_it() -> None:
    """A1: pair 53."""
    info = decode_body(ConsumerRunningInfo, recorded_command(53, is_response=True).body)

    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_CLIENT_VERSION"] == "V5_3_3"
    assert [subscription.topic for subscription in info.subscriptions] == ["%RETRY%FrOrderG", "FrOrder"]
    assert (info.queues[ORDERS_1].commit_offset, info.queues[ORDERS_1].locked) == (2, True)
    assert info.statuses["FrOrder"].consume_rt == 1.5
    assert info.jstack is None


def test_a_member_s_answers_are_those_of_java() -> None:
    """A1, D12: the next offsets of a member and the result of a message consumed directly."""
    done = ConsumeMessageDirectlyResult(
        consume_result=ConsumeResult.CR_SUCCESS, order=True, spent_time_mills=1
    )
    offsets = {ORDERS_1: 2, ORDERS_0: 2}

    assert encode_consumer_status(offsets) == recorded_command(64, is_response=True).body
    assert dumps_java(done) == recorded_command(68, is_response=True).body
    failed = replace(done, consume_result=ConsumeResult.CR_THROW_EXCEPTION, remark="why")
    assert b'"consumeResult":"CR_THROW_EXCEPTION","order":true,"remark":"why"' in dumps_java(failed)


@given(st.dictionaries(queues, int64, max_size=4))
def test_a_reset_is_read_in_both_forms(offsets: dict[MessageQueue, int]) -> None:
    """A1: the map for Java administrators, the list for C++ ones."""
    assert decode_offset_table(encode_offset_table(offsets)) == offsets
    rows = [{**queue_to_json(queue), "offset": offset} for queue, offset in offsets.items()]
    assert decode_offset_table(dumps_java({"offsetTable": rows})) == offsets


@given(running_infos)
def test_any_running_info_is_read_back(info: ConsumerRunningInfo) -> None:
    assert decode_body(ConsumerRunningInfo, dumps_java(info)) == info


body_names = st.sampled_from(
    [
        *("mqTable", "properties", "statusTable", "subscriptionSet", "jstack"),
        *("pullRT", "locked", "userConsumerInfo"),
    ]
)
finite_values = st.none() | st.booleans() | int64 | finite | names
json_values = st.recursive(
    finite_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(body_names, inner, max_size=4),
    max_leaves=8,
)


@given(value=json_values)
def test_any_json_raises_nothing_but_remote_protocol_errors(value: object) -> None:
    """A1: a peer may send anything."""
    with contextlib.suppress(RemoteProtocolError):
        decode_body(ConsumerRunningInfo, dumps_java(value))
