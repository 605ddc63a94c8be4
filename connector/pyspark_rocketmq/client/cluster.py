"""One cluster as given by options: its clients, its topics' routes, and parallel calls to brokers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import ClassVar, Final, TypeVar

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool, ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import (
    NoWritableQueue,
    RocketMQError,
    StaticTopic,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue, TopicRoute
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP, ConnectionOptions
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.subscription import Subscription
from pyspark_rocketmq.retry import UNTIL_DEADLINE, RetryPolicy, call_with_retry
from pyspark_rocketmq.wire.messages import decode_stored_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullStatus
from pyspark_rocketmq.wire.subscription import SubscriptionData, build_subscription, expression_type

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECTING: Final = RetryPolicy(attempts=3, first_pause_s=0.5, max_pause_s=0.5)
"""Retries while connecting: a wrong address soon ends in an error, a single broken connection does not."""
_SOON_S: Final = 1.0
_LATE_S: Final = 30.0
"""Pauses between look-ups of a retry topic that is not on all brokers yet; they grow from ``_SOON_S`` to
``_LATE_S`` seconds. A broker creates the topic at the group's first heartbeat, or never if rights are
missing."""

SILENT_TIMEOUT_S: Final = 1.0
"""Time-out, in seconds, of a call to a broker that did not answer lately: short, so that micro-batches hardly
wait for this broker."""
_SILENT_S: Final = 30.0
"""Seconds for which calls to a broker that did not answer have only the time-out ``SILENT_TIMEOUT_S``."""


class SilentBrokers:
    """Names of brokers that failed to answer in the last 30 s.

    Callers use the time-out ``SILENT_TIMEOUT_S`` for such a broker, or send it no request.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return self._clock.monotonic_s() < self._until_s.get(name, 0.0)

    def add(self, name: str) -> None:
        """Note that a broker did not answer a call that had the usual time-out, not ``SILENT_TIMEOUT_S``."""
        self._until_s[name] = self._clock.monotonic_s() + _SILENT_S

    def discard(self, name: str) -> None:
        """Note that a broker has answered."""
        self._until_s.pop(name, None)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster as given by options; creates the clients that talk to it."""

    name_servers: tuple[str, ...]
    pool: ChannelPool
    clock: Clock
    timeout_s: float
    """Time-out of one call, in seconds."""
    namespace: str = ""

    @classmethod
    def of(
        cls,
        options: ConnectionOptions,
        clock: Clock,
        *,
        pool: ChannelPool | None = None,
        at_most_s: float = math.inf,
    ) -> Cluster:
        """Return the cluster of a source's or a sink's options.

        Args:
            options: How to reach the cluster.
            clock: The system's, except in tests.
            pool: Connections to use; by default those of this process for these options.
            at_most_s: Upper bound of the options' time-out of a call.
        """
        return cls(
            options.name_servers,
            pool or process_pool(ConnectionSettings.of(options)),
            clock,
            min(options.request_timeout_ms / 1000, at_most_s),
            options.namespace or "",
        )

    def name_server(self, route_max_age_s: float = 30.0) -> NameServerClient:
        """Return a client of the name servers; routes are remembered for ``route_max_age_s``."""
        return NameServerClient(
            self.name_servers,
            self.pool,
            self.clock,
            self.timeout_s,
            route_max_age_s,
            namespace=self.namespace,
        )

    def brokers(self, at_most_s: float = math.inf) -> BrokerClient:
        """Return a client of the brokers; the time-out of its calls is at most ``at_most_s``."""
        timeout_s = min(self.timeout_s, at_most_s)
        return BrokerClient(self.pool, self.clock, timeout_s, namespace=self.namespace)

    def routes(self, options: ReadOptions, name_server: NameServerClient | None = None) -> TopicRoutes:
        """Return an object that looks up the routes of the topics in ``options``, and of the retry topic.

        Only one thread may use it.
        """
        names = name_server or self.name_server()
        return TopicRoutes(names, options.subscribed(), options.retry_topic(), self.clock)


def subscription_data(wanted: Subscription, *, sub_version: int) -> SubscriptionData:
    """Return the subscription in the form that heartbeats, and checks of expressions by brokers, need."""
    kind = expression_type(is_sql92=wanted.is_sql92)
    return build_subscription(wanted.topic, wanted.expression, sub_version=sub_version, expression_type=kind)


def run_concurrently(calls: Sequence[Callable[[], T]], *, at_most: int = 64) -> list[T]:
    """Make the calls on several threads, and return their results in the order of ``calls``.

    This thread and up to ``at_most - 1`` others make them, so a slow call does not delay the others while
    threads are left. Each call must end by its own deadline. A process that is about to end starts no threads
    (Python 3.12 and later): then this thread makes all calls.

    After a call has raised, no other call is begun. Once the calls under way have ended, the error is raised;
    of several errors, that of the first call in ``calls``.
    """
    outcomes: list[Future[T]] = [Future() for _ in calls]
    left = deque(zip(calls, outcomes, strict=True))

    def make_calls() -> None:
        # Another thread may take the last call first.
        with suppress(IndexError):
            while True:
                call, outcome = left.popleft()
                try:
                    outcome.set_result(call())
                except BaseException as error:  # noqa: BLE001 - the caller raises it
                    left.clear()
                    outcome.set_exception(error)

    started: list[threading.Thread] = []
    with suppress(RuntimeError):
        for _ in range(min(len(calls), at_most) - 1):
            thread = threading.Thread(target=make_calls, name="rocketmq-call", daemon=True)
            thread.start()
            started.append(thread)
    make_calls()
    for thread in started:
        thread.join()
    for each in outcomes:
        if each.done():
            each.result()
    return [each.result() for each in outcomes]


def stored_at_s(
    brokers: BrokerClient, address: BrokerAddress, queue: MessageQueue, queue_offset: int
) -> float | None:
    """Return the wall-clock second at which the first message from ``queue_offset`` on was stored.

    Return None if the broker returns no message, for example because it no longer has that offset. The
    function pulls one message, and changes no group's offsets.

    Raises:
        RocketMQError: If the broker does not answer in time, or refuses.
    """
    request = PullRequest(
        consumer_group=PLAIN_SOURCE_GROUP, queue=queue, queue_offset=queue_offset, max_msg_nums=1
    )
    pulled = brokers.pull(address, request)
    if pulled.status is not PullStatus.FOUND:
        return None
    # Bodies are not decompressed: a damaged message also has a time of storage.
    messages = decode_stored_messages(pulled.body)
    times = [one.store_timestamp for one in messages if one.queue_offset >= queue_offset]
    return times[0] / 1000 if times else None


def at_brokers(names: Collection[str], ask: Callable[[str], T]) -> dict[str, T]:
    """Call ``ask`` with each broker name, on several threads; return the answers by broker name.

    After a call has raised, no other one is begun; the error is raised when the calls under way have ended.
    """
    return dict(zip(names, run_concurrently([partial(ask, name) for name in names]), strict=True))


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Return the queues of each broker, sorted, by broker name."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.broker_name, []).append(queue)
    return found


def at_queues(queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], T]) -> dict[MessageQueue, T]:
    """Return the answer of ``ask`` for each queue: brokers in parallel, queues of a broker one after another.

    After a call has raised, its broker is not asked again, and no further broker is asked. The error is
    raised when all queues of the brokers that are already being asked have been answered.
    """
    some_of = by_broker(queues)

    def ask_one_broker(name: str) -> dict[MessageQueue, T]:
        return {queue: ask(queue) for queue in some_of[name]}

    answers = at_brokers(some_of.keys(), ask_one_broker)
    return {queue: answer for each in answers.values() for queue, answer in each.items()}


def outcomes_at_queues(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], T]
) -> dict[MessageQueue, T | RocketMQError]:
    """Return the answer of ``ask``, or its RocketMQError, for each queue.

    Brokers are asked in parallel, queues of a broker one after another. A broker that does not answer
    (``TransportError``) is not asked again: its remaining queues get the same error. After any other
    RocketMQError the broker's next queue is asked.
    """
    some_of = by_broker(queues)

    def ask_one_broker(name: str) -> dict[MessageQueue, T | RocketMQError]:
        found: dict[MessageQueue, T | RocketMQError] = {}
        silence: RocketMQError | None = None
        for queue in some_of[name]:
            if silence is not None:
                found[queue] = silence
                continue
            try:
                found[queue] = ask(queue)
            except RocketMQError as error:
                found[queue] = error
                if isinstance(error, TransportError):
                    silence = error
        return found

    answers = at_brokers(some_of.keys(), ask_one_broker)
    return {queue: answer for each in answers.values() for queue, answer in each.items()}


class _NotThere(TopicNotFound):
    retryable: ClassVar[bool] = True


def _is_of_transport(error: RocketMQError) -> bool:
    return error.retryable and isinstance(error, TransportError)


def _is_no_denial(error: RocketMQError) -> bool:
    return error.retryable and not isinstance(error, _NotThere)


@dataclass(slots=True)
class PatientLookup:
    """Finds the queues of topics for one producer, and waits for topics that seem to be missing.

    A topic that the producer has never seen may be new, or its brokers may be restarting. If another broker
    created it in the second case, sharding keys would move to that broker. So the topic is looked up again
    until ``timeout_s`` is over, and only then may brokers create it. Messages without keys go
    immediately to brokers that create topics; they wait only if there are no such brokers.

    For one thread.
    """

    producer: Producer
    clock: Clock
    timeout_s: float
    """Seconds for which one topic is looked up again: while servers are not ready, then while the topic is
    missing."""
    sleep: Callable[[float], object] = time.sleep
    has_keys: bool = True
    """Whether the messages have sharding keys or given queues. If not, a missing topic is waited for only if
    brokers do not create topics."""
    has_worked: bool = False
    """Whether name servers have ever answered the query, so that their addresses are right; also set by the
    first topic that is found. They are then waited for if they do not answer."""

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the topic's queues to write to; look again for ``timeout_s`` while it seems to be missing.

        If the topic is still missing after that, return the queues that brokers will create
        (:meth:`Producer.queues`). The topic is also looked up again for ``timeout_s`` if name servers answer
        with an error that may pass, or list no living master. If no name server answers, they are asked three
        times, or for ``timeout_s`` if ``has_worked``.

        Raises:
            RocketMQError: If the last look-up failed, or an earlier one with an error that does not pass.
        """
        try:
            found = self._try(topic, _CONNECTING, _is_of_transport)
        except RocketMQError as error:
            if not error.retryable or (isinstance(error, TransportError) and not self.has_worked):
                raise
            found = self._wait(topic, error)
        self.has_worked = True
        return found

    def _wait(self, topic: str, error: RocketMQError) -> tuple[MessageQueue, ...]:
        if not isinstance(error, _NotThere):
            what = "a master" if isinstance(error, NoWritableQueue) else "a name server"
            logger.warning("waiting up to %g s for %s topic=%s: %s", self.timeout_s, what, topic, error)
            # A topic may be missing just after that. It then has all of timeout_s to come back.
            with suppress(_NotThere):
                return self._try(topic, UNTIL_DEADLINE, _is_no_denial)
        logger.warning(
            "topic is not there, looking for it up to %g s before a broker may create it: the brokers "
            "that have it may be restarting, and a created topic would get its sharding keys meanwhile. "
            "Create new topics before writing to them, or lower retryTimeoutMs. topic=%s",
            self.timeout_s,
            topic,
        )
        try:
            return self._try(topic, UNTIL_DEADLINE, attrgetter("retryable"))
        except _NotThere:
            return self.producer.queues(topic)

    def _try(
        self, topic: str, policy: RetryPolicy, is_tried_again: Callable[[RocketMQError], bool]
    ) -> tuple[MessageQueue, ...]:
        deadline = Deadline.after(self.clock, self.timeout_s)
        return call_with_retry(
            lambda: self._look(topic), policy, deadline, self.sleep, is_tried_again=is_tried_again
        )

    def _look(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return self.producer.queues(topic, may_create=not self.has_keys)
        except TopicNotFound as error:
            raise _NotThere(error.code, error.remark, request=error.request, address=error.address) from error


@dataclass(frozen=True)
class Routes:
    """Routes of several topics at one moment."""

    by_topic: Mapping[str, TopicRoute]
    absent: Mapping[str, TopicNotFound] = field(default_factory=dict)
    """Topics that no name server lists and that have no known route, with the error; never a retry topic."""
    denied: Mapping[str, TopicNotFound] = field(default_factory=dict)
    """Topics that no name server lists now, with the error; their last known routes stay in use."""
    static: Mapping[str, StaticTopic] = field(default_factory=dict)
    """Topics that have become static, with the error; ``by_topic`` has their last known routes."""

    @cached_property
    def queues(self) -> tuple[MessageQueue, ...]:
        """All queues that consumers may read, sorted within their topics."""
        routes = self.by_topic.items()
        return tuple(queue for topic, route in routes for queue in route.subscribe_queues(topic))

    @cached_property
    def brokers(self) -> tuple[BrokerData, ...]:
        """The brokers of each topic; a broker occurs once for each of its topics."""
        return tuple(broker for route in self.by_topic.values() for broker in route.brokers)

    @cached_property
    def masters(self) -> Mapping[str, BrokerAddress]:
        """Addresses of the living masters by broker name, in alphabetical order."""
        found = {broker.broker_name: broker.master for broker in self.brokers if broker.master is not None}
        return dict(sorted(found.items()))

    @cached_property
    def read_only(self) -> Mapping[str, BrokerAddress]:
        """Addresses of the masters of brokers that have no queue to write to, by broker name."""
        written = {
            data.broker_name for route in self.by_topic.values() for data in route.queues if data.is_writable
        }
        return {name: address for name, address in self.masters.items() if name not in written}


def acting_masters(brokers: BrokerClient, routes: Routes) -> dict[str, BrokerAddress]:
    """Return the addresses of the slaves that ``routes`` name as masters, by broker name.

    While a master is away, a name server with ``supportActingMaster`` lists a slave in its place, without a
    queue to write to. So only brokers without such a queue are asked for their role. A broker that does not
    answer, or refuses, counts as a master. Source: ``RouteInfoManager.pickupTopicRouteData``.
    """

    def ask(name: str) -> bool:
        try:
            return brokers.is_slave(routes.read_only[name], name)
        except RocketMQError as error:
            logger.debug("role not known broker=%s: %s", name, error)
            return False

    slaves = at_brokers(routes.read_only.keys(), ask) if routes.read_only else {}
    return {name: routes.read_only[name] for name, is_slave in slaves.items() if is_slave}


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
        """Return the routes of all topics; routes that are young enough are not asked for again.

        A topic that no name server lists, and whose route was never known, causes no error; it is in
        ``absent``. A failed look-up of the retry topic causes no error either: the topic's last route is
        kept. The result is the object of the call before if no route or denial has changed since and no topic
        is absent. A topic that has become static keeps its last known route, and is in ``static``: its queues
        may still be committed, but not read further.

        Raises:
            StaticTopic: If a topic without a known route is static.
            TransportError: If no name server answered before ``deadline``, for a topic without a known route.
            NameServerNotReady: If one answered with an error that may pass, for such a topic.
            BrokerError: If one refused for another reason, for such a topic.
        """
        found: dict[str, TopicRoute] = {}
        absent: dict[str, TopicNotFound] = {}
        denied: dict[str, TopicNotFound] = {}
        static: dict[str, StaticTopic] = {}
        for topic in self._topics:
            route, error = self._route_of(topic, deadline)
            if route is not None:
                found[topic] = route
            if isinstance(error, StaticTopic):
                static[topic] = error
            elif error is not None:
                (absent if route is None else denied)[topic] = error
        if self._retry_topic is not None:
            self._look_for_retries({name for route in found.values() for name in _names(route)}, deadline)
            if self._retry_route is not None:
                found[self._retry_topic] = self._retry_route
        now, before = Routes(found, absent, denied, static), self._known
        if absent or now != before:
            self._known = now
        return self._known

    def _route_of(
        self, topic: str, deadline: Deadline
    ) -> tuple[TopicRoute | None, TopicNotFound | StaticTopic | None]:
        """Return a topic's route, or its last known one, and the error that name servers gave for it."""
        try:
            return self._name_server.route(topic, deadline), self._name_server.denial(topic)
        except TopicNotFound as error:
            return None, error
        except StaticTopic as error:
            known = self._name_server.last_known(topic)
            if known is None:
                raise
            return known.route, error

    def follow(self, topics: Collection[str]) -> None:
        """Replace the topics whose routes :meth:`look` returns; the retry topic stays."""
        self._topics = tuple(sorted(topic for topic in topics if topic != self._retry_topic))

    def invalidate(self, *, are_doubted: bool = False) -> None:
        """Let the next :meth:`look` ask a name server for every route again; all of them if ``are_doubted``.

        Callers use this when a route led to a broker that is gone, or is known to lack a broker.
        """
        for topic in self._topics:
            self._name_server.invalidate(topic, is_doubted=are_doubted)
        if self._retry_topic is not None:
            self._name_server.invalidate(self._retry_topic, is_doubted=are_doubted)

    def expect_retries(self) -> None:
        """Let the next :meth:`look` ask for the retry topic again if brokers of the topics lack it.

        Callers use this when brokers have answered the group's first heartbeat: brokers create the retry
        topic then.
        """
        self._retry_again_s, self._retry_pause_s = 0.0, _SOON_S

    def _look_for_retries(self, brokers: Collection[str], deadline: Deadline) -> None:
        """Look up the retry topic's route; keep the known route if the look-up fails.

        While the route lacks some of ``brokers`` (names of the other topics' brokers), name servers are asked
        for it again after 1 s, then after growing pauses of up to 30 s.
        """
        assert self._retry_topic is not None
        now_s = self._clock.monotonic_s()
        if self._retry_route is not None and _names(self._retry_route).issuperset(brokers):
            self._retry_pause_s = _SOON_S
        elif now_s < self._retry_again_s:
            # A route that lacks brokers is looked up like any other one: a broker of it may have moved.
            if self._retry_route is None:
                return
        else:
            self._retry_again_s = now_s + self._retry_pause_s
            self._retry_pause_s = min(self._retry_pause_s * 2, _LATE_S)
            self._name_server.invalidate(self._retry_topic)
        with suppress(RocketMQError):
            self._retry_route = self._name_server.route(self._retry_topic, deadline)


def _names(route: TopicRoute) -> frozenset[str]:
    return frozenset(broker.broker_name for broker in route.brokers)
