"""The routes of everything one consumer reads: several topics, and a retry topic that need not exist yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import RocketMQError, TopicNotFound
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue, TopicRoute

_SOON_S: Final = 1.0
_LATE_S: Final = 30.0
"""Pauses between two questions for a retry topic that is not on all brokers yet, the first and the longest: a broker
makes it at the group's first heartbeat, so that it is there a moment later or, for want of rights, never."""


@dataclass(frozen=True)
class Routes:
    """Routes of several topics at one moment."""

    by_topic: Mapping[str, TopicRoute]
    absent: Mapping[str, TopicNotFound] = field(default_factory=dict)
    """Topics that no living broker has; a retry topic is never here."""

    @cached_property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Every queue that consumers may read, sorted within its topic."""
        return tuple(
            queue for topic, route in self.by_topic.items() for queue in route.subscribe_queues(topic)
        )

    @cached_property
    def brokers(self) -> tuple[BrokerData, ...]:
        """Each broker of one of the topics, once for each form in which routes tell of it."""
        return tuple(broker for route in self.by_topic.values() for broker in route.brokers)

    @cached_property
    def masters(self) -> Mapping[str, BrokerAddress]:
        """Where the living masters are, by broker name in its order."""
        found = {broker.broker_name: broker.master for broker in self.brokers if broker.master is not None}
        return dict(sorted(found.items()))


class TopicRoutes:
    """Looks up the routes of ``topics``, and of ``retry_topic`` if there is one. For one thread."""

    def __init__(
        self, name_server: NameServerClient, topics: Collection[str], retry_topic: str | None, clock: Clock
    ) -> None:
        self._name_server = name_server
        self._topics = tuple(topic for topic in topics if topic != retry_topic)
        self._retry_topic = retry_topic
        self._clock = clock
        self._known = Routes({})
        self._retry_route: TopicRoute | None = None
        self._retry_again_s = 0.0
        self._retry_pause_s = _SOON_S

    def look(self, deadline: Deadline) -> Routes:
        """Routes at most 30 s old; the same object as before as long as they are the same.

        Raises:
            TransportError: If no name server answered before ``deadline`` and a route was not known.
        """
        found: dict[str, TopicRoute] = {}
        absent: dict[str, TopicNotFound] = {}
        for topic in self._topics:
            try:
                found[topic] = self._name_server.route(topic, deadline)
            except TopicNotFound as error:
                absent[topic] = error
        if self._retry_topic is not None:
            self._look_for_retries({name for route in found.values() for name in _names(route)}, deadline)
            if self._retry_route is not None:
                found[self._retry_topic] = self._retry_route
        if absent or self._known.absent or found != self._known.by_topic:
            self._known = Routes(found, absent)
        return self._known

    def follow(self, topics: Collection[str]) -> None:
        """From now on the routes are those of ``topics``."""
        self._topics = tuple(sorted(topic for topic in topics if topic != self._retry_topic))

    def invalidate(self) -> None:
        """Ask for every route anew: one led to a broker that is gone."""
        for topic in self._topics:
            self._name_server.invalidate(topic)
        if self._retry_topic is not None:
            self._name_server.invalidate(self._retry_topic)

    def _look_for_retries(self, brokers: Collection[str], deadline: Deadline) -> None:
        assert self._retry_topic is not None
        now_s = self._clock.monotonic_s()
        if self._retry_route is not None and _names(self._retry_route).issuperset(brokers):
            self._retry_pause_s = _SOON_S
        elif now_s < self._retry_again_s:
            return
        else:
            self._retry_again_s = now_s + self._retry_pause_s
            self._retry_pause_s = min(self._retry_pause_s * 2, _LATE_S)
            self._name_server.invalidate(self._retry_topic)
        try:
            self._retry_route = self._name_server.route(self._retry_topic, deadline)
        except RocketMQError:
            # Not there yet, or nobody to ask: nothing was given back, or what was is found a little later. The last
            # route holds.
            return


def _names(route: TopicRoute) -> frozenset[str]:
    return frozenset(broker.broker_name for broker in route.brokers)
