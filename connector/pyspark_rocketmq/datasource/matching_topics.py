"""The topics whose names match a pattern, looked up now and then."""

from __future__ import annotations

import logging
import re
from typing import Final

from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import TransportError
from pyspark_rocketmq.model import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from pyspark_rocketmq.wire.namespace import is_system_resource

logger = logging.getLogger(__name__)

_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Of the topic of a cluster's name (``MixAll.REPLY_TOPIC_POSTFIX``)."""


class MatchingTopics:
    """Names a query's topics. For one thread."""

    def __init__(
        self, name_server: NameServerClient, pattern: re.Pattern[str], clock: Clock, max_age_s: float
    ) -> None:
        self._name_server = name_server
        self._pattern = pattern
        self._clock = clock
        self._max_age_s = max_age_s
        self._known: frozenset[str] | None = None
        self._look_at_s = 0.0

    def look(self, deadline: Deadline) -> frozenset[str]:
        """Their names, at most ``max_age_s`` old unless no name server answers.

        Raises:
            TransportError: If no name server answered before ``deadline``, and none ever has.
        """
        now_s = self._clock.monotonic_s()
        if self._known is not None and now_s < self._look_at_s:
            return self._known
        try:
            found = self._matching(deadline)
        except TransportError as error:
            if self._known is None:
                raise
            logger.warning("topics not looked up, going on with the known ones: %s", error)
            found = self._known
        self._look_at_s = now_s + self._max_age_s
        if found != self._known:
            logger.info("topics of pattern %s: %s", self._pattern.pattern, ", ".join(sorted(found)) or "none")
            if not found:
                logger.warning(
                    "no topic matches topicPattern=%r, so nothing is read; a pattern must match the whole name, as '.*' does",
                    self._pattern.pattern,
                )
        self._known = found
        return found

    def _matching(self, deadline: Deadline) -> frozenset[str]:
        names = [name for name in self._name_server.topics(deadline) if self._pattern.fullmatch(name)]
        if not names:
            return frozenset()
        brokers = self._name_server.brokers(deadline)
        # Each broker has a topic of its own name and one of its cluster's.
        own = {broker.broker_name for broker in brokers} | {broker.cluster for broker in brokers}
        own |= {name + _REPLY_SUFFIX for name in own}
        return frozenset(
            name
            for name in names
            if name not in own
            and not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
            and not is_system_resource(name)
        )
