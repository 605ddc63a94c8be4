"""Reads for the planner which queues a query's topics have, and the bounds (first offset and end) of each.

Each look at the cluster gives a :class:`Snapshot`.  It normally costs one statistics request per broker and
topic, not one per queue.  While a master is down, its slave may be read instead.  A snapshot keeps the bounds
at such slaves apart from those at masters: see :mod:`~pyspark_rocketmq.consume.slave_reads`.  A *plain
stream* is a query without a consumer group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import (
    SILENT_TIMEOUT_S,
    Cluster,
    Routes,
    SilentBrokers,
    acting_masters,
    at_brokers,
    subscription_data,
)
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.not_now import Rests
from pyspark_rocketmq.consume.slave_reads import MASTER_ID
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import (
    BrokerError,
    ConsumptionForbidden,
    NameServerNotReady,
    NoPermission,
    RocketMQError,
    StaticTopic,
    TopicAway,
    TopicDeleted,
    TopicNotFound,
    TransportError,
    WrongBroker,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange, TopicRoute
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadFrom, ReadOptions
from pyspark_rocketmq.source.topic_changes import MatchingTopics, Vanished, VanishedQueues
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.requests.pull import PullRequest

logger = logging.getLogger(__name__)

_CLIENT_ID: Final = "pyspark-rocketmq"
"""Client id sent to brokers, which do not use it in these requests."""
_REGISTERED_WITHIN_S: Final = 30.0
"""Time within which brokers register again at a name server that has just started, in seconds
(``registerNameServerPeriod``)."""
_Queues = Mapping[str, Sequence[MessageQueue]]
"""One broker's queues, by topic."""
_Outcome = dict[MessageQueue, QueueBounds] | RocketMQError


class _Shown(NamedTuple):
    """One broker's answers about its topics."""

    bounds: dict[MessageQueue, QueueBounds]
    failures: dict[str, RocketMQError | None]
    """The error for each topic that was asked for; None if the broker answered."""
    error: RocketMQError | None
    """Error because of which ``bounds`` lacks queues; None if ``bounds`` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The queues of a query's topics at one moment, with their bounds (first offset and end) and brokers."""

    bounds: Mapping[MessageQueue, QueueBounds]
    addresses: Mapping[str, BrokerAddress]
    """Address of each broker's master, by broker name; after :meth:`with_slaves`, that of the slave where the
    master is down."""
    unreachable: Mapping[str, RocketMQError]
    """Errors of brokers that did not answer, or that refused a topic, by broker name.

    In a plain stream ``bounds`` lacks all queues of these brokers. For a group it lacks all queues of a
    broker that did not answer, and only the refused topics of a broker that answered.
    """
    absent: Mapping[str, RocketMQError] = field(default_factory=dict)
    """Errors of topics that were seen before and that no living broker has at this moment."""
    replicas: Mapping[str, Mapping[int, BrokerAddress]] = field(default_factory=dict)
    """The living slaves of each broker name, by broker id; names without slaves, or without a master, are
    left out."""
    slaves: Mapping[str, BrokerAddress] = field(default_factory=dict)
    """Slaves to read while masters are down, by broker name; these names are also in ``unreachable``."""
    slave_bounds: Mapping[MessageQueue, QueueBounds] = field(default_factory=dict)
    """Bounds of queues at the brokers in ``slaves``; a slave may have fewer messages than its master."""
    still_registering: RocketMQError | None = None
    """Error if ``bounds`` may lack brokers because the name server has just started; otherwise None.

    It is also None if the options let all queues begin with their first messages. While the error stays, it
    is the same object.
    """
    switched_off: Collection[tuple[str, str]] = ()
    """Pairs of a topic and a broker name where the topic or the broker has no read permission.

    An operator has switched reading off there, and ``bounds`` lacks these queues.
    """

    def bounds_of(self, queue: MessageQueue) -> QueueBounds:
        """Return first offset and end of a queue at its master, or at the slave that is read instead."""
        found = self.bounds.get(queue)
        return self.slave_bounds[queue] if found is None else found

    @property
    def out_of_sight(self) -> Mapping[str, RocketMQError]:
        """Errors because of which ``bounds`` may lack queues, by broker or topic; empty if none is missing.

        Queues in :attr:`switched_off` have no error here.
        """
        return {**self.unreachable, **self.absent}

    @property
    def unreadable(self) -> Mapping[str, RocketMQError]:
        """Errors because of which queues cannot be read now, even from a slave, by broker or topic."""
        return {name: error for name, error in self.out_of_sight.items() if name not in self.slaves}

    def check_switched_on(self, consequence: str) -> None:
        """Check that no operator has switched off the reading of queues (permission of a topic or a broker).

        ``consequence`` says what would happen if the query went on without these queues.

        Raises:
            RocketMQError: If reading is switched off. The error names one such topic, its broker, and the
                ``consequence``.
        """
        if self.switched_off:
            topic, broker_name = min(self.switched_off)
            raise RocketMQError(
                f"Reading of topic {peer_text(topic)} is switched off at broker "
                f"{peer_text(broker_name)}, so {consequence}. Give the permission back (`mqadmin "
                f"updateTopicPerm -n NAMESRV -c CLUSTER -t {peer_text(topic)} -p 6`, or the broker's setting "
                "brokerPermission=6), or set failOnDataLoss=false to read without these queues."
            )

    def with_slaves(self) -> Snapshot:
        """Return the snapshot with addresses and bounds of slaves in place of masters that are down."""
        if not self.slaves:
            return self
        return replace(
            self,
            bounds={**self.bounds, **self.slave_bounds},
            addresses={**self.addresses, **self.slaves},
            unreachable={name: error for name, error in self.unreachable.items() if name not in self.slaves},
        )


