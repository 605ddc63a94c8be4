"""Messages that cannot be decoded: what is wrong with one, and how it is shown with the bytes that are stored.

Java's consumer drops such a message in silence, and what follows it in the same answer (``MessageDecoder.decodesBatch``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageExt, MessageQueue
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.messages import (
    INNER_BATCH_FLAGS,
    MIN_STORED_BYTES,
    StoredMessage,
    check_expands,
    decode_stored_messages,
    shown_as_stored,
)
from pyspark_rocketmq.wire.properties import INNER_NUM

UNDECODABLE: Final = "UNDECODABLE"
"""The property that says why a message is shown with the bytes that are stored. Ours: Java has none of that name."""
_MAX_REASON: Final = 500
_QUEUE_OFFSET_AT: Final = 20
_LENGTH_BYTES: Final = 4


class Undecodable(NamedTuple):
    """A message that cannot be decoded, in the place of its row."""

    stored: StoredMessage | None
    """As it is stored; None if its layout is broken, and then what follows it in the answer is not read either."""
    data: bytes
    """All bytes of it; with a broken layout, the rest of the answer from where it begins."""
    reason: str
    """A sentence or two."""

    def queue_offsets(self, at_least: int, end: int, *, is_filtered: bool) -> range:
        """The queue offsets it has; several for an inner batch.

        Args:
            at_least: The first that can come, which it is where nothing is left out.
            end: No offset as high as this can come.
            is_filtered: Whether messages before it may be left out.
        """
        if self.stored is not None:
            return offsets_of(self.stored)
        told = int.from_bytes(self.data[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], "big", signed=True)
        first = told if is_filtered and at_least <= told < end else at_least
        return range(first, first + 1)

    def shown(self, queue: MessageQueue, queue_offset: int) -> MessageExt:
        """As a consumer gets it: the body is what is stored, and property ``UNDECODABLE`` says why.

        With a broken layout the body is the whole of it, and all but the position is empty or 0; it has no place in the
        log, -1, by which a broker could be asked to copy it.
        """
        reason = self.reason[:_MAX_REASON]
        if self.stored is not None:
            shown = shown_as_stored(self.stored, queue.broker_name)
            return shown._replace(
                queue_offset=queue_offset, properties={**shown.properties, UNDECODABLE: reason}
            )
        return MessageExt(
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            commit_log_offset=-1,
            msg_id="",
            keys=None,
            tags=None,
            body=self.data,
            properties={UNDECODABLE: reason},
            born_timestamp=0,
            born_host="",
            store_timestamp=0,
            store_host="",
            reconsume_times=0,
            sys_flag=0,
            flag=0,
        )


def why_undecodable(data: bytes) -> Undecodable | None:
    """What is wrong with the one message that ``data`` is; None if nothing is."""
    try:
        (stored,) = decode_stored_messages(data)
    except RemoteProtocolError as error:
        return Undecodable(None, data, str(error))
    try:
        check_expands(stored, ExpansionBudget(len(data)))
    except RemoteProtocolError as error:
        return Undecodable(stored, data, str(error))
    return None


def message_starts(data: bytes) -> list[int]:
    """Where messages begin by their total sizes, as far as these can be right."""
    starts = []
    at = 0
    while at < len(data):
        starts.append(at)
        total = int.from_bytes(data[at : at + _LENGTH_BYTES], "big", signed=True)
        if not MIN_STORED_BYTES <= total <= len(data) - at:
            break
        at += total
    return starts


def offsets_of(stored: StoredMessage) -> range:
    """The queue offsets that a message has by what its broker says of it; several for an inner batch."""
    return range(stored.queue_offset, stored.queue_offset + _count_of(stored))


def _count_of(stored: StoredMessage) -> int:
    if stored.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS:
        return 1
    announced = stored.properties.get(INNER_NUM, "")
    is_number = announced.isascii() and announced.isdigit() and len(announced) < 10
    return max(1, int(announced)) if is_number else 1
