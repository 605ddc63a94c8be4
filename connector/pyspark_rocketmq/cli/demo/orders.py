"""Creates and sends the demo's orders, of five steps each; its listener fails some steps once."""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt, MessageQueue, SendStatus
from pyspark_rocketmq.wire.properties import KEYS, SHARDING_KEY, TAGS
from pyspark_rocketmq.wire.requests.send import select_by_hash

STEPS = ("created", "paid", "packed", "shipped", "delivered")
_OPEN_AT_ONCE = 500

MESSAGES_PER_REQUEST = 128
"""Messages per request: about 30 KiB of the 4 MiB that brokers accept by default."""
OUTPUT_SCHEMA = "order_id string, step string, sequence int, reconsume_times int, delivered_ns bigint"
_ONE_IN = 5_000
_PAUSE_MS = 200


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
    """Return the ids of the first ``orders`` orders."""
    return (f"order-{number:08d}" for number in range(orders))


def order_events(orders: int, seed: int) -> Iterator[OrderEvent]:
    """Yield every step of every order: in sequence within an order, shuffled among the concurrent orders.

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
    """Create an event's message: order id as key and sharding key, step as tag, JSON as body."""
    body = {"order_id": event.order_id, "step": event.step, "sequence": event.sequence}
    return Message(
        topic=topic,
        body=json.dumps(body).encode(),
        properties={KEYS: event.order_id, TAGS: event.step, SHARDING_KEY: event.order_id},
    )


def send_events(
    producer: Producer,
    events: Iterable[OrderEvent],
    queues: Sequence[MessageQueue],
    on_sent: Callable[[int], None],
    *,
    batch_size: int = MESSAGES_PER_REQUEST,
) -> int:
    """Send the events in batches, each for one queue; return the number of messages.

    The order id selects the queue, as in ``SelectMessageQueueByHash``. A batch is sent only once: sending it
    again after a time-out could duplicate it. After each batch, ``on_sent`` gets the number of its messages.

    Raises:
        JobFailed: If a broker stored a batch less durably than it promised.
        RocketMQError: If a batch could not be sent.
    """
    pending: dict[MessageQueue, list[Message]] = {queue: [] for queue in queues}
    sent = 0
    for event in events:
        queue = queues[select_by_hash(event.order_id, len(queues))]
        batch = pending[queue]
        batch.append(event_to_message(event, queue.topic))
        if len(batch) == batch_size:
            sent += _send(producer, batch, queue, on_sent)
            batch.clear()
    for queue, batch in pending.items():
        if batch:
            sent += _send(producer, batch, queue, on_sent)
    return sent


def _send(
    producer: Producer, batch: Sequence[Message], queue: MessageQueue, on_sent: Callable[[int], None]
) -> int:
    result = producer.send_batch(batch, queue)
    if result.status is not SendStatus.SEND_OK:
        raise JobFailed(
            f"The broker stored messages for {queue} with status {result.status.name}, less durably than it "
            "is set up for. Check its disk and its replica, and run the demo again with a new topic."
        )
    on_sent(len(batch))
    return len(batch)


class InjectedFailure(StrEnum):
    """Ways in which the demo's listener fails on purpose."""

    SUSPEND = "SUSPEND"
    EXCEPTION = "EXCEPTION"


class DemoFailure(Exception):
    """Error that the demo's listener raises on purpose."""


def injected_failure(order_id: str, sequence: int) -> InjectedFailure | None:
    """Return how the listener is to fail at the first attempt of a step; None if it is not to fail.

    One order in 5,000 suspends its queue at one of its steps, and another one in 5,000 raises an exception.
    The order's id decides, so the result is the same on every machine.
    """
    turn, kind = divmod(zlib.crc32(order_id.encode()), _ONE_IN)
    if turn % len(STEPS) != sequence:
        return None
    return {0: InjectedFailure.SUSPEND, 1: InjectedFailure.EXCEPTION}.get(kind)


def on_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Emit one row per message; a failure gives back the whole delivery, and its rows are dropped."""
    for message in messages:
        event = json.loads(message.body)
        if message.reconsume_times == 0:
            failure = injected_failure(event["order_id"], event["sequence"])
            if failure is InjectedFailure.EXCEPTION:
                raise DemoFailure(f"injected at the first attempt of {event['order_id']} {event['step']}")
            if failure is InjectedFailure.SUSPEND:
                context.suspend_current_queue_time_millis = _PAUSE_MS
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        context.emit(
            order_id=event["order_id"],
            step=event["step"],
            sequence=event["sequence"],
            reconsume_times=message.reconsume_times,
            delivered_ns=time.time_ns(),
        )
    return ConsumeOrderlyStatus.SUCCESS
