"""What the planner and the batch reader see of the cluster: queues of all topics, their bounds, starting positions.

Owns the name server and broker calls that planning needs: one statistics request per broker and topic, never one
per queue.  Knows nothing of Spark, groups or offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.retry import RetryPolicy
from pyspark_rocketmq.client.topic_routes import Routes, TopicRoutes
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.pull_from import MASTER_ID
from pyspark_rocketmq.consume.start import starting_positions, unknown_queue_problems
from pyspark_rocketmq.datasource.retry_bounds import RetryBounds
from pyspark_rocketmq.errors import NoPermission, OptionError, RocketMQError, TopicNotFound, TransportError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.starting_offsets import StartingOffsets

_BROKERS_AT_ONCE = 16

FIRST_CONTACT: Final = RetryPolicy(attempts=3, first_pause_s=0.5, max_pause_s=0.5)
"""How the first look is tried: a wrong address must end in an error soon, not in an idle query."""
_Queues = Mapping[str, Sequence[MessageQueue]]
"""A broker's, by topic."""
_Outcome = dict[MessageQueue, QueueBounds] | RocketMQError


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The queues of all topics at one moment."""

    bounds: Mapping[MessageQueue, QueueBounds]
    addresses: Mapping[str, BrokerAddress]
    """Where each broker name is read from."""
    unreachable: Mapping[str, RocketMQError]
    """Broker names that did not answer, with the reason; their queues are not in ``bounds``."""
    absent: Mapping[str, RocketMQError] = field(default_factory=dict)
    """Topics that were there and that no living broker has at this moment."""
    replicas: Mapping[str, Mapping[int, BrokerAddress]] = field(default_factory=dict)
    """The living replicas of each broker name that has some, by broker id."""

    @property
    def out_of_sight(self) -> Mapping[str, RocketMQError]:
        """Why queues may be missing, by broker or topic; empty when all there are were seen."""
        return {**self.unreachable, **self.absent}


class ClusterView:
    """The topics of one query, seen through a pool of channels."""

    def __init__(self, options: ReadOptions, pool: ChannelPool, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._timeout_s = options.request_timeout_ms / 1000
        namespace = options.namespace or ""
        name_server = NameServerClient(
            options.name_servers, pool, clock, self._timeout_s, namespace=namespace
        )
        self._routes = TopicRoutes(name_server, options.subscribed(), options.retry_topic(), clock)
        self._brokers = BrokerClient(pool, clock, self._timeout_s, namespace=namespace)
        self._retry_bounds = RetryBounds(options.consumer_group or "", self._brokers)
        self._known_queues: tuple[Routes | None, Mapping[str, _Queues]] = (None, {})
        self._seen: set[str] = set()
        """Topics that were there at some time."""

    def routes(self) -> Routes:
        """The topics' routes, at most 30 s old.

        A topic that was there once may be absent: a name server forgets topics whose brokers are all away.

        Raises:
            TopicNotFound: If no living broker has a topic that was never there, or not one of the topics.
            TransportError: If no name server answered.
        """
        routes = self._routes.look(Deadline.after(self._clock, self._timeout_s))
        self._seen.update(routes.by_topic)
        for topic, error in routes.absent.items():
            if topic not in self._seen or not routes.by_topic:
                raise error
        return routes

    def snapshot(self) -> Snapshot:
        """Bounds of every readable queue; topics and brokers that cannot be asked are named, not raised.

        Raises:
            TopicNotFound: As :meth:`routes`.
            TransportError: If no name server, or not a single broker, answered.
        """
        routes = self.routes()
        queues = self._queues_of(routes)
        # Masters only: a replica that lags would look like a log that lost its tail.
        addresses = {name: address for name in queues if (address := routes.masters.get(name)) is not None}
        unreachable: dict[str, RocketMQError] = {
            name: TransportError(name, "the route names no master for this broker")
            for name in queues.keys() - addresses.keys()
        }
        bounds: dict[MessageQueue, QueueBounds] = {}
        for name, outcome in self._outcomes({name: queues[name] for name in addresses}, addresses).items():
            if isinstance(outcome, RocketMQError):
                unreachable[name] = outcome
            else:
                bounds |= outcome
        if unreachable:
            # The routes may be stale: a broker that moved is found by asking again, not by waiting 30 s.
            self._routes.invalidate()
        if unreachable and not bounds:
            raise next(iter(unreachable.values()))
        return Snapshot(
            bounds=bounds,
            addresses=addresses,
            unreachable=unreachable,
            absent=routes.absent,
            replicas=_replicas(routes, addresses),
        )

    def _queues_of(self, routes: Routes) -> Mapping[str, _Queues]:
        """The routes' queues by broker and topic, sorted; a route serves many plans."""
        known_routes, queues = self._known_queues
        if routes is not known_routes:
            by_broker: dict[str, dict[str, list[MessageQueue]]] = {}
            for queue in routes.queues:
                by_broker.setdefault(queue.broker_name, {}).setdefault(queue.topic, []).append(queue)
            queues = by_broker
            self._known_queues = routes, queues
        return queues

    def starting_positions(
        self, snapshot: Snapshot, queues: Collection[MessageQueue], default: StartingOffsets
    ) -> dict[MessageQueue, int]:
        """Where each of ``queues`` begins when nothing is stored for it.

        Raises:
            OptionError: If startingOffsets names offsets or queues that do not exist.
        """
        if self._options.starting_timestamp is not None:
            return {
                queue: self._position_at(snapshot, queue, self._options.starting_timestamp)
                for queue in queues
            }
        wanted = self._options.starting_offsets or default
        positions, problems = starting_positions(wanted, {queue: snapshot.bounds[queue] for queue in queues})
        if not snapshot.out_of_sight:
            problems += unknown_queue_problems(wanted, snapshot.bounds.keys())
        if problems and self._options.fail_on_data_loss:
            raise OptionError(tuple(problems))
        return positions

    def _position_at(self, snapshot: Snapshot, queue: MessageQueue, timestamp_ms: int) -> int:
        found = self._brokers.search_offset(snapshot.addresses[queue.broker_name], queue, timestamp_ms)
        bounds = snapshot.bounds[queue]
        # LOWER with a time before everything answers the first offset of a consume-queue file: below min.
        return min(max(found, bounds.min_offset), bounds.max_offset)

    def _outcomes(
        self, queues: Mapping[str, _Queues], addresses: Mapping[str, BrokerAddress]
    ) -> dict[str, _Outcome]:
        """What each broker answered; all are asked at once, so that one that is down costs its time-out once."""

        def ask(name: str) -> _Outcome:
            bounds: dict[MessageQueue, QueueBounds] = {}
            try:
                for topic, wanted in queues[name].items():
                    bounds |= self._bounds_on(addresses[name], topic, wanted)
            except RocketMQError as error:
                if not error.retryable:
                    raise
                return error
            return bounds

        if len(queues) <= 1:
            return {name: ask(name) for name in queues}
        with ThreadPoolExecutor(min(len(queues), _BROKERS_AT_ONCE), "rocketmq-planner") as executor:
            return dict(zip(queues, executor.map(ask, queues), strict=True))

    def _bounds_on(
        self, address: BrokerAddress, topic: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, QueueBounds]:
        try:
            statistics = self._brokers.topic_stats(address, topic)
        except TopicNotFound:
            # Deleted on this broker since the route was fetched.
            self._routes.invalidate()
            return {}
        except NoPermission:
            if topic != self._options.retry_topic():
                raise
            return self._retry_bounds.ask(address, queues)
        found = {queue: statistics[queue] for queue in queues if queue in statistics}
        # Statistics cover the write queues only; a topic being shrunk has more queues to read than to write.
        for queue in queues:
            if queue not in found:
                low = self._brokers.min_offset(address, queue)
                found[queue] = QueueBounds(
                    min_offset=low, max_offset=self._brokers.max_offset(address, queue)
                )
        return found


def _replicas(routes: Routes, names: Collection[str]) -> dict[str, Mapping[int, BrokerAddress]]:
    found: dict[str, Mapping[int, BrokerAddress]] = {}
    for broker in routes.brokers:
        others = {id_: address for id_, address in broker.addresses.items() if id_ != MASTER_ID}
        if others and broker.broker_name in names:
            found[broker.broker_name] = others
    return found
