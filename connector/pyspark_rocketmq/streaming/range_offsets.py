"""The messages of a planned range by index, which machines go by, and by queue offset, which everybody else does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_rocketmq.consume.lives import LastMessage
from pyspark_rocketmq.consume.put_back import from_offset, from_text, spans_of, times_by_index, to_text
from pyspark_rocketmq.model import MessageExt, QueueRange
from pyspark_rocketmq.streaming.message_columns import ArrivedMessages


class RangeOffsets:
    """One range whose messages have arrived."""

    def __init__(self, planned: QueueRange, messages: Sequence[MessageExt]) -> None:
        self._planned = planned
        self._messages = messages
        self._offsets = _queue_offsets(messages)
        self._put_back = from_text(planned.put_back, planned.start, planned.reconsume_times)

    def first_at(self, queue_offset: int) -> int:
        """The first index at or behind an offset."""
        return bisect_left(self._offsets, queue_offset)

    def offset_at(self, index: int) -> int:
        """The queue offset of a message, or the end of the range: offsets without a message are passed too."""
        return int(self._offsets[index]) if index < len(self._offsets) else self._planned.end

    def put_back(self) -> dict[int, int]:
        """How often messages were put back before this range, by index."""
        return times_by_index(self._put_back, self.first_at)

    def reached(self, index: int, put_back: Mapping[int, int]) -> dict[str, Any]:
        """What an ack says of a range that has passed all before ``index``.

        Args:
            index: The first message that has not been passed.
            put_back: How often messages from there on were put back by now, by ascending index.
        """
        next_offset, times = self.offset_at(index), put_back.get(index, 0)
        # A range that was cut short may end before messages that were put back.
        spans = spans_of(put_back, self.offset_at) + from_offset(self._put_back, self._planned.end)
        return {
            "next_offset": next_offset,
            "reconsume_times": times,
            "put_back": to_text(spans, next_offset, times),
            "last_message": self._message_before(index),
        }

    def _message_before(self, index: int) -> str:
        if index == 0:
            return ""
        if isinstance(self._messages, ArrivedMessages):
            return self._messages.last_message(index - 1)
        message = self._messages[index - 1]
        return LastMessage(message.queue_offset, message.store_timestamp, message.commit_log_offset).to_text()


def _queue_offsets(messages: Sequence[MessageExt]) -> Sequence[int] | npt.NDArray[np.int64]:
    if isinstance(messages, ArrivedMessages):
        return messages.queue_offsets
    return [message.queue_offset for message in messages]