class ClusterView:
    """Takes snapshots of one query's topics and of the brokers that have them. Only one thread may use it."""

    def __init__(
        self,
        options: ReadOptions,
        pool: ChannelPool,
        clock: Clock,
        *,
        had_it: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Prepare to look at the topics of ``options``; nothing is connected yet.

        ``had_it`` returns the brokers from which the query is known to have read a topic.
        """
        self._options = options
        self._clock = clock
        self.had_it = had_it
        """Function that returns the brokers from which the query is known to have read a topic."""
        self._timeout_s = options.request_timeout_ms / 1000
        cluster = Cluster.of(options, clock, pool=pool)
        self._max_age_s = max_age_s = options.route_refresh_ms / 1000
        self._name_server = name_server = cluster.name_server(max_age_s)
        self._routes = cluster.routes(options, name_server)
        self._matching = (
            MatchingTopics(name_server, options.topic_pattern, clock, max_age_s)
            if options.topic_pattern is not None
            else None
        )
        self._brokers = cluster.brokers()
        self._briefly = cluster.brokers(at_most_s=SILENT_TIMEOUT_S)
        self._silent = SilentBrokers(clock)
        self._vanished = VanishedQueues(name_server, self._brokers, clock, self._timeout_s)
        self._group = options.consumer_group or PLAIN_SOURCE_GROUP
        self._retry_ends: dict[MessageQueue, int] = {}
        """The last known ends of the group's retry queues; used if the user may not read their statistics."""
        self._without_statistics: set[BrokerAddress] = set()
        """Addresses that do not support the statistics request, such as a RocketMQ 5 Proxy's."""
        self._rests: Rests[tuple[str, str]] = Rests()
        """Broker names and topics whose statistics were refused a moment ago."""
        self._has_worked = False
        """Whether a broker has answered."""
        self._known_queues: tuple[Routes | None, Mapping[str, _Queues]] = (None, {})
        self._switched_off: frozenset[tuple[str, str]] = frozenset()
        """Pairs of a topic and a broker name at which an operator has switched off reading."""
        self._static: dict[str, float] = {}
        """Topics that match the pattern but cannot be read, because they are static. For each, the monotonic
        second from which its route is looked up again: it may have been made again as an ordinary topic."""
        self._knew_none_s = float("-inf")
        """Monotonic second at which the name server last knew no broker at all, which shows that it had just
        started."""
        self._not_ready = _not_ready()
        """The error in snapshots while brokers may still register."""
        self._seen: dict[str, TopicRoute] = {}
        """The last route of each topic that has ever had one."""

    def expect_retries(self) -> None:
        """Let the next look ask for the group's retry topic.

        Brokers create this topic at the group's first heartbeat.
        """
        self._routes.expect_retries()

    def routes(self) -> Routes:
        """Return the topics' routes, at most ``routeRefreshMs`` old.

        A topic that once had a route keeps it: a name server forgets topics whose brokers are all away.

        Raises:
            TopicNotFound: If a topic that never had a route has none now, or if no topic has one. With a
                pattern neither is an error.
            TopicAway: If brokers that may have such a topic are not registered yet.
            StaticTopic: If a topic is static: its logical queues are mapped to brokers. With a pattern, only
                a topic that was read before causes this error; other static topics are left out for
                ``routeRefreshMs``, then looked up again.
            TransportError: If no name server answered.
        """
        deadline = Deadline.after(self._clock, self._timeout_s)
        if self._matching is None:
            routes = self._routes.look(deadline)
        else:
            # Also query topics that name servers no longer list: their brokers may be away.
            routes = self._look_at_matching(self._matching.look(deadline) | self._seen.keys(), deadline)
        for became_static in routes.static.values():
            raise became_static
        self._seen.update(routes.by_topic)
        for topic, error in routes.absent.items():
            if self._matching is None and (topic not in self._seen or not routes.by_topic):
                raise self._away(topic, error, deadline)
        return routes

    def _look_at_matching(self, topics: frozenset[str], deadline: Deadline) -> Routes:
        """Return the routes of a pattern's topics; leave out static topics that were not read before."""
        now_s = self._clock.monotonic_s()
        left_out = {topic for topic, until_s in self._static.items() if now_s < until_s}
        while True:
            self._routes.follow(topics - left_out)
            try:
                routes = self._routes.look(deadline)
            except StaticTopic as error:
                if error.topic in self._seen:
                    raise
                if error.topic not in self._static:
                    logger.warning("topic of the pattern left out: %s", error)
                self._static[error.topic] = now_s + self._max_age_s
                left_out.add(error.topic)
            else:
                self._static = {
                    topic: at for topic, at in self._static.items() if topic not in routes.by_topic
                }
                return routes

    def _away(self, topic: str, error: TopicNotFound, deadline: Deadline) -> TopicNotFound:
        """Return ``error``, or TopicAway if the topic's brokers may still register at the name server."""
        had_it = sorted(self.had_it(topic))
        try:
            registered = self._registered(deadline)
        except RocketMQError as failure:
            logger.debug("brokers not known topic=%s: %s", topic, failure)
            # A proxy, for one, serves no such request.
            was_on = ", ".join(map(peer_text, had_it))
            reason = (
                f"The topic was on {was_on} before, and it is not known which brokers there are: {failure}"
            )
            return _later(error, reason) if had_it else error
        missing = [name for name in had_it if name not in registered]
        # Brokers register one after the other.
        may_come = self._clock.monotonic_s() - self._knew_none_s < _REGISTERED_WITHIN_S
        try:
            if not missing and not may_come and not self._is_there_now(topic, deadline):
                return error
        except RocketMQError as failure:
            logger.debug("not known whether the topic is there by now topic=%s: %s", topic, failure)
            return error
        unknown = ", ".join(map(peer_text, missing)) or ("all brokers" if registered else "any broker")
        return _later(error, f"The name server does not know {unknown} either")

    def _registered(self, deadline: Deadline) -> set[str]:
        """Return the names of all brokers that name servers know.

        If there are none, note the time: for some seconds, brokers may still be registering.
        """
        registered = {broker.broker_name for broker in self._name_server.brokers(deadline)}
        if not registered:
            self._knew_none_s = self._clock.monotonic_s()
        return registered

    def note_restart(self) -> None:
        """Note whether name servers know no broker at all, as after a restart; do nothing if they fail.

        Call this before a wait for brokers: after it, some have registered, and others perhaps not yet.
        """
        with suppress(RocketMQError):
            self._registered(Deadline.after(self._clock, self._timeout_s))

    def _is_there_now(self, topic: str, deadline: Deadline) -> bool:
        """Return whether the topic has a route by now: another broker may just have registered."""
        try:
            self._name_server.route(topic, deadline)
        except TopicNotFound:
            return False
        return True

    def whole_snapshot(self) -> Snapshot:
        """Return a snapshot that must not lack any broker, because the query takes no further one.

        Raises:
            NameServerNotReady: If the name server knew no broker a moment ago: brokers may still register.
            RocketMQError: For the same reasons as :meth:`snapshot`.
        """
        began_s = self._clock.monotonic_s()
        found = self.snapshot()
        if self._matching is not None and not found.bounds:
            self._registered(Deadline.after(self._clock, self._timeout_s))
        if self._may_lack_brokers(began_s):
            raise _not_ready()
        return found

    def _may_lack_brokers(self, began_s: float) -> bool:
        """Return whether brokers may not have been registered yet when a look began, at ``began_s``.

        Then the next look asks for all routes again.
        """
        if began_s - self._knew_none_s >= _REGISTERED_WITHIN_S:
            return False
        self._routes.invalidate()
        if self._matching is not None:
            self._matching.invalidate()
        return True

    def snapshot(self) -> Snapshot:
        """Return the bounds of every readable queue, and the errors of topics and brokers that do not answer.

        Raises:
            TopicNotFound: For the same reasons as :meth:`routes`.
            RocketMQError: If no name server or no broker at all answered, or if a server refuses for good.
        """
        began_s = self._clock.monotonic_s()
        routes = self.routes()
        queues = self._queues_of(routes)
        # Use only masters: the smaller end of a slave that lags would look like a loss of messages.
        acting = acting_masters(self._briefly, routes)
        masters = {name: at for name, at in routes.masters.items() if name not in acting}
        addresses = {name: address for name in queues if (address := masters.get(name)) is not None}
        unreachable: dict[str, RocketMQError] = {
            name: TransportError(name, f"{_why_no_master(acting.get(name))}; start the master")
            for name in queues.keys() - addresses.keys()
        }
        bounds: dict[MessageQueue, QueueBounds] = {}
        for name, shown in self._shown({name: queues[name] for name in addresses}, addresses).items():
            bounds |= shown.bounds
            if shown.error is not None:
                unreachable[name] = shown.error
        slaves = self._slaves_for(queues.keys() - addresses.keys(), routes, acting)
        slave_bounds: dict[MessageQueue, QueueBounds] = {}
        for name, outcome in self._at_slaves(slaves, queues).items():
            if isinstance(outcome, RocketMQError):
                slave = slaves.pop(name)
                unreachable[name] = TransportError(
                    name,
                    f"{_why_no_master(acting.get(name))}, and its slave {slave} cannot be read "
                    f"({str(outcome).rstrip('.')}). Start the master; a slave serves reads only with "
                    "slaveReadEnable=true",
                )
            else:
                slave_bounds |= outcome
        if unreachable:
            # The routes may be stale: the next look fetches them again, so that it finds a broker that moved.
            self._routes.invalidate()
        if unreachable and not bounds and not slave_bounds:
            raise next(iter(unreachable.values()))
        may_lack_brokers = self._may_lack_brokers(began_s) and not self._options.begins_at_first()
        return Snapshot(
            bounds=bounds,
            addresses=addresses,
            unreachable=unreachable,
            # A topic that no name server knows still exists as long as its brokers have it.
            absent={**routes.absent, **_denied(routes, bounds.keys() | slave_bounds.keys())},
            replicas=_replicas(routes, addresses),
            slaves=slaves,
            slave_bounds=slave_bounds,
            still_registering=self._not_ready if may_lack_brokers else None,
            switched_off=self._switched_off,
        )

    def _slaves_for(
        self, names: Collection[str], routes: Routes, acting: Mapping[str, BrokerAddress]
    ) -> dict[str, BrokerAddress]:
        """Return the slaves to read in place of the masters of ``names``, which are away, by broker name.

        Groups that lock queues read only slaves that act as masters, because these grant locks.
        """
        slaves: dict[str, BrokerAddress] = {}
        if self._options.goes_on_at_slaves():
            # Take the replica that Java's clients choose.
            slaves = {name: replicas[min(replicas)] for name, replicas in _replicas(routes, names).items()}
        if self._options.read_from is not ReadFrom.MASTER:
            slaves |= {name: address for name, address in acting.items() if name in names}
        return slaves

    def _at_slaves(
        self, slaves: Mapping[str, BrokerAddress], queues: Mapping[str, _Queues]
    ) -> dict[str, _Outcome]:
        """Return the bounds at each broker's slave, or the error if it cannot be read, by broker name."""

        def query(name: str) -> _Outcome:
            try:
                return self._at_slave(slaves[name], queues[name])
            except RocketMQError as error:
                return error

        return at_brokers(slaves.keys(), query)

    def _at_slave(self, address: BrokerAddress, queues: _Queues) -> dict[MessageQueue, QueueBounds]:
        found: dict[MessageQueue, QueueBounds] = {}
        for topic, wanted in queues.items():
            found |= self._bounds_on(self._briefly, address, topic, wanted)
        missing = [queue for wanted in queues.values() for queue in wanted if queue not in found]
        if missing:
            raise TransportError(
                address, f"the slave does not have {missing[0]}, perhaps not yet copied from its master"
            )
        # Without slaveReadEnable a slave reports bounds but refuses pulls, and every micro-batch would wait.
        queue, bounds = next(iter(found.items()))
        request = PullRequest(
            consumer_group=self._group, queue=queue, queue_offset=bounds.max_offset, max_msg_nums=1
        )
        self._briefly.pull(address, request)
        return found

    def vanished(self, known: Sequence[QueueRange], snapshot: Snapshot | None) -> list[Vanished]:
        """Return the queues of ``known`` that are gone for good, each with an error if messages may be lost.

        Args:
            known: Queues, each with its next offset as ``end``. While a broker does not answer, its queues do
                not count as gone.
            snapshot: The newest snapshot; None if no topic was found.
        """
        missing = known
        if snapshot is not None:
            missing = [
                queue_range
                for queue_range in known
                if queue_range.queue not in snapshot.bounds
                and queue_range.queue.broker_name not in snapshot.unreachable
            ]
        found = self._vanished.look(missing)
        if self._matching is not None:
            for queue, loss in found:
                if isinstance(loss, TopicDeleted):
                    self._seen.pop(queue.topic, None)
        return found

    def forget_deleted(self, snapshot: Snapshot) -> None:
        """Forget topics of a pattern that ``snapshot`` lacks because they were deleted."""
        if self._matching is not None:
            absent = (topic for topic in snapshot.absent if topic in self._seen)
            queues = (queue for topic in absent for queue in self._seen[topic].subscribe_queues(topic))
            self.vanished([QueueRange.between(queue, 0, 0) for queue in queues], snapshot)

    def _queues_of(self, routes: Routes) -> Mapping[str, _Queues]:
        """Return the routes' queues by broker and topic, sorted; computed once for each set of routes."""
        known_routes, queues = self._known_queues
        if routes is not known_routes:
            by_broker: dict[str, dict[str, list[MessageQueue]]] = {}
            for queue in routes.queues:
                by_broker.setdefault(queue.broker_name, {}).setdefault(queue.topic, []).append(queue)
            queues = by_broker
            self._known_queues = routes, queues
            self._report_switched_off(routes)
        return queues

    def _report_switched_off(self, routes: Routes) -> None:
        """Log once when an operator switches the reading of a topic at a broker off or on again."""
        switched_off = frozenset(
            (topic, data.broker_name)
            for topic, route in routes.by_topic.items()
            for data in route.queues
            if data.read_queue_nums and not data.is_readable
        )
        for topic, broker_name in sorted(switched_off - self._switched_off):
            logger.warning(
                "reading is switched off, its queues wait topic=%s broker=%s; give the permission back: "
                "`mqadmin updateTopicPerm -n NAMESRV -c CLUSTER -t %s -p 6`, or the broker's setting "
                "brokerPermission=6",
                topic,
                peer_text(broker_name),
                topic,
            )
        for topic, broker_name in sorted(self._switched_off - switched_off):
            logger.info("reading is no longer switched off topic=%s broker=%s", topic, peer_text(broker_name))
        self._switched_off = switched_off

    def _shown(
        self, queues: Mapping[str, _Queues], addresses: Mapping[str, BrokerAddress]
    ) -> dict[str, _Shown]:
        """Return each broker's answers; all are called in parallel, so that their timeouts do not add up.

        A topic that a broker refuses rests: that broker is not asked for it again for 3 s. Nothing rests
        before any broker has answered. While a topic rests, a group reads the broker's other topics. In a
        plain stream the other topics wait, too, because the stream's offset has one store time for all topics
        of a broker.
        """
        places = {(name, topic) for name, topics in queues.items() for topic in topics}
        resting = self._rests.among(places, self._clock.monotonic_s()) if self._has_worked else {}

        def query(name: str) -> _Shown:
            rests = {topic: resting[name, topic] for topic in queues[name] if (name, topic) in resting}
            asked = {topic: wanted for topic, wanted in queues[name].items() if topic not in rests}
            bounds, failures = self._answers(name, addresses[name], asked)
            error = next(filter(None, (*rests.values(), *failures.values())), None)
            is_whole = error is None or self._options.consumer_group is not None
            return _Shown(bounds if is_whole else {}, failures, error)

        shown = at_brokers(queues.keys(), query)
        answered = {
            (name, topic): error for name, each in shown.items() for topic, error in each.failures.items()
        }
        self._rests.note(answered, self._clock.monotonic_s())
        self._has_worked = self._has_worked or None in answered.values()
        return shown

    def _answers(
        self, name: str, address: BrokerAddress, queues: _Queues
    ) -> tuple[dict[MessageQueue, QueueBounds], dict[str, RocketMQError | None]]:
        """Return the bounds that a broker reports, and its error, or None, for each topic.

        If the broker does not answer, it is not asked for further topics, and the bounds are empty.

        Raises:
            RocketMQError: If the broker refuses for good.
        """
        bounds: dict[MessageQueue, QueueBounds] = {}
        failures: dict[str, RocketMQError | None] = {}
        is_silent = name in self._silent
        brokers = self._briefly if is_silent else self._brokers
        for topic, wanted in queues.items():
            try:
                bounds |= self._bounds_on(brokers, address, topic, wanted)
                failures[topic] = None
            except RocketMQError as error:
                if not self._may_pass(error, name, topic):
                    raise
                failures[topic] = error
                if isinstance(error, TransportError):
                    if not is_silent and not isinstance(error, WrongBroker):
                        self._silent.add(name)
                    return {}, failures
        if queues:
            self._silent.discard(name)
        return bounds, failures

    def _may_pass(self, error: RocketMQError, broker_name: str, topic: str) -> bool:
        """Return whether an error may pass by itself; any other error ends the query.

        Plans go on without these queues until the broker serves them again: a topic's queues after a refusal,
        all of the broker's if it cannot be reached.
        """
        if error.may_pass(has_worked=self._has_worked):
            return True
        # Comes second, because ``had_it`` reads the offset store.
        return error.may_pass(has_worked=True) and broker_name in self.had_it(topic)

    def _bounds_on(
        self, brokers: BrokerClient, address: BrokerAddress, topic: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, QueueBounds]:
        broker_name = queues[0].broker_name
        wanted = self._options.subscription_of(topic)
        if wanted.is_sql92:
            # Pulls from a broker that cannot filter by the condition would bring all messages.
            data = subscription_data(wanted, sub_version=0)
            brokers.check_subscription(address, _CLIENT_ID, self._group, data, broker_name=broker_name)
        try:
            statistics = self._statistics(brokers, address, topic, broker_name)
        except TopicNotFound:
            # Deleted on this broker since the route was fetched.
            self._routes.invalidate()
            return {}
        except NoPermission:
            if topic != self._options.retry_topic():
                raise
            return self._all_retry_bounds(address, queues)
        found = {queue: statistics[queue] for queue in queues if queue in statistics}
        # Statistics lack queues that can only be read; a topic has these after its queues were reduced. A
        # proxy has no statistics.
        for queue in queues:
            if queue not in found:
                low = brokers.min_offset(address, queue)
                found[queue] = QueueBounds(min_offset=low, max_offset=brokers.max_offset(address, queue))
        return found

    def _all_retry_bounds(
        self, address: BrokerAddress, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, QueueBounds]:
        """Return the bounds of retry queues, found by pulls; none while the group is forbidden to consume."""
        try:
            return {queue: self._retry_bounds(address, queue) for queue in queues}
        except ConsumptionForbidden as error:
            logger.info("retry queues left out of this plan address=%s: %s", address, error)
            return {}

    def _retry_bounds(self, address: BrokerAddress, queue: MessageQueue) -> QueueBounds:
        """Return the bounds of a retry queue, from the answer to a pull at its last known end.

        The pull begins at 0 if no end is known. It may transfer one message.

        This is for users who may consume but not read statistics. For a retry topic, brokers check the user's
        rights on the group: statistics need ``Get``, but consuming needs only ``Sub``.
        """
        end = self._retry_ends.get(queue, 0)
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=end, max_msg_nums=1)
        pulled = self._brokers.pull(address, request)
        target = pulled.reset_from(end)
        if target is not None:
            # The broker forgets the reset with this answer.
            logger.warning(
                "reset of a retry queue not followed: give the user the right Get on the group, and reset "
                "the queue again group=%s %s target=%d",
                self._group,
                queue,
                target,
            )
        self._retry_ends[queue] = pulled.max_offset
        return QueueBounds(min_offset=pulled.min_offset, max_offset=pulled.max_offset)

    def _statistics(
        self, brokers: BrokerClient, address: BrokerAddress, topic: str, broker_name: str
    ) -> Mapping[MessageQueue, QueueBounds]:
        """Return the bounds of the topic's queues by one request; empty if the server does not support it."""
        if address in self._without_statistics:
            return {}
        try:
            return brokers.topic_stats(address, topic, broker_name=broker_name)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            logger.info(
                "the server has no topic statistics, its queues are queried one by one address=%s", address
            )
            self._without_statistics.add(address)
            return {}


