"""What the planner and the batch reader see of the cluster: queues, their bounds, starting positions.

Owns the name server and broker calls that planning needs: one statistics request per broker and topic, never one
per queue.  Knows nothing of Spark, groups or offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.retry import RetryPolicy
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.pull_from import MASTER_ID
from pyspark_rocketmq.consume.start import starting_positions, unknown_queue_problems
from pyspark_rocketmq.errors import OptionError, RocketMQError, TopicNotFound, TransportError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, TopicRoute
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.starting_offsets import StartingOffsets

_BROKERS_AT_ONCE = 16

FIRST_CONTACT: Final = RetryPolicy(attempts=3, first_pause_s=0.5, max_pause_s=0.5)
"""How the first look is tried: a wrong address must end in an error soon, not in an idle query."""
_Outcome = dict[MessageQueue, QueueBounds] | RocketMQError


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The topic's queues at one moment."""

    bounds: Mapping[MessageQueue, QueueBounds]
    addresses: Mapping[str, BrokerAddress]
    """Where each broker name is read from."""
    unreachable: Mapping[str, RocketMQError]
    """Broker names that did not answer, with the reason; their queues are not in ``bounds``."""
    replicas: Mapping[str, Mapping[int, BrokerAddress]] = field(default_factory=dict)
    """The living replicas of each broker name that has some, by broker id."""


class ClusterView:
    """The topic of one query, seen through a pool of channels."""

    def __init__(self, options: ReadOptions, pool: ChannelPool, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._timeout_s = options.request_timeout_ms / 1000
        namespace = options.namespace or ""
        self._name_server = NameServerClient(
            options.name_servers, pool, clock, self._timeout_s, namespace=namespace
        )
        self._brokers = BrokerClient(pool, clock, self._timeout_s, namespace=namespace)
        self._known_queues: tuple[TopicRoute | None, dict[str, list[MessageQueue]]] = (None, {})

    def route(self) -> TopicRoute:
        """The topic's route, at most 30 s old.

        Raises:
            TopicNotFound: If no living broker has the topic.
            TransportError: If no name server answered.
        """
        return self._name_server.route(self._options.topic, Deadline.after(self._clock, self._timeout_s))

    def snapshot(self) -> Snapshot:
        """Bounds of every readable queue; brokers that cannot be asked are named, not raised.

        Raises:
            TransportError: If no name server, or not a single broker, answered.
        """
        route = self.route()
        queues = self._queues_of(route)
        # Masters only: a replica that lags would look like a log that lost its tail.
        masters = {broker.broker_name: broker.master for broker in route.brokers}
        addresses = {name: address for name in queues if (address := masters.get(name)) is not None}
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
            # The route may be stale: a broker that moved is found by asking again, not by waiting 30 s.
            self._name_server.invalidate(self._options.topic)
        if unreachable and not bounds:
            raise next(iter(unreachable.values()))
        return Snapshot(
            bounds=bounds, addresses=addresses, unreachable=unreachable, replicas=_replicas(route, addresses)
        )

    def _queues_of(self, route: TopicRoute) -> Mapping[str, list[MessageQueue]]:
        """The route's queues by broker, sorted; a route serves many plans."""
        known_route, queues = self._known_queues
        if route is not known_route:
            queues = {}
            for queue in route.subscribe_queues(self._options.topic):
                queues.setdefault(queue.broker_name, []).append(queue)
            self._known_queues = route, queues
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
        if not snapshot.unreachable:
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
        self, queues: Mapping[str, list[MessageQueue]], addresses: Mapping[str, BrokerAddress]
    ) -> dict[str, _Outcome]:
        """What each broker answered; all are asked at once, so that one that is down costs its time-out once."""

        def ask(name: str) -> _Outcome:
            try:
                return self._bounds_on(addresses[name], queues[name])
            except RocketMQError as error:
                if not error.retryable:
                    raise
                return error

        if len(queues) <= 1:
            return {name: ask(name) for name in queues}
        with ThreadPoolExecutor(min(len(queues), _BROKERS_AT_ONCE), "rocketmq-planner") as executor:
            return dict(zip(queues, executor.map(ask, queues), strict=True))

    def _bounds_on(
        self, address: BrokerAddress, queues: list[MessageQueue]
    ) -> dict[MessageQueue, QueueBounds]:
        try:
            statistics = self._brokers.topic_stats(address, self._options.topic)
        except TopicNotFound:
            # Deleted on this broker since the route was fetched.
            self._name_server.invalidate(self._options.topic)
            return {}
        found = {queue: statistics[queue] for queue in queues if queue in statistics}
        # Statistics cover the write queues only; a topic being shrunk has more queues to read than to write.
        for queue in queues:
            if queue not in found:
                low = self._brokers.min_offset(address, queue)
                found[queue] = QueueBounds(
                    min_offset=low, max_offset=self._brokers.max_offset(address, queue)
                )
        return found


def _replicas(route: TopicRoute, names: Collection[str]) -> dict[str, Mapping[int, BrokerAddress]]:
    found: dict[str, Mapping[int, BrokerAddress]] = {}
    for broker in route.brokers:
        others = {id_: address for id_, address in broker.addresses.items() if id_ != MASTER_ID}
        if others and broker.broker_name in names:
            found[broker.broker_name] = others
    return found
