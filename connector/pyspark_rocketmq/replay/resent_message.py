"""A stored message as it is sent again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.properties import (
    CLUSTER,
    CONSUME_START_TIME,
    DELAY,
    INNER_BASE,
    INNER_NUM,
    MAX_OFFSET,
    MAX_RECONSUME_TIMES,
    MIN_OFFSET,
    MSG_REGION,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)

REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Property of a replayed message: ``topic/brokerName/queueId/queueOffset`` of the original, by which a reader drops doubles."""

_LEFT_OUT: Final = frozenset(
    {
        CLUSTER, CONSUME_START_TIME, DELAY, INNER_BASE, INNER_NUM, MAX_OFFSET, MAX_RECONSUME_TIMES, MIN_OFFSET, MSG_REGION,
        PGROUP, REAL_QID, REAL_TOPIC, RECONSUME_TIME, RETRY_TOPIC, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS,
        TRACE_ON, TRAN_MSG, UNIQ_KEY, WAIT,
    }
)  # fmt: skip
"""What brokers and clients wrote about that delivery of the message, and would act upon: delays, transactions, retries.
UNIQ_KEY is among them, because brokers give all messages of a batch one of their own."""


def resent_message(topic: str, original: Message, origin: MessageQueue, queue_offset: int) -> Message:
    """The message for ``topic`` with the body, keys, tags, sharding key, flag and properties of the original."""
    kept = {name: value for name, value in original.properties.items() if name not in _LEFT_OUT}
    kept[REPLAYED_FROM] = "/".join((*map(str, origin), str(queue_offset)))
    return replace(original, topic=topic, properties=kept)
