"""A planned range as it has arrived at an engine, and what must be true of it before anything is delivered.

Rule 1: a range has exactly one marker row, at its end; it says how many messages were read.
Rule 2: the whole range is acknowledged, so a row that was lost or doubled on the way ends the task.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_rocketmq.consume.statistics import Figures
from pyspark_rocketmq.datasource.schema import (
    ORIGIN_TOPIC,
    RangeEnd,
    planned_range,
    pull_figures,
    range_end,
    reset_target,
)
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageExt, MessageQueue, QueueRange, is_retry_topic
from pyspark_rocketmq.streaming.ack import QueueAck

_REFUSED_PAUSE_S: Final = 3.0
"""``DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException``: a queue that may not be read is asked for again after it."""
MESSAGE_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "commitLogOffset", "msgId", "keys", "tags", "body", "properties",
    "bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "sysFlag", "flag",
    ORIGIN_TOPIC,
)  # fmt: skip
"""What messages are made of: MessageExt's fields in their order but for the last."""


class ArrivedRange(NamedTuple):
    """One queue's range, whole."""

    planned: QueueRange
    messages: Sequence[MessageExt]
    """In queue order."""
    reset_to: int | None
    """Where an operator wants the queue consumed from next."""
    figures: Figures
    """What reading it took."""
    ended: RangeEnd = RangeEnd.WHOLE
    nbytes: int = 0
    """Memory that its messages' columns take."""

    def acknowledged(self, ack: QueueAck) -> QueueAck:
        """``ack`` with what only the reader knows."""
        suspended_until_s = ack.suspended_until_s
        if self.ended is RangeEnd.REFUSED:
            suspended_until_s = max(suspended_until_s or 0.0, time.time() + _REFUSED_PAUSE_S)
        return replace(
            ack,
            suspended_until_s=suspended_until_s,
            reset_to=self.reset_to,
            figures=ack.figures.plus(self.figures),
        )


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """``batch`` cut behind each marker row, which only the last row of a piece can be."""
    marked = np.flatnonzero(batch.column("kind").is_valid().to_numpy(zero_copy_only=False))
    for start, stop in pairwise((0, *(marked + 1).tolist(), batch.num_rows)):
        if start < stop:
            yield batch.slice(start, stop - start)


def messages_of(columns: Iterable[Sequence[Any]]) -> list[MessageExt]:
    """The messages of one queue from ``columns``, in the order of :data:`MESSAGE_COLUMNS`.

    Those of a retry queue come under the topic they were sent to first.
    """
    *fields, origin_topics = columns
    values = zip(*fields, repeat(None, len(origin_topics)), strict=True)
    # As MessageExt._make does, without a call in Python for each.
    messages = list(map(tuple.__new__, repeat(MessageExt), values))
    if not messages or not is_retry_topic(messages[0].topic):
        return messages
    return [one.restored(origin) for one, origin in zip(messages, origin_topics, strict=True)]


def whole_range(
    queue: MessageQueue, messages: Sequence[MessageExt], offsets: npt.NDArray[np.int64], marker_text: str
) -> ArrivedRange:
    """The range of ``queue`` whose messages are ``messages``.

    Args:
        queue: Whose rows these are.
        messages: In the order in which they are to be delivered.
        offsets: Their queue offsets, and behind them the marker row's.
        marker_text: ``plannedRange`` of the marker row.

    Raises:
        RocketMQError: If messages were lost, doubled or changed places.
    """
    planned = planned_range(queue, marker_text, rows=len(messages))
    late = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if len(late):
        before, after = offsets[late[0] : late[0] + 2].tolist()
        problem = (
            f"offset {after} arrived twice, so another row of the range {planned.start} to {planned.end} is missing"
            if before == after
            else f"offset {after} arrived behind offset {before} in the range {planned.start} to {planned.end}"
        )
        raise RocketMQError(
            f"{queue}: {problem}. Do not filter, copy or shuffle the rows of format('rocketmq') before "
            "consume_orderly()."
        )
    return ArrivedRange(
        planned, messages, reset_target(marker_text), pull_figures(marker_text), range_end(marker_text)
    )


def wrong_markers(queue: MessageQueue, problem: str) -> RocketMQError:
    """The error for a range that did not arrive with exactly one marker row, at its end."""
    return RocketMQError(
        f"{queue}: a planned range must arrive with exactly one marker row, at its end, but {problem}. Read with "
        "format('rocketmq') and option 'consumerGroup', and do not filter, copy or shuffle its rows before "
        "consume_orderly()."
    )
