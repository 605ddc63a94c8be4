"""Replicas of a broker: machines with broker id 1 and up that follow the master's log (``HAService``).

Metadata (topics, groups, committed offsets) are the master's own tables: a real slave fetches them every few
seconds (``SlaveSynchronize``). Messages come one by one, as late as a test wants.
"""

from __future__ import annotations

from collections import deque

from broker_sim.broker import Broker
from broker_sim.layout import tag_hash
from broker_sim.message_store import MessageStore
from broker_sim.settings import BrokerSettings
from broker_sim.stored import read_stored
from pyspark_rocketmq.clock import Clock


def make_replica(master: Broker, clock: Clock, settings: BrokerSettings) -> Broker:
    """A broker of the master's name and metadata, with an empty log of its own."""
    replica = Broker(master.name, clock, settings)
    replica.state.topics = master.state.topics
    replica.state.groups = master.state.groups
    replica.state.offsets = master.state.offsets
    return replica


class LogCopy:
    """Keeps ``target`` equal to ``source`` but for the newest messages.

    :meth:`catch_up` must be called after every append to ``source``, before old messages are dropped there.
    """

    def __init__(self, source: MessageStore, target: MessageStore) -> None:
        self._source = source
        self._target = target
        self._seen = target.end_offset
        self._waiting: deque[bytes] = deque()
        self.lag_messages = 0
        """How many of the newest messages are not copied; what was copied is never taken back."""

    def catch_up(self) -> None:
        """Copy all messages but the last ``lag_messages``."""
        while self._seen < self._source.end_offset:
            message = self._source.message_at(self._seen)
            if message is None:
                raise RuntimeError(
                    f"The message at commit log offset {self._seen} was dropped before it was copied."
                )
            self._waiting.append(message)
            self._seen += len(message)
        while len(self._waiting) > self.lag_messages:
            self._copy(self._waiting.popleft())

    def _copy(self, message: bytes) -> None:
        parts = read_stored(message)
        self._target.append_copy(
            message,
            topic=parts.run.topic,
            queue_id=parts.run.queue_id,
            queue_offset=parts.queue_offset,
            tag_hash=tag_hash(parts.member.properties),
        )
