"""Where each row of a task goes: a queue of its own, or any of its topic's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from pyspark_rocketmq.client.publishing import select_message_queue_by_hash
from pyspark_rocketmq.datasource.key_sample import KeySampler
from pyspark_rocketmq.datasource.sink_batches import Destination
from pyspark_rocketmq.datasource.sink_rows import SinkRow
from pyspark_rocketmq.errors import RocketMQError, RowNotSent
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.peer_text import peer_text
from pyspark_rocketmq.wire.hashing import ShardingKey

logger = logging.getLogger(__name__)

_MOST_KNOWN_KEYS: Final = 100_000


class Places:
    """The places of one task, which looks at the queues of a topic once: keys do not move while it runs."""

    def __init__(
        self,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        sampler: KeySampler | None = None,
        queues_now: Callable[[str], Sequence[MessageQueue]] = lambda _: (),
    ) -> None:
        """Look at nothing yet.

        Args:
            queues_of: Looks for the queues of a topic.
            sampler: Is given the sharding keys seen.
            queues_now: As ``queues_of``, whatever was seen of the topic before.
        """
        self._queues_of = queues_of
        self._queues_now = queues_now
        self._now: dict[str, Sequence[MessageQueue]] = {}
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._by_key: dict[tuple[str, ShardingKey], MessageQueue] = {}
        self._sampler = sampler

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The topic's queues, in the order in which sharding keys count.

        Raises:
            RocketMQError: If they cannot be had.
        """
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._queues_of(topic)
        return found

    def any_of(self, topic: str) -> Sequence[MessageQueue]:
        """Where rows of the topic may go that have neither key nor queue.

        Raises:
            RocketMQError: As of :meth:`queues`.
        """
        return self._now.get(topic) or self.queues(topic)

    def instead_of(self, queue: MessageQueue) -> Sequence[MessageQueue]:
        """The queues that its topic has now, if ``queue`` is not among them any more; else none.

        Keys and rows with a queue of their own stay where they were.
        """
        try:
            now = self._queues_now(queue.topic)
        except RocketMQError as error:
            logger.warning("queues not looked at again topic=%s: %s", queue.topic, error)
            return ()
        if queue in now:
            return ()
        self._now[queue.topic] = now
        return now

    def of(self, row: SinkRow) -> Destination:
        """The queue that the row names or that its sharding key hashes to; else its topic.

        Raises:
            RowNotSent: If it names no queue that there is.
        """
        if row.queue_id is not None:
            return self._named(row)
        if row.sharding_key is None:
            return row.topic
        key = (row.topic, row.sharding_key)
        queue = self._by_key.get(key)
        if queue is None:
            if len(self._by_key) >= _MOST_KNOWN_KEYS:
                self._by_key.clear()
            queue = select_message_queue_by_hash(self.queues(row.topic), row.sharding_key)
            self._by_key[key] = queue
            if self._sampler is not None:
                self._sampler.add(row.topic, str(row.sharding_key))
        return queue

    def _named(self, row: SinkRow) -> MessageQueue:
        if row.sharding_key is not None:
            raise RowNotSent(
                row.shown,
                "it has both a queueId and a shardingKey, which say different queues; leave one null",
                is_no_message=True,
            )
        found = [
            queue
            for queue in self.queues(row.topic)
            if queue.queue_id == row.queue_id and row.broker_name in (None, queue.broker_name)
        ]
        if len(found) == 1:
            return found[0]
        wanted = f"queue {row.queue_id} of topic {row.topic}"
        if found:
            brokers = ", ".join(queue.broker_name for queue in found)
            problem = f"{wanted} is on {peer_text(brokers)}: say which in a column brokerName"
            raise RowNotSent(row.shown, problem, is_no_message=True)
        where = f" on {row.broker_name}" if row.broker_name else ""
        known = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in self.queues(row.topic))
        raise RowNotSent(row.shown, f"there is no {wanted}{where} to write to; there are {peer_text(known)}")
