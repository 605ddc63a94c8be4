"""Results without the retry topic, which a group reads besides its own topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pyspark_rocketmq.model import MessageQueue, is_retry_topic

T = TypeVar("T")


def but_retries(queues: Iterable[MessageQueue]) -> set[MessageQueue]:
    """Leave out queues of retry topics."""
    return {queue for queue in queues if not is_retry_topic(queue.topic)}


def rows_but_retries(rows: Mapping[MessageQueue, T]) -> dict[MessageQueue, T]:
    """Leave out rows of queues of retry topics."""
    return {queue: row for queue, row in rows.items() if not is_retry_topic(queue.topic)}
