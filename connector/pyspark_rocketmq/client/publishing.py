"""Where a message goes: the pure choices of a producer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from pyspark_rocketmq.client.sending import DEFAULT_TOPIC_QUEUE_NUMS
from pyspark_rocketmq.model import MAX_MESSAGE_BYTES, Message, MessageQueue, TopicRoute
from pyspark_rocketmq.wire.hashing import ShardingKey, select_by_hash
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD
from pyspark_rocketmq.wire.properties import encode_properties


def route_to_create(default_route: TopicRoute) -> TopicRoute:
    """The route to expect of a topic that the first send will create, from that of TBW102.

    Source: RocketMQ 5.3.3 ``MQClientInstance.updateTopicRouteInfoFromNameServer``.
    """
    queues = []
    for data in default_route.queues:
        nums = min(DEFAULT_TOPIC_QUEUE_NUMS, data.read_queue_nums)
        queues.append(replace(data, read_queue_nums=nums, write_queue_nums=nums))
    return replace(default_route, queues=tuple(queues))


def round_robin_queue(
    queues: Sequence[MessageQueue], turn: int, failed_broker: str | None = None
) -> MessageQueue:
    """The ``turn``-th queue, or the next one that is not on the broker that just failed, if there is any.

    Source: RocketMQ 5.3.3 ``TopicPublishInfo.selectOneMessageQueue(lastBrokerName)``.
    """
    for step in range(len(queues)):
        queue = queues[(turn + step) % len(queues)]
        if queue.broker_name != failed_broker:
            return queue
    return queues[turn % len(queues)]


def select_message_queue_by_hash(queues: Sequence[MessageQueue], sharding_key: ShardingKey) -> MessageQueue:
    """The queue of a sharding key among a topic's queues, in their order (``SelectMessageQueueByHash``)."""
    return queues[select_by_hash(sharding_key, len(queues))]


def select_message_queue_by_random(queues: Sequence[MessageQueue], random: Random) -> MessageQueue:
    """Any queue (``SelectMessageQueueByRandom``)."""
    return queues[random.randrange(len(queues))]


def split_batch(
    messages: Sequence[Message], max_bytes: int = MAX_MESSAGE_BYTES, reserve_bytes: int = 128
) -> Iterator[Sequence[Message]]:
    """Cut messages into batches of at most ``max_bytes`` encoded, in order.

    ``reserve_bytes`` per message is room for the properties a producer adds. A message that is too large by
    itself is a batch of its own, which the producer then refuses.
    """
    first, size = 0, 0
    for index, message in enumerate(messages):
        own = len(message.body) + len(encode_properties(message.properties))
        own += BATCH_MEMBER_OVERHEAD + reserve_bytes
        if index > first and size + own > max_bytes:
            yield messages[first:index]
            first, size = index, 0
        size += own
    if first < len(messages):
        yield messages[first:]
