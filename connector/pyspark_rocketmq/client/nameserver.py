"""Ask name servers for routes of topics, which are cached, and for the whole cluster."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

from pyspark_rocketmq.client.calls import command_of
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import (
    BrokerError,
    GoAway,
    NameServerNotReady,
    NoPermission,
    RemoteProtocolError,
    RocketMQError,
    StaticTopic,
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
"""Seconds for which a known route is used after name servers answered with an error; then they are asked
again."""
_SILENT_S: Final = 30.0
"""Seconds for which a name server that did not answer is asked only if no other one answers."""


AnswerT = TypeVar("AnswerT")
"""Value that an answer's body holds."""


class KnownRoute(NamedTuple):
    """Last known route of a topic."""

    route: TopicRoute
    since_s: float
    """Monotonic second from which the route's age counts. A failed look-up also moves it, to use the route a
    while longer."""
    seen_s: float
    """Monotonic second at which a name server returned the route; a route seen later has newer addresses."""
    is_expected: bool = False
    """Whether no broker has the topic yet, and its first messages are expected to create it."""
    trouble: RocketMQError | None = None
    """Error of the last look-up, after which the route may be outdated; None if that look-up found it."""

    is_doubted: bool = False
    """Whether the route is known to lack a broker, so that all name servers are to be asked."""

    def usable_route(self) -> TopicRoute:
        """Return the route.

        Raises:
            StaticTopic: If the last look-up found that the topic has become static.
        """
        if isinstance(self.trouble, StaticTopic):
            raise self.trouble
        return self.route

    @property
    def denial(self) -> TopicNotFound | None:
        """The error, if every name server that answered the last look-up denied the topic; otherwise None."""
        return self.trouble if isinstance(self.trouble, TopicNotFound) else None