def _denied(routes: Routes, queues: Collection[MessageQueue]) -> dict[str, TopicNotFound]:
    """Return the errors of topics that no name server lists now, except topics of the found ``queues``."""
    if not routes.denied:
        return {}
    there = {queue.topic for queue in queues}
    return {topic: error for topic, error in routes.denied.items() if topic not in there}


def _why_no_master(acting: BrokerAddress | None) -> str:
    if acting is None:
        return "the route names no master for this broker"
    return f"{acting} is listed as the master of this broker, but is a slave"


def _replicas(routes: Routes, names: Collection[str]) -> dict[str, Mapping[int, BrokerAddress]]:
    found: dict[str, Mapping[int, BrokerAddress]] = {}
    for broker in routes.brokers:
        others = {id_: address for id_, address in broker.addresses.items() if id_ != MASTER_ID}
        if others and broker.broker_name in names:
            found[broker.broker_name] = others
    return found


def _not_ready() -> NameServerNotReady:
    return NameServerNotReady(
        ResponseCode.SUCCESS,
        f"it had no broker less than {_REGISTERED_WITHIN_S:g} s ago, so it may have restarted, and topics or "
        f"queues may still be missing. Brokers register within {_REGISTERED_WITHIN_S:g} s of a restart; "
        "read again then",
        request="GET_BROKER_CLUSTER_INFO",
    )


def _later(error: TopicNotFound, reason: str) -> TopicAway:
    """Return ``error`` as a TopicAway, with the ``reason`` why the topic's brokers may still register."""
    remark = (
        f"{error.remark.rstrip('. ')}. {reason.rstrip('.')}; brokers register again within "
        f"{_REGISTERED_WITHIN_S:g} s of the name server's restart."
    )
    return TopicAway(error.code, remark, request=error.request, address=error.address)
