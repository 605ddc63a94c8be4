"""Committed offsets of consumer groups (``ConsumerOffsetManager``): a plain table, last write wins.

An operator's reset of a queue lies over the table until the group's next pull of that queue takes it: meanwhile
it is what a query shows, and commits are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class ConsumerOffsets:
    """(group, topic, queue id) → next queue offset to consume."""

    def __init__(self) -> None:
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._resets: dict[tuple[str, str, int], int] = {}

    def commit(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store ``queue_offset`` as it is: lower, negative and too high values are accepted (golden fact 13)."""
        self._committed.setdefault((consumer_group, topic), {})[queue_id] = queue_offset

    def query(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """The offset reset to, else the committed one; None when there is none or a negative one was stored."""
        queue_offset = self._resets.get((consumer_group, topic, queue_id))
        if queue_offset is None:
            queue_offset = self._committed.get((consumer_group, topic), {}).get(queue_id, -1)
        return queue_offset if queue_offset >= 0 else None

    def reset(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit ``queue_offset``, and answer the group's next pull of the queue with it (``assignResetOffset``)."""
        self._resets[consumer_group, topic, queue_id] = queue_offset
        self.commit(consumer_group, topic, queue_id, queue_offset)

    def is_reset(self, consumer_group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of the queue waits for a pull."""
        return (consumer_group, topic, queue_id) in self._resets

    def take_reset(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """The offset reset to, once; None without a reset."""
        return self._resets.pop((consumer_group, topic, queue_id), None) if self._resets else None

    def note_pull(self, consumer_group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember how far the group pulled; for statistics only."""
        self._pulled[consumer_group, topic, queue_id] = next_offset

    def pulled(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """How far the group pulled; what it committed if it never pulled."""
        pulled = self._pulled.get((consumer_group, topic, queue_id))
        return self.query(consumer_group, topic, queue_id) if pulled is None else pulled

    def topics_of(self, consumer_group: str) -> list[str]:
        """Topics for which the group ever committed."""
        return [topic for group, topic in self._committed if group == consumer_group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that ever committed for the topic."""
        return [group for group, each in self._committed if each == topic]

    def tables(self) -> Iterable[tuple[str, str, dict[int, int]]]:
        """Group, topic and queue id → committed offset, of all of them."""
        return ((group, topic, dict(table)) for (group, topic), table in self._committed.items())

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Give one group the other's committed offsets for the topic, in place of its own."""
        table = self._committed.get((source_group, topic))
        if table is not None:
            self._committed[target_group, topic] = dict(table)

    def forget_group(self, consumer_group: str) -> None:
        """Drop everything of the group (``removeOffset``)."""
        self._forget(lambda group, _: group == consumer_group)

    def forget_topic(self, topic: str) -> None:
        """Drop everything about the topic (``cleanOffsetByTopic``)."""
        self._forget(lambda _, each: each == topic)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        for key in [key for key in self._committed if is_gone(*key)]:
            del self._committed[key]
        for table in (self._pulled, self._resets):
            for queue in [queue for queue in table if is_gone(*queue[:2])]:
                del table[queue]
