"""The demo's topic: eight queues, spread over the brokers of whatever cluster is there."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from jobs.errors import JobFailed
from pyspark_rocketmq.client.admin import AdminClient
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import process_pool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import TopicNotFound
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, TopicRoute
from pyspark_rocketmq.wire.requests.send import AUTO_CREATE_TOPIC

QUEUES = 8
_REQUEST_TIMEOUT_S = 5.0
_ROUTE_TIMEOUT_S = 40.0
"""A broker tells the name server about a new topic at once, or else with its next heartbeat, every 30 s."""
_ROUTE_POLL_S = 0.1


def share_queues(broker_names: Collection[str], queues: int) -> dict[str, int]:
    """How many of ``queues`` each broker gets: as even as can be, the first ones more; none gets no entry."""
    each, more = divmod(queues, len(broker_names))
    shares = {name: each + (place < more) for place, name in enumerate(sorted(broker_names))}
    return {name: share for name, share in shares.items() if share}


class DemoTopic:
    """Makes sure of the topic, on the cluster behind ``name_servers``."""

    def __init__(self, topic: str, name_servers: Sequence[str]) -> None:
        self._topic = topic
        self._clock = SystemClock()
        pool = process_pool()
        self._name_server = NameServerClient(tuple(name_servers), pool, self._clock, _REQUEST_TIMEOUT_S)
        self._brokers = BrokerClient(pool, self._clock, _REQUEST_TIMEOUT_S)
        self._admin = AdminClient(pool, self._clock, _REQUEST_TIMEOUT_S)

    def ensure(self) -> tuple[MessageQueue, ...]:
        """Make the topic if it is missing; return its queues.

        Raises:
            JobFailed: If it holds messages already, cannot be made, or does not appear in the route.
            TransportError: If the cluster cannot be reached.
        """
        try:
            route = self._route(self._topic)
        except TopicNotFound:
            self._create()
            route = self._await_route()
        self._check_empty(route)
        return route.publish_queues(self._topic)

    def _create(self) -> None:
        try:
            # Every broker that lets topics be made has the template.
            route = self._route(AUTO_CREATE_TOPIC)
        except TopicNotFound as error:
            raise JobFailed(
                f"No broker of this cluster makes topics by itself, so the demo cannot find where to make "
                f"'{self._topic}'. Make an empty topic with mqadmin updateTopic and name it: --option topic=…"
            ) from error
        for broker_name, share in share_queues(_masters(route), QUEUES).items():
            self._admin.create_topic(_masters(route)[broker_name], self._topic, share)

    def _await_route(self) -> TopicRoute:
        deadline = Deadline.after(self._clock, _ROUTE_TIMEOUT_S)
        while not deadline.has_passed:
            self._name_server.invalidate(self._topic)
            try:
                route = self._route(self._topic)
            except TopicNotFound:
                route = None
            if route is not None and len(route.publish_queues(self._topic)) >= QUEUES:
                return route
            time.sleep(_ROUTE_POLL_S)
        raise JobFailed(
            f"Topic '{self._topic}' was made, but the name server does not know its {QUEUES} queues after "
            f"{_ROUTE_TIMEOUT_S:g} s; check that every broker of the cluster can reach the name server."
        )

    def _check_empty(self, route: TopicRoute) -> None:
        stored = sum(
            bounds.max_offset
            for address in _masters(route).values()
            for bounds in self._brokers.topic_stats(address, self._topic).values()
        )
        if stored:
            raise JobFailed(
                f"Topic '{self._topic}' has held {stored} messages already, and the demo counts its own; "
                "give a new name, or leave option 'topic' out."
            )

    def _route(self, topic: str) -> TopicRoute:
        return self._name_server.route(topic, Deadline.after(self._clock, _REQUEST_TIMEOUT_S))


def _masters(route: TopicRoute) -> Mapping[str, BrokerAddress]:
    return {broker.broker_name: broker.master for broker in route.brokers if broker.master is not None}
