"""Asks name servers for routes of topics, which are kept for a while, and for the whole cluster."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pyspark_rocketmq.client.broker import command_of
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import (
    BrokerError,
    GoAway,
    NameServerNotReady,
    NoPermission,
    RocketMQError,
    SystemBusy,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.model import BrokerAddress, BrokerData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.namespace import with_namespace, without_namespace
from pyspark_rocketmq.wire.requests.admin import decode_cluster_info, decode_topic_list
from pyspark_rocketmq.wire.requests.headers import GetRouteInfoRequestHeader
from pyspark_rocketmq.wire.requests.responses import checked
from pyspark_rocketmq.wire.requests.topics import decode_route

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 1.0
"""How long a known route is used before it is asked for again, if the last answer was an error."""
_SILENT_S: Final = 30.0
"""How long a name server that did not answer is asked only if no other one answers."""


class KnownRoute(NamedTuple):
    """Last known route of a topic."""

    route: TopicRoute
    since_s: float
    is_expected: bool = False
    """Nobody has the topic yet: its first messages will make it so."""
    trouble: RocketMQError | None = None
    """Why the route is older than it should be; None if a name server gave it when last asked."""

    @property
    def denial(self) -> TopicNotFound | None:
        """The answer, if every name server that answered lately denied the topic."""
        return self.trouble if isinstance(self.trouble, TopicNotFound) else None


class NameServerClient:
    """Asks one name server as long as it answers, then the next one. Shared by any number of threads.

    The word of one name server is no verdict: one that denies a topic, or answers with an error, may have
    restarted, or may no longer be among those where the brokers register. Then the others are asked, and what
    was once known of a topic stays in force. Whether a topic was deleted, its brokers can say.

    Source: RocketMQ 5.3.3 ``NettyRemotingClient.getAndCreateNameserverChannel`` (sticky choice),
    ``MQClientInstance.updateTopicRouteInfoFromNameServer`` (refresh, keep the old route on failure and at
    TOPIC_NOT_EXIST).
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
        self._silent_until_s: dict[str, float] = {}
        """End of each silence, by address, for name servers that did not answer when last asked."""
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: what is known stays."""
        self._lock = threading.Lock()

    def route(self, topic: str, deadline: Deadline) -> TopicRoute:
        """Return the topic's route, at most ``route_max_age_s`` old.

        An older one is returned, rather than none, while no name server answers, and while all that answer
        deny the topic or return errors: brokers outlive name servers, and a name server denies a topic while
        its only broker restarts, and every topic from its own restart until brokers have registered again. A
        message that went elsewhere then would leave its key's queue.

        Raises:
            TopicNotFound: If all name servers that answered deny the topic and nothing was ever known of it.
            NameServerNotReady: If one of them answered with an error that may pass; no route was known.
            TransportError: If no name server answered before ``deadline`` and no route was known.
        """
        with self._lock:
            known = self._known.get(topic)
        if known is not None and self._clock.monotonic_s() - known.since_s < self._route_max_age_s:
            return known.route
        try:
            fresh = KnownRoute(self._look_up(topic, known, deadline), self._clock.monotonic_s())
        except RocketMQError as error:
            if known is None:
                raise
            fresh = self._kept(topic, known, error)
        with self._lock:
            self._known[topic] = fresh
        return fresh.route

    def denial(self, topic: str) -> TopicNotFound | None:
        """Why the route that :meth:`route` returned last is no name server's; None if it is one's."""
        known = self.last_known(topic)
        return None if known is None else known.denial

    def last_known(self, topic: str) -> KnownRoute | None:
        """Return the last known route of the topic, however old; asks nobody."""
        with self._lock:
            return self._known.get(topic)

    def invalidate(self, topic: str) -> None:
        """Ask for the topic's route again next time: it led to a broker that is gone or denies the topic.

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
        """Take ``route`` as if a name server had just sent it: another process has seen it."""
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
        """Return every living broker of the cluster, by name, as all name servers that answer know them.

        Raises:
            RocketMQError: If no name server answered before ``deadline``, or each one with an error.
        """
        answers = self._all_answers(command_of(RequestCode.GET_BROKER_CLUSTER_INFO), deadline)
        found: dict[str, BrokerData] = {}
        for answer in answers:
            for broker in decode_cluster_info(answer.body):
                found.setdefault(broker.broker_name, broker)
        return tuple(found[name] for name in sorted(found))

    def topics(self, deadline: Deadline) -> tuple[str, ...]:
        """Return every topic that a living broker has, sorted, RocketMQ's own among them.

        With a namespace: its topics only, named without it. All name servers that answer are asked.

        Raises:
            RocketMQError: If no name server answered before ``deadline``, or each one with an error.
        """
        answers = self._all_answers(command_of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), deadline)
        named = {topic for answer in answers for topic in decode_topic_list(answer.body)}
        bare = [(topic, without_namespace(self._namespace, topic)) for topic in named]
        return tuple(sorted(short for full, short in bare if not self._namespace or short != full))

    def _look_up(self, topic: str, known: KnownRoute | None, deadline: Deadline) -> TopicRoute:
        """Ask for a route, of one name server after the other until it has all brokers that were known."""
        header = GetRouteInfoRequestHeader(topic=with_namespace(self._namespace, topic))
        had = set() if known is None else set(_broker_names(known.route))
        routes: list[TopicRoute] = []
        failures: list[RocketMQError] = []
        for outcome in self._outcomes(command_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, header), deadline):
            if isinstance(outcome, RocketMQError):
                failures.append(outcome)
                continue
            routes.append(decode_route(outcome.body, topic))
            had.difference_update(_broker_names(routes[-1]))
            if not had:
                break
        if not routes:
            raise _verdict(failures)
        return _merged(routes)

    def _kept(self, topic: str, known: KnownRoute, error: RocketMQError) -> KnownRoute:
        """Return the known route, which holds for a while longer."""
        is_news = type(error) is not type(known.trouble)
        if isinstance(error, TopicNotFound):
            if is_news and not known.is_expected:
                logger.warning(
                    "the name server does not know the topic any more, going on with what was known topic=%s "
                    "brokers=%s: %s",
                    topic,
                    known.route.brokers_shown(),
                    error,
                )
        elif is_news or isinstance(error, TransportError):
            logger.warning("route not refreshed, going on with the known one topic=%s: %s", topic, error)
        since_s = self._clock.monotonic_s()
        if not isinstance(error, TransportError):
            since_s += _LOOK_AGAIN_S - self._route_max_age_s
        return known._replace(route=self._where_brokers_are(known), since_s=since_s, trouble=error)

    def _where_brokers_are(self, kept: KnownRoute) -> TopicRoute:
        """Return a route that no name server gives any more, with the addresses that newer ones have.

        A broker that is back at another address may have registered other topics only.
        """
        with self._lock:
            known = [each for each in self._known.values() if each.trouble is None and not each.is_expected]
        given = sorted((each for each in known if each.since_s > kept.since_s), key=lambda each: each.since_s)
        newest = {broker.broker_name: broker for each in given for broker in each.route.brokers}
        brokers = tuple(newest.get(broker.broker_name, broker) for broker in kept.route.brokers)
        return replace(kept.route, brokers=brokers)

    def _all_answers(self, request: RemotingCommand, deadline: Deadline) -> list[RemotingCommand]:
        outcomes = list(self._outcomes(request, deadline))
        answers = [outcome for outcome in outcomes if isinstance(outcome, RemotingCommand)]
        if not answers:
            raise _verdict([outcome for outcome in outcomes if isinstance(outcome, RocketMQError)])
        return answers

    def _outcomes(
        self, request: RemotingCommand, deadline: Deadline
    ) -> Generator[RemotingCommand | RocketMQError]:
        """Yield what each name server answers, the one that answered last first, as far as the caller asks.

        One that was silent lately is left out as soon as another one has answered anything.
        """
        count, first = len(self._addresses), self._current
        has_answer = has_success = False
        for turn in range(count):
            index = (first + turn) % count
            address = self._addresses[index]
            if has_answer and self._clock.monotonic_s() < self._silent_until_s.get(address, -math.inf):
                continue
            # A fair share of the time: one name server that hangs must leave some for the others.
            share_s = deadline.remaining_s() / (count - turn)
            own_deadline = Deadline.after(self._clock, min(self._request_timeout_s, share_s))
            outcome = self._ask(address, request, own_deadline)
            if isinstance(outcome, RemotingCommand) and not has_success:
                has_success, self._current = True, index
            has_answer = has_answer or not isinstance(outcome, TransportError)
            yield outcome

    def _ask(
        self, address: str, request: RemotingCommand, deadline: Deadline
    ) -> RemotingCommand | RocketMQError:
        try:
            answer = self._pool.get(address, deadline).request(request, deadline)
        except TransportError as error:
            logger.warning("name server does not answer address=%s: %s", address, error)
            self._silent_until_s[address] = self._clock.monotonic_s() + _SILENT_S
            return error
        self._silent_until_s.pop(address, None)
        try:
            return checked(request, answer, address)
        except BrokerError as error:
            if _is_plain(error):
                return error
            return NameServerNotReady(error.code, error.remark, request=error.request, address=error.address)


def _is_plain(error: BrokerError) -> bool:
    """Whether its class says all of it, unlike that of an error inside the name server, which may pass."""
    is_unsupported = error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return is_unsupported or isinstance(error, (TopicNotFound, NoPermission, SystemBusy, GoAway))


def _verdict(failures: Sequence[RocketMQError]) -> RocketMQError:
    """The error to raise: one that may pass before one that will not, an answer before none; the last one."""

    def weight(error: RocketMQError) -> int:
        if not isinstance(error, BrokerError):
            return 0
        return 3 if error.retryable else 1 if isinstance(error, TopicNotFound) else 2

    heaviest = max(map(weight, failures))
    return [error for error in failures if weight(error) == heaviest][-1]


def _broker_names(route: TopicRoute) -> set[str]:
    return {broker.broker_name for broker in route.brokers}


def _merged(routes: Sequence[TopicRoute]) -> TopicRoute:
    """The first route, with the brokers that only later ones have."""
    first, *others = routes
    for route in others:
        new = _broker_names(route) - _broker_names(first)
        first = replace(
            first,
            brokers=(*first.brokers, *(each for each in route.brokers if each.broker_name in new)),
            queues=(*first.queues, *(each for each in route.queues if each.broker_name in new)),
        )
    return first
