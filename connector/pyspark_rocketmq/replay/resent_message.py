"""A stored message as it is sent again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.properties import OF_ONE_DELIVERY

REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Property of a replayed message: ``topic/brokerName/queueId/queueOffset`` of the original, by which a reader drops doubles."""


def resent_message(topic: str, original: Message, origin: MessageQueue, queue_offset: int) -> Message:
    """The message for ``topic`` with the body, keys, tags, sharding key, flag and properties of the original."""
    kept = {name: value for name, value in original.properties.items() if name not in OF_ONE_DELIVERY}
    kept[REPLAYED_FROM] = "/".join((*map(str, origin), str(queue_offset)))
    return replace(original, topic=topic, properties=kept)
