"""A group reads its retry topic, too: tests of the topics it was told to read leave that out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pyspark_rocketmq.model import MessageQueue, is_retry_topic

T = TypeVar("T")


def but_retries(queues: Iterable[MessageQueue]) -> set[MessageQueue]:
    """Those of the topics asked for."""
    return {queue for queue in queues if not is_retry_topic(queue.topic)}


def rows_but_retries(rows: Mapping[MessageQueue, T]) -> dict[MessageQueue, T]:
    """Those of the topics asked for, by queue."""
    return {queue: row for queue, row in rows.items() if not is_retry_topic(queue.topic)}
