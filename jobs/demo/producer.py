"""Sends the demo's events, each order's to one queue, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jobs.demo.orders import OrderEvent, event_to_message
from jobs.errors import JobFailed
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message, MessageQueue, SendStatus
from pyspark_rocketmq.wire.requests.send import select_by_hash

_BATCH = 128
"""Messages a request; about 30 KiB of the broker's 4 MiB."""


def send_events(
    producer: Producer,
    events: Iterable[OrderEvent],
    queues: Sequence[MessageQueue],
    on_sent: Callable[[int], None],
) -> int:
    """Send in batches per queue; return the number of messages.

    The queue is chosen by the order id as ``SelectMessageQueueByHash`` does. A batch is sent once: sending it again
    after a time-out could double it.

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
        if len(batch) == _BATCH:
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
        raise JobFailed(f"A batch for {queue} was stored with {result.status.name} instead of SEND_OK.")
    on_sent(len(batch))
    return len(batch)
