from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.client.producer.attempts import (
    round_robin_queue,
    route_to_create,
    select_message_queue_by_hash,
)
from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.model import BrokerAddress, BrokerData, Message, MessageQueue, QueueData, TopicRoute
from pyspark_rocketmq.wire.messages import encode_batch
from pyspark_rocketmq.wire.requests.send import check_body, split_batch

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2)]


def test_a_topic_to_be_created_gets_at_most_four_queues_per_broker() -> None:
    """G1: min(4, the template's read queues), as Java expects and the broker does."""
    template = TopicRoute(
        brokers=(BrokerData(broker_name="a", cluster="C", addresses={0: BrokerAddress("a:1")}),),
        queues=(
            QueueData(broker_name="a", read_queue_nums=8, write_queue_nums=8, perm=7),
            QueueData(broker_name="b", read_queue_nums=3, write_queue_nums=9, perm=7),
        ),
    )
    created = route_to_create(template)

    assert [(data.read_queue_nums, data.write_queue_nums) for data in created.queues] == [(4, 4), (3, 3)]
    assert len(created.publish_queues("new")) == 4


def test_queues_take_turns() -> None:
    """G3: round robin in route order."""
    assert [round_robin_queue(QUEUES, turn) for turn in range(5)] == [*QUEUES, QUEUES[0]]


@given(turn=st.integers(0, 10**9))
def test_the_broker_that_failed_is_avoided(turn: int) -> None:
    """G3: when there is another one."""
    assert round_robin_queue(QUEUES, turn, "a").broker_name == "b"
    assert round_robin_queue(QUEUES[:2], turn, "a") == QUEUES[turn % 2]


@given(sizes=st.lists(st.integers(0, 400), max_size=30), max_bytes=st.integers(1, 1000))
def test_split_batches_keep_all_messages_in_order_and_the_size(sizes: list[int], max_bytes: int) -> None:
    """G2: only a message too large by itself may exceed the size, alone."""
    messages = [
        Message(topic="t", body=bytes(size), properties={"n": str(number)})
        for number, size in enumerate(sizes)
    ]
    parts = list(split_batch(messages, max_bytes, reserve_bytes=0))

    assert [message for part in parts for message in part] == messages
    assert all(len(part) == 1 or len(encode_batch(part)) <= max_bytes for part in parts)


@given(sizes=st.lists(st.sampled_from([1, 32_000, 32_130, 32_300, 32_760]), max_size=12))
def test_a_message_whose_properties_need_its_batchs_room_goes_by_itself(sizes: list[int]) -> None:
    """G2: with what a producer adds to it, it would not fit into a batch."""
    messages = [Message(topic="t", body=b"x", properties={"n": "x" * size}) for size in sizes]
    parts = list(split_batch(messages))

    assert [message for part in parts for message in part] == messages
    assert all(len(m.properties["n"]) <= 32_000 for part in parts if len(part) > 1 for m in part)
    keyed = {"WAIT": "true", "UNIQ_KEY": "A" * 32}
    for part in parts:
        if len(part) > 1:
            encode_batch([replace(message, properties={**message.properties, **keyed}) for message in part])


def test_a_queue_is_selected_by_key() -> None:
    """G1: as Java's SelectMessageQueueByHash."""
    queues = [MessageQueue("t", "a", number) for number in range(7)]

    assert select_message_queue_by_hash(queues, "a") == queues[97 % 7]


@pytest.mark.parametrize("body", ["paid", 3, None, float("nan")])
def test_a_body_that_is_not_bytes_is_refused(body: Any) -> None:
    """G2: before anything is sent."""
    with pytest.raises(LocalProtocolError, match=r"topic orders has a body of type .*; encode it to bytes"):
        check_body(body, "topic orders")
