"""Exactly once into a sink: which rows are new, and how far the sink got per queue.

A replayed batch need not equal the first attempt: a listener may fail the second time, or get farther. So a
batch id cannot tell what the sink holds; only a position per queue can. The sink keeps that position, the
*watermark*, in the same transaction as the rows, and every commit goes through three steps:

1. read the watermarks the sink holds;
2. drop rows whose ``queueOffset`` is below their queue's watermark: an earlier attempt wrote them;
3. commit the remaining rows and the watermarks that grow, together.

Whatever was acknowledged, replayed or lost in between, the sink then holds the rows of exactly the messages
below its watermark. Offsets are committed after that, so the offset store is never ahead of the sink.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.model import MessageQueue


def app_id(consumer_group: str, queue: MessageQueue) -> str:
    """The Delta transaction's application id that carries one queue's watermark as its version.

    Shape ``rocketmq:GROUP:TOPIC:BROKER:QUEUE``. Unique per group and queue: RocketMQ allows no colon in groups and
    topics, and the queue id is digits, so colons in a broker name stay between them.
    """
    return f"rocketmq:{consumer_group}:{queue.topic}:{queue.broker_name}:{queue.queue_id}"


def queue_of(transaction_id: str, consumer_group: str) -> MessageQueue | None:
    """The queue whose watermark of this group has the id :func:`app_id`; None if it is anything else."""
    prefix = f"rocketmq:{consumer_group}:"
    topic, _, rest = transaction_id.removeprefix(prefix).partition(":")
    broker_name, _, queue_id = rest.rpartition(":")
    if not transaction_id.startswith(prefix) or not (topic and broker_name and queue_id.isdecimal()):
        return None
    return MessageQueue(topic, broker_name, int(queue_id))


def advance(stored: Mapping[MessageQueue, int], acked: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The watermarks to commit: those of ``acked`` (next offsets) that are beyond what is stored.

    A queue that stood still, or that a replay brought less far than before, is not in the result.
    """
    return {queue: next_offset for queue, next_offset in acked.items() if next_offset > stored.get(queue, 0)}
