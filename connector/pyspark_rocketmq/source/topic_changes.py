"""Find the topics that match a pattern, and the queues that are gone.

A queue counts as deleted only if a live broker that owned it reports it missing, because name servers forget
topics whose brokers are all away.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import (
    DataLoss,
    QueueRemoved,
    RocketMQError,
    TopicDeleted,
    TopicNotFound,
)
from pyspark_rocketmq.model import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    BrokerAddress,
    MessageQueue,
    QueueRange,
)
from pyspark_rocketmq.wire.namespace import is_system_resource

logger = logging.getLogger(__name__)

_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""``MixAll.REPLY_TOPIC_POSTFIX``."""
_EVERY_S: Final = 5.0


class MatchingTopics:
    """The topics that match a query's pattern. Only one thread may use it."""

    def __init__(
        self, name_server: NameServerClient, pattern: re.Pattern[str], clock: Clock, max_age_s: float
    ) -> None:
        self._name_server = name_server
        self._pattern = pattern
        self._clock = clock
        self._max_age_s = max_age_s
        self._known: frozenset[str] | None = None
        self._query_at_s = 0.0

    def look(self, deadline: Deadline) -> frozenset[str]:
        """Return the topics that match the pattern; the answer may be ``max_age_s`` seconds old.

        If no name server answers, the last answer is returned, however old it is.

        Raises:
            RocketMQError: If every name server fails until ``deadline``, and no topics are known yet.
        """
        now_s = self._clock.monotonic_s()
        if self._known is not None and now_s < self._query_at_s:
            return self._known
        try:
            found = self._matching(deadline)
        except RocketMQError as error:
            if self._known is None:
                raise
            logger.warning("topics not looked up, going on with the known ones: %s", error)
            found = self._known
        self._query_at_s = now_s + self._max_age_s
        if found != self._known:
            logger.info("topics of pattern %s: %s", self._pattern.pattern, ", ".join(sorted(found)) or "none")
            if not found:
                logger.warning(
                    "no topic matches topicPattern=%r, so nothing is read; a pattern must match the whole "
                    "name, as '.*' does",
                    self._pattern.pattern,
                )
        self._known = found
        return found

    def invalidate(self) -> None:
        """Have the next :meth:`look` ask for the topics again, however new the last answer is."""
        self._query_at_s = float("-inf")

    def _matching(self, deadline: Deadline) -> frozenset[str]:
        names = [name for name in self._name_server.topics(deadline) if self._pattern.fullmatch(name)]
        if not names:
            return frozenset()
        brokers = self._name_server.brokers(deadline)
        # Each broker has a topic with its own name and one with its cluster's name.
        own = {broker.broker_name for broker in brokers} | {broker.cluster for broker in brokers}
        own |= {name + _REPLY_SUFFIX for name in own}
        return frozenset(
            name
            for name in names
            if name not in own
            and not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
            and not is_system_resource(name)
        )


class Vanished(NamedTuple):
    """A queue that is gone: its topic was deleted, or has fewer queues now."""

    queue: MessageQueue
    loss: DataLoss | None
    """Error for messages that are or may be lost; None if the queue is known to have been read to its end."""


class VanishedQueues:
    """Asks live brokers whether queues that are in no route are gone for good. Only one thread may use it."""

    def __init__(
        self, name_server: NameServerClient, brokers: BrokerClient, clock: Clock, timeout_s: float
    ) -> None:
        self._name_server = name_server
        self._brokers = brokers
        self._clock = clock
        self._timeout_s = timeout_s
        self._known: list[Vanished] = []
        self._queried: set[MessageQueue] = set()
        self._query_at_s = 0.0

    def look(self, missing: Sequence[QueueRange]) -> list[Vanished]:
        """Return the queues of ``missing`` that are gone; the answer may be 5 s old.

        The ``end`` of a range in ``missing`` is the queue's next offset.
        """
        queues = {planned.queue for planned in missing}
        now_s = self._clock.monotonic_s()
        if queues != self._queried or now_s >= self._query_at_s:
            self._queried, self._query_at_s = queues, now_s + _EVERY_S
            self._known = self._gone(missing) if missing else []
        return self._known

    def _gone(self, missing: Sequence[QueueRange]) -> list[Vanished]:
        try:
            living = self._name_server.brokers(Deadline.after(self._clock, self._timeout_s))
        except RocketMQError as error:
            logger.warning("not known whether queues are gone, the cluster does not answer: %s", error)
            return []
        masters = {broker.broker_name: broker.master for broker in living}
        by_master: dict[tuple[BrokerAddress, str], list[QueueRange]] = {}
        for planned in missing:
            address = masters.get(planned.queue.broker_name)
            if address is not None:
                by_master.setdefault((address, planned.queue.topic), []).append(planned)
        return [gone for place, ranges in by_master.items() for gone in self._gone_from(*place, ranges)]

    def _gone_from(self, address: BrokerAddress, topic: str, ranges: Sequence[QueueRange]) -> list[Vanished]:
        try:
            known = self._brokers.topic_stats(address, topic, broker_name=ranges[0].queue.broker_name)
            return [self._removed(address, old) for old in ranges if known and old.queue not in known]
        except TopicNotFound:
            available = f"{address} has no topic {topic} any more"
            return [Vanished(old.queue, TopicDeleted(str(old.queue), old.end, available)) for old in ranges]
        except RocketMQError as error:
            logger.warning("not known whether queues of topic=%s are gone: %s", topic, error)
            return []

    def _removed(self, address: BrokerAddress, old: QueueRange) -> Vanished:
        end = self._brokers.max_offset(address, old.queue)
        if old.end >= end:
            return Vanished(old.queue, None)
        available = (
            f"the topic has fewer queues now, and this one, which reaches to {end} at {address}, "
            "cannot be read"
        )
        return Vanished(old.queue, QueueRemoved(str(old.queue), old.end, available))