class NameServerClient:
    """Asks one name server for routes as long as it answers, then the next one; any thread may use it.

    A topic's first route has the brokers and masters that any name server lists. So all of them are asked for
    it, except those that were silent in the last 30 s if another one has answered.

    A name server *denies* a topic if it answers that it has no such topic. A name server that does so, or
    answers with another error, may just have restarted, or brokers may no longer register with it. So the
    others are asked, and a topic's last known route stays in use. Only a topic's brokers can show that the
    topic was deleted.

    A topic that was made again as a static one may still be an ordinary one at a name server that is behind.
    So a topic with a known route stays in use while any name server has an ordinary route.

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
        """Ask the name servers at ``addresses``."""
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
        """Monotonic second until which a name server that did not answer counts as silent, by address."""
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: keep all known routes, with a new lock."""
        self._lock = threading.Lock()

    def route(self, topic: str, deadline: Deadline) -> TopicRoute:
        """Return the topic's route, at most ``route_max_age_s`` old.

        An older route is returned while no name server answers, and while all that answer deny the topic or
        return errors. A denial proves little: a name server denies a topic while the topic's only broker
        restarts, and denies every topic after its own restart until brokers have registered again. A message
        that went to another broker in that time would leave its key's queue.

        Raises:
            StaticTopic: If the topic is static, even if a route was known; but then only if no name server
                that answers has an ordinary route.
            TopicNotFound: If all name servers that answered deny the topic, and no route was ever known.
            NameServerNotReady: If one of them answered with an error that may pass; no route was known.
            BrokerError: If one of them refused for another reason; no route was known.
            RemoteProtocolError: If no answer could be read, and no route was known.
            TransportError: If no name server answered before ``deadline`` and no route was known.
        """
        with self._lock:
            known = self._known.get(topic)
        if known is not None and self._clock.monotonic_s() - known.since_s < self._route_max_age_s:
            return known.usable_route()
        try:
            fresh = self._seen_now(self._look_up(topic, known, deadline))
        except RocketMQError as error:
            if known is None:
                raise
            fresh = self._kept(topic, known, error)
        with self._lock:
            self._known[topic] = fresh
        return fresh.usable_route()

    def masters_now(self, topic: str, broker_name: str, deadline: Deadline) -> frozenset[BrokerAddress]:
        """Return the addresses that name servers list now as the master of a broker of the topic.

        Name servers may list different ones: each RocketMQ Proxy lists itself.

        Raises:
            RocketMQError: If none of them lists the topic, or none answers; or if the topic is static.
        """
        routes = self._routes(topic, None, deadline)
        masters = (route.master_of(broker_name) for route in routes)
        return frozenset(master for master in masters if master is not None)

    def denial(self, topic: str) -> TopicNotFound | None:
        """Return the error with which name servers deny a topic whose known route stays in use; else None."""
        known = self.last_known(topic)
        return None if known is None else known.denial

    def last_known(self, topic: str) -> KnownRoute | None:
        """Return the last known route of the topic, however old, without a request."""
        with self._lock:
            return self._known.get(topic)

    def invalidate(self, topic: str, *, is_doubted: bool = False) -> None:
        """Let the next :meth:`route` ask for the topic's route again, however young the known one is.

        Callers use this when the route led to a broker that is gone or denies the topic. The known route is
        kept in case no name server answers.
        """
        with self._lock:
            known = self._known.get(topic)
            if known is not None:
                self._known[topic] = known._replace(since_s=-math.inf, is_doubted=is_doubted)

    def expect(self, topic: str, route: TopicRoute) -> None:
        """Use ``route`` for a topic that its first messages will create; the route expires like any other."""
        with self._lock:
            self._known[topic] = self._seen_now(route)._replace(is_expected=True)

    def know(self, topic: str, route: TopicRoute) -> None:
        """Use ``route``, which another process has seen, as if a name server had just sent it."""
        with self._lock:
            self._known[topic] = self._seen_now(route)

    def known_master(self, broker_name: str) -> BrokerAddress | None:
        """Return the master's address from the newest route that has the broker, without a request.

        Source: RocketMQ 5.3.3 ``MQClientInstance.findBrokerAddressInPublish``.
        """
        with self._lock:
            newest_first = sorted(self._known.values(), key=lambda known: known.seen_s, reverse=True)
        masters = (known.route.master_of(broker_name) for known in newest_first)
        return next((master for master in masters if master is not None), None)

    def brokers(self, deadline: Deadline) -> tuple[BrokerData, ...]:
        """Return all living brokers that any answering name server lists, sorted by name.

        A broker has the addresses from the first name server that lists its master, if one does. A name
        server that was silent lately is asked only if no other one answers.

        Raises:
            RocketMQError: If no name server answered before ``deadline``, or each one with an error.
        """
        request = command_of(RequestCode.GET_BROKER_CLUSTER_INFO)
        found: dict[str, BrokerData] = {}
        for brokers in self._all_answers(request, decode_cluster_info, deadline):
            for broker in brokers:
                if found.setdefault(broker.broker_name, broker).master is None:
                    found[broker.broker_name] = broker
        return tuple(found[name] for name in sorted(found))

    def topics(self, deadline: Deadline) -> tuple[str, ...]:
        """Return every topic that a living broker has, sorted, including RocketMQ's own.

        With a namespace, return only the namespace's topics, named without it. A name server that was silent
        lately is asked only if no other one answers.

        Raises:
            RocketMQError: If no name server answered before ``deadline``, or each one with an error.
        """
        request = command_of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answers = self._all_answers(request, decode_topic_list, deadline)
        named = {topic for topics in answers for topic in topics}
        bare = [(topic, without_namespace(self._namespace, topic)) for topic in named]
        return tuple(sorted(short for full, short in bare if not self._namespace or short != full))

    def _seen_now(self, route: TopicRoute) -> KnownRoute:
        now_s = self._clock.monotonic_s()
        return KnownRoute(route, since_s=now_s, seen_s=now_s)

    def _look_up(self, topic: str, known: KnownRoute | None, deadline: Deadline) -> TopicRoute:
        """Ask one name server after the other for the route, and return their answers merged into one."""
        return _merged(self._routes(topic, known, deadline))

    def _routes(self, topic: str, known: KnownRoute | None, deadline: Deadline) -> list[TopicRoute]:
        """Ask one name server after the other for the route, and return their answers.

        No further name server is asked once the answers have all brokers of the ``known`` route, each with
        its master and a queue to write to. Without a known route, all name servers are asked that were not
        silent lately: one that has just restarted may lack brokers, and nothing would show that they are
        missing.
        """
        header = GetRouteInfoRequestHeader(topic=with_namespace(self._namespace, topic))
        request = command_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        asks_all = known is None or known.is_doubted
        missing = set() if known is None else _marks_of_all(known.route)
        routes: list[TopicRoute] = []
        failures: list[RocketMQError] = []
        for outcome in self._outcomes(request, lambda body: decode_route(body, topic), deadline):
            if isinstance(outcome, RocketMQError):
                failures.append(outcome)
                continue
            routes.append(outcome)
            missing -= _listed(outcome)
            if not asks_all and not missing:
                break
        if not routes:
            raise _verdict(failures)
        if static := [error for error in failures if isinstance(error, StaticTopic)]:
            if known is None:
                raise static[0]
            logger.warning("another name server has an ordinary route, which is used: %s", static[0])
        return routes

    def _kept(self, topic: str, known: KnownRoute, error: RocketMQError) -> KnownRoute:
        """Return a known route that could not be refreshed, to be used for a while longer; log the reason.

        If name servers answered with an error, they are asked again after 1 s; if none answered, after the
        maximum age of a route.
        """
        is_news = type(error) is not type(known.trouble)
        if isinstance(error, TopicNotFound):
            if is_news and not known.is_expected:
                logger.warning(
                    "the name server no longer has the topic, keeping the known route topic=%s "
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
        """Return a route that could not be refreshed, with its brokers' newer addresses.

        The addresses are taken from other topics' routes: a broker that restarted at another address may
        have registered only those topics so far.
        """
        with self._lock:
            known = [each for each in self._known.values() if not each.is_expected]
        newer = sorted((each for each in known if each.seen_s > kept.seen_s), key=lambda each: each.seen_s)
        newest = {broker.broker_name: broker for each in newer for broker in each.route.brokers}
        brokers = tuple(newest.get(broker.broker_name, broker) for broker in kept.route.brokers)
        return replace(kept.route, brokers=brokers)

    def _all_answers(
        self, request: RemotingCommand, read: Callable[[bytes], AnswerT], deadline: Deadline
    ) -> list[AnswerT]:
        outcomes = list(self._outcomes(request, read, deadline))
        answers = [outcome for outcome in outcomes if not isinstance(outcome, RocketMQError)]
        if not answers:
            raise _verdict([outcome for outcome in outcomes if isinstance(outcome, RocketMQError)])
        return answers

    def _outcomes(
        self, request: RemotingCommand, read: Callable[[bytes], AnswerT], deadline: Deadline
    ) -> Generator[AnswerT | RocketMQError]:
        """Ask one name server after the other, beginning with the current one, and yield the outcome of each.

        The outcome is what ``read`` finds in the answer's body, or an error.

        A name server that was silent lately is left out if another one has already answered anything.
        """
        count, first = len(self._addresses), self._current
        has_answer = has_success = False
        for turn in range(count):
            index = (first + turn) % count
            address = self._addresses[index]
            if has_answer and self._clock.monotonic_s() < self._silent_until_s.get(address, -math.inf):
                continue
            # Share the time: a name server that hangs must leave some for the others and for the next call.
            share_s = deadline.remaining_s() / (count - turn + has_success)
            own_deadline = Deadline.after(self._clock, min(self._request_timeout_s, share_s))
            outcome = self._ask(address, request, read, own_deadline)
            if not isinstance(outcome, RocketMQError) and not has_success:
                has_success, self._current = True, index
            has_answer = has_answer or not isinstance(outcome, TransportError)
            yield outcome

    def _ask(
        self, address: str, request: RemotingCommand, read: Callable[[bytes], AnswerT], deadline: Deadline
    ) -> AnswerT | RocketMQError:
        try:
            answer = self._pool.get(address, deadline).request(request, deadline)
        except TransportError as error:
            logger.warning("name server does not answer address=%s: %s", address, error)
            self._silent_until_s[address] = self._clock.monotonic_s() + _SILENT_S
            return error
        self._silent_until_s.pop(address, None)
        try:
            return read(checked(request, answer, address).body)
        except BrokerError as error:
            if _is_plain(error):
                return error
            return NameServerNotReady(error.code, error.remark, request=error.request, address=error.address)
        except RemoteProtocolError as error:
            return RemoteProtocolError(f"The answer of {address} cannot be read: {error}")
        except StaticTopic as error:
            return error


def _is_plain(error: BrokerError) -> bool:
    """Return whether an error's code names its cause; any other code may mean a fault that passes."""
    is_unsupported = error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return is_unsupported or isinstance(error, (TopicNotFound, NoPermission, SystemBusy, GoAway))


def _verdict(failures: Sequence[RocketMQError]) -> RocketMQError:
    """Return the error to raise of several failures: the last one of the most important kind.

    The order of importance is: ``StaticTopic``, retryable errors in answers, other errors in answers and
    answers that cannot be read, ``TopicNotFound``, no answer.
    """

    def weight(error: RocketMQError) -> int:
        if isinstance(error, TransportError):
            return 0
        if isinstance(error, StaticTopic):
            return 4
        return 3 if error.retryable else 1 if isinstance(error, TopicNotFound) else 2

    heaviest = max(map(weight, failures))
    return [error for error in failures if weight(error) == heaviest][-1]


class _Mark(Enum):
    """Fact about a broker that a route shows; each includes those before it."""

    LISTED = auto()
    WITH_MASTER = auto()
    """A master is listed. It may be a slave (``supportActingMaster``) if no queue can be written to."""
    WRITABLE = auto()
    """The listed master has a queue to write to, so it is no slave.

    Source: ``RouteInfoManager.pickupTopicRouteData``."""


def _listed(route: TopicRoute) -> set[tuple[str, _Mark]]:
    """Return a pair of name and mark for each mark that a broker has in the route."""
    written = {data.broker_name for data in route.queues if data.is_writable}
    return {
        (broker.broker_name, mark)
        for broker in route.brokers
        for mark in _Mark
        if mark is _Mark.LISTED or broker.master is not None
        if mark is not _Mark.WRITABLE or broker.broker_name in written
    }


def _marks_of_all(route: TopicRoute) -> set[tuple[str, _Mark]]:
    """Return all marks for each broker of the route, although it may lack some of them there.

    Its master may have registered since, perhaps at only one of the name servers.
    """
    return {(broker.broker_name, mark) for broker in route.brokers for mark in _Mark}


def _merged(routes: Sequence[TopicRoute]) -> TopicRoute:
    """Return the first route, with the brokers or masters that it lacks from later ones.

    A broker whose master is only in a later route has that route's addresses and queues: at a name server
    where only the replica has registered, its queues may be read-only, and the replica may be listed as
    master.
    """
    first, *others = routes
    for route in others:
        better = {name for name, _ in _listed(route) - _listed(first)}
        first = replace(
            first,
            brokers=(
                *(each for each in first.brokers if each.broker_name not in better),
                *(each for each in route.brokers if each.broker_name in better),
            ),
            queues=(
                *(each for each in first.queues if each.broker_name not in better),
                *(each for each in route.queues if each.broker_name in better),
            ),
        )
    return first
