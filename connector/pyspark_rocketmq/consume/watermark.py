"""Exactly once into a sink: which rows are new, and how far the sink got per queue.

A replayed batch need not equal the first attempt: a listener may fail the second time, or get farther. So a
batch id cannot tell what the sink holds; only a position per queue can. The sink keeps that position, the
*watermark*, in the same transaction as the rows, and every commit goes through three steps:

1. read the watermarks the sink holds;
2. drop rows whose ``queueOffset`` is below their queue's watermark: an earlier attempt wrote them;
3. commit the remaining rows and the watermarks that grow, together.

Whatever was acknowledged, replayed or lost in between, the sink then holds the rows of exactly the messages
below its watermark. Offsets are committed after that, so the offset store is never ahead of the sink.

A watermark speaks of one *life* of its queue. Where offsets begin again, because a topic was deleted and made anew or a
broker lost the end of its log, other messages come under offsets that were there before: that is the next life, which
has a watermark of its own and begins without one, so that all its rows are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_rocketmq.model import MessageQueue


class Life(NamedTuple):
    """One life of a queue: the time in which an offset means one message."""

    queue: MessageQueue
    generation: int
    """0 is the first."""


def app_id(consumer_group: str, queue: MessageQueue, generation: int = 0) -> str:
    """The Delta transaction's application id that carries the watermark of one life of a queue as its version.

    Shape ``rocketmq:GROUP:TOPIC:BROKER:QUEUE``, from the second life on ``rocketmq:GROUP:TOPIC:BROKER:QUEUE.GENERATION``.
    Unique per group and life: RocketMQ allows no colon in groups and topics, and the queue id is digits, so colons in
    a broker name stay between them.
    """
    first = f"rocketmq:{consumer_group}:{queue.topic}:{queue.broker_name}:{queue.queue_id}"
    return f"{first}.{generation}" if generation else first


def life_of(transaction_id: str, consumer_group: str) -> Life | None:
    """The life whose watermark of this group has the id :func:`app_id`; None if it is anything else."""
    prefix = f"rocketmq:{consumer_group}:"
    topic, _, rest = transaction_id.removeprefix(prefix).partition(":")
    broker_name, _, last = rest.rpartition(":")
    queue_id, dot, generation = last.partition(".")
    is_first = not dot and queue_id.isdecimal()
    is_later = queue_id.isdecimal() and generation.isdecimal() and int(generation) > 0
    if not transaction_id.startswith(prefix) or not (topic and broker_name and (is_first or is_later)):
        return None
    return Life(MessageQueue(topic, broker_name, int(queue_id)), int(generation or 0))


def newest_lives(watermarks: Mapping[Life, int]) -> dict[Life, int]:
    """Of each queue the watermark of its last life."""
    newest: dict[MessageQueue, int] = {}
    for queue, generation in watermarks:
        newest[queue] = max(generation, newest.get(queue, 0))
    return {
        life: watermark for life, watermark in watermarks.items() if newest[life.queue] == life.generation
    }


def advance(stored: Mapping[MessageQueue, int], acked: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The watermarks to commit: those of ``acked`` (next offsets) that are beyond what is stored.

    A queue that stood still, or that a replay brought less far than before, is not in the result.
    """
    return {queue: next_offset for queue, next_offset in acked.items() if next_offset > stored.get(queue, 0)}
