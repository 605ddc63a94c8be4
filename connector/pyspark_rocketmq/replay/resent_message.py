"""A stored message as it is sent again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.properties import OF_ONE_DELIVERY, UNIQ_KEY

REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Property of a replayed message: ``topic/brokerName/queueId/queueOffset`` of the original, by which a reader drops doubles."""
REPLAYED_BY: Final = "REPLAYED_BY"
"""Property of a replayed message: the run that began to send it, by which a later one finds what is stored of its steps."""
KEPT_AS: Final = "REPLAYED_BY_BEFORE"
"""Property of a replayed message whose original had a ``REPLAYED_BY`` of its own, another run's or its producer's: what it said."""
_LEFT_OUT: Final = OF_ONE_DELIVERY - {UNIQ_KEY}
"""The msgId stays, as where Java sends a message on that it has consumed: ``MessageClientIDSetter.setUniqID`` gives one only to
a message without."""


def origin_of(origin: MessageQueue, queue_offset: int | str) -> str:
    """What ``REPLAYED_FROM`` says."""
    return "/".join((*map(str, origin), str(queue_offset)))


def resent_message(
    topic: str, original: Message, origin: MessageQueue, queue_offset: int, run: str
) -> Message:
    """The message for ``topic`` with the body, keys, tags, sharding key, UNIQ_KEY, flag and properties of the original."""
    kept = {name: value for name, value in original.properties.items() if name not in _LEFT_OUT}
    if before := kept.get(REPLAYED_BY):
        kept[KEPT_AS] = before
    kept[REPLAYED_FROM] = origin_of(origin, queue_offset)
    kept[REPLAYED_BY] = run
    return replace(original, topic=topic, properties=kept)
