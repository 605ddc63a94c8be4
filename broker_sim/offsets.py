"""Committed offsets of consumer groups (``ConsumerOffsetManager``): a plain table, last write wins."""

from __future__ import annotations


class ConsumerOffsets:
    """(group, topic, queue id) → next queue offset to consume."""

    def __init__(self) -> None:
        self._committed: dict[tuple[str, str, int], int] = {}

    def commit(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store ``queue_offset`` as it is: lower, negative and too high values are accepted (golden fact 13)."""
        self._committed[consumer_group, topic, queue_id] = queue_offset

    def query(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, None when there is none or a negative one was stored."""
        queue_offset = self._committed.get((consumer_group, topic, queue_id), -1)
        return queue_offset if queue_offset >= 0 else None
