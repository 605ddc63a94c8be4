"""What name servers know: routes of topics, kept for a while, and the whole cluster."""

from __future__ import annotations

import logging
import math
import threading
from typing import Final, NamedTuple

from pyspark_rocketmq.client.broker import command_of
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import TopicNotFound, TransportError
from pyspark_rocketmq.model import BrokerAddress, BrokerData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.namespace import with_namespace, without_namespace
from pyspark_rocketmq.wire.requests.admin import decode_cluster_info, decode_topic_list
from pyspark_rocketmq.wire.requests.headers import GetRouteInfoRequestHeader
from pyspark_rocketmq.wire.requests.responses import checked
from pyspark_rocketmq.wire.requests.topics import decode_route

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 1.0
"""How long a route is trusted that the name server denied when it was last asked."""


class KnownRoute(NamedTuple):
    """What a client last knew of a topic."""

    route: TopicRoute
    since_s: float
    is_expected: bool = False
    """Nobody has the topic yet: its first messages will make it so."""
    is_denied: bool = False
    """When the name server was last asked, no living broker had the topic."""


class NameServerClient:
    """Asks one name server as long as it answers, then the next one. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``NettyRemotingClient.getAndCreateNameserverChannel`` (sticky choice),
    ``MQClientInstance.updateTopicRouteInfoFromNameServer`` (refresh, keep the old route on failure).
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        pool: ChannelPool,
        clock: Clock,
        request_timeout_s: float = 3.0,
        route_max_age_s: float = 30.0,
        *,
        namespace: str = "",
    ) -> None:
        if not addresses:
            raise ValueError("A name server client needs at least one address.")
        self._addresses = addresses
        self._pool = pool
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._route_max_age_s = route_max_age_s
        self._namespace = namespace
        self._lock = threading.Lock()
        self._current = 0
        self._known: dict[str, KnownRoute] = {}
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: what is known stays."""
        self._lock = threading.Lock()

    def route(self, topic: str, deadline: Deadline) -> TopicRoute:
        """The topic's route, at most ``route_max_age_s`` old.

        While no name server answers, an older route is given rather than none: brokers outlive name servers.

        Raises:
            TopicNotFound: If no living broker has the topic.
            TransportError: If no name server answered before ``deadline`` and no route was known.
        """
        with self._lock:
            known = self._known.get(topic)
        if known is not None and self._clock.monotonic_s() - known.since_s < self._route_max_age_s:
            return known.route
        header = GetRouteInfoRequestHeader(topic=with_namespace(self._namespace, topic))
        request = command_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        try:
            route = decode_route(self._answer(request, deadline).body, topic)
        except TransportError as error:
            if known is None:
                raise
            logger.warning("route not refreshed, going on with the known one topic=%s: %s", topic, error)
            fresh = known._replace(since_s=self._clock.monotonic_s())
        else:
            fresh = KnownRoute(route, self._clock.monotonic_s())
        with self._lock:
            self._known[topic] = fresh
        return fresh.route

    def lasting_route(self, topic: str, deadline: Deadline) -> TopicRoute:
        """The route for sending: as :meth:`route`, but what was ever known of the topic is kept.

        A name server denies a topic while its only broker restarts, and every topic from its own restart
        until brokers have registered again. A message that went elsewhere then would leave its key's queue.

        Raises:
            TopicNotFound: If no living broker has the topic and nothing was ever known of it.
            TransportError: As :meth:`route`.

        Source: RocketMQ 5.3.3 ``MQClientInstance.updateTopicRouteInfoFromNameServer``, which changes nothing
        at TOPIC_NOT_EXIST.
        """
        try:
            return self.route(topic, deadline)
        except TopicNotFound as error:
            with self._lock:
                known = self._known.get(topic)
                if known is None:
                    raise
                since_s = self._clock.monotonic_s() - self._route_max_age_s + _LOOK_AGAIN_S
                self._known[topic] = known._replace(since_s=since_s, is_denied=True)
            if not known.is_denied and not known.is_expected:
                logger.warning(
                    "the name server does not know the topic any more, going on with what was known topic=%s "
                    "brokers=%s: %s",
                    topic,
                    known.route.brokers_shown(),
                    error,
                )
            return known.route

    def last_known(self, topic: str) -> KnownRoute | None:
        """What is remembered of the topic, however old; asks nobody."""
        with self._lock:
            return self._known.get(topic)

    def invalidate(self, topic: str) -> None:
        """Ask for the topic's route anew next time: it led to a broker that is gone or denies the topic.

        It is kept for the case that no name server answers then.
        """
        with self._lock:
            known = self._known.get(topic)
            if known is not None:
                self._known[topic] = known._replace(since_s=-math.inf)

    def expect(self, topic: str, route: TopicRoute) -> None:
        """Give ``route`` for a topic that its first messages will make, until it is as old as any other."""
        with self._lock:
            self._known[topic] = KnownRoute(route, self._clock.monotonic_s(), is_expected=True)

    def know(self, topic: str, route: TopicRoute) -> None:
        """Take ``route`` as if a name server had just told it: another process has seen it."""
        with self._lock:
            self._known[topic] = KnownRoute(route, self._clock.monotonic_s())

    def known_master(self, broker_name: str) -> BrokerAddress | None:
        """Where a route of any topic says that the broker's master is; asks nobody.

        Source: RocketMQ 5.3.3 ``MQClientInstance.findBrokerAddressInPublish``.
        """
        with self._lock:
            newest_first = sorted(self._known.values(), key=lambda known: known.since_s, reverse=True)
        masters = (known.route.master_of(broker_name) for known in newest_first)
        return next((master for master in masters if master is not None), None)

    def brokers(self, deadline: Deadline) -> tuple[BrokerData, ...]:
        """Every living broker of the cluster, by name; asked anew at each call.

        Raises:
            TransportError: If no name server answered before ``deadline``.
        """
        answer = self._answer(command_of(RequestCode.GET_BROKER_CLUSTER_INFO), deadline)
        return decode_cluster_info(answer.body)

    def topics(self, deadline: Deadline) -> tuple[str, ...]:
        """Every topic that a living broker has, sorted, RocketMQ's own among them; asked anew at each call.

        With a namespace: its topics only, named without it.

        Raises:
            TransportError: If no name server answered before ``deadline``.
        """
        answer = self._answer(command_of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), deadline)
        named = decode_topic_list(answer.body)
        bare = [(topic, without_namespace(self._namespace, topic)) for topic in named]
        return tuple(sorted(short for full, short in bare if not self._namespace or short != full))

    def _answer(self, request: RemotingCommand, deadline: Deadline) -> RemotingCommand:
        """The answer of the first name server that gives one."""
        first = self._current
        failure: TransportError | None = None
        for turn in range(len(self._addresses)):
            index = (first + turn) % len(self._addresses)
            address = self._addresses[index]
            # A fair share of the time: one name server that hangs must leave some for the others.
            share_s = deadline.remaining_s() / (len(self._addresses) - turn)
            own_deadline = Deadline.after(self._clock, min(self._request_timeout_s, share_s))
            try:
                answer = self._pool.get(address, own_deadline).request(request, own_deadline)
            except TransportError as error:
                logger.warning("name server does not answer address=%s: %s", address, error)
                failure = error
                continue
            self._current = index
            return checked(request, answer, address)
        assert failure is not None
        raise failure
