"""The demo's input: orders that go through five steps each, many of them open at once. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.properties import KEYS, SHARDING_KEY, TAGS

STEPS = ("created", "paid", "packed", "shipped", "delivered")
_OPEN_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEvent:
    """One step of one order."""

    order_id: str
    sequence: int
    """Index of the step, from 0."""

    @property
    def step(self) -> str:
        """Name of the step."""
        return STEPS[self.sequence]


def order_ids(orders: int) -> Iterator[str]:
    """The ids of the first ``orders`` orders."""
    return (f"order-{number:08d}" for number in range(orders))


def order_events(orders: int, seed: int) -> Iterator[OrderEvent]:
    """Yield every step of every order: in sequence within an order, shuffled among the orders open at once.

    The same arguments give the same events.
    """
    source = random.Random(seed)  # noqa: S311 - a repeatable order is wanted, not a secret
    waiting = order_ids(orders)
    is_open = [(order_id, 0) for order_id in islice(waiting, _OPEN_AT_ONCE)]
    while is_open:
        place = source.randrange(len(is_open))
        order_id, sequence = is_open[place]
        yield OrderEvent(order_id=order_id, sequence=sequence)
        if sequence + 1 < len(STEPS):
            is_open[place] = (order_id, sequence + 1)
        elif (following := next(waiting, None)) is not None:
            is_open[place] = (following, 0)
        else:
            is_open[place] = is_open[-1]
            is_open.pop()


def event_to_message(event: OrderEvent, topic: str) -> Message:
    """The message of an event: order id as key and sharding key, step as tag, JSON as body."""
    body = {"order_id": event.order_id, "step": event.step, "sequence": event.sequence}
    return Message(
        topic=topic,
        body=json.dumps(body).encode(),
        properties={KEYS: event.order_id, TAGS: event.step, SHARDING_KEY: event.order_id},
    )
