"""The demo's input: repeatable, complete, interleaved, each order in sequence."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict

import pytest

from pyspark_rocketmq.cli.demo.orders import STEPS, OrderEvent, event_to_message, order_events, order_ids


@pytest.mark.parametrize("orders", [1, 2, 499, 500, 501, 2000])
def test_every_order_goes_through_every_step_in_sequence(orders: int) -> None:
    seen = defaultdict(list)
    for event in order_events(orders, seed=3):
        seen[event.order_id].append(event.step)

    assert seen == {key: list(STEPS) for key in order_ids(orders)}


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    first = list(order_events(300, seed=7))

    assert list(order_events(300, seed=7)) == first
    assert list(order_events(300, seed=8)) != first


def test_orders_are_interleaved() -> None:
    events = list(order_events(1000, seed=7))

    followed_by_itself = sum(one.order_id == other.order_id for one, other in itertools.pairwise(events))
    assert followed_by_itself < len(events) / 50


def test_an_event_becomes_a_message_keyed_and_sharded_by_its_order() -> None:
    message = event_to_message(OrderEvent(order_id="order-1", sequence=1), "orders")

    assert message.topic == "orders"
    assert message.properties == {"KEYS": "order-1", "TAGS": "paid", "__SHARDINGKEY": "order-1"}
    assert json.loads(message.body) == {"order_id": "order-1", "step": "paid", "sequence": 1}


def test_the_default_demo_has_a_hundred_thousand_messages() -> None:
    counts = Counter(event.step for event in order_events(20_000, seed=7))

    assert counts == dict.fromkeys(STEPS, 20_000)
