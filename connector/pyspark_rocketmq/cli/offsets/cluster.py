"""Queries a cluster about the groups of one namespace: queues, addresses, members. Without Spark.

Each topic is queried once, and each group's members once. Brokers and members that do not answer in time are
left out, with a warning. The groups' own offsets and metrics are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from pyspark_rocketmq.cli.offsets.records import Members
from pyspark_rocketmq.client.cluster import Cluster, run_concurrently
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.not_now import reports_no_members
from pyspark_rocketmq.consume.positions import first_stored_at
from pyspark_rocketmq.errors import RocketMQError, TopicNotFound, TransportError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot
from pyspark_rocketmq.source.message_lookup import stored_ms_at

logger = logging.getLogger(__name__)

CALLS_AT_ONCE = 32


class Reach(Protocol):
    """Settings with which a command reaches the cluster: addresses, time-out and access."""

    @property
    def name_servers(self) -> Sequence[str] | None:
        """Addresses of the name servers, as ``host:port``; None if option ``nameServers`` is not given."""
        ...

    @property
    def request_timeout_ms(self) -> int:
        """Time-out of one request."""
        ...

    def access_options(self, namespace: str | None = None) -> dict[str, str]:
        """Return options such as credentials and TLS as strings by the data source's keys.

        A ``namespace`` other than None replaces option ``namespace``. ``nameServers`` is not included.
        """
        ...


class ClusterInspector:
    """Shows a cluster to one command. Each topic is queried only once, and so are each group's members."""

    def __init__(self, reach: Reach, namespace: str, clock: Clock) -> None:
        """Prepare queries about groups of ``namespace``; nothing is sent yet."""
        self._options = {
            "nameServers": ";".join(reach.name_servers or ()),
            "requestTimeoutMs": str(reach.request_timeout_ms),
            **reach.access_options(namespace),
        }
        self._clock = clock
        self._snapshots: dict[str, Snapshot | None] = {}
        self._members: dict[str, Members] = {}
        self._silent: dict[str, frozenset[str]] = {}
        self._listed: set[str] = set()
        """Groups whose members, or lack of members, a broker has reported."""
        cluster = Cluster.of(self._read_options("any"), clock)
        self._pool = cluster.pool
        self.brokers = cluster.brokers()

    def snapshot(self, topic: str) -> Snapshot | None:
        """Return the bounds of a topic's queues and its brokers' addresses.

        None if the topic is gone or none of its brokers answers.
        """
        if topic not in self._snapshots:
            self._snapshots[topic] = self._read_snapshot(topic)
        return self._snapshots[topic]

    def bounds(self, topics: Iterable[str]) -> dict[MessageQueue, QueueBounds]:
        """Return the minimum and maximum offsets of every queue of ``topics`` that the brokers report."""
        seen = [self.snapshot(topic) for topic in topics]
        return {
            queue: bounds for found in seen if found is not None for queue, bounds in found.bounds.items()
        }

    def addresses(self, topics: Iterable[str]) -> dict[str, BrokerAddress]:
        """Return the addresses of the brokers of ``topics``, by broker name."""
        seen = [self.snapshot(topic) for topic in topics]
        return {
            name: address for found in seen if found is not None for name, address in found.addresses.items()
        }

    def members_of(self, group: str, topics: Iterable[str]) -> Members:
        """Return the queues that each member of the group reports, by client id.

        The members are asked through the brokers of ``topics``. Members that do not answer are left out.
        """
        if group not in self._members:
            self._members[group] = self._query_members(group, sorted(set(self.addresses(topics).values())))
        return self._members[group]

    def silent_members_of(self, group: str, topics: Iterable[str]) -> frozenset[str]:
        """Return the members that brokers list but that did not report their queues."""
        self.members_of(group, topics)
        return self._silent.get(group, frozenset())

    def knows_members_of(self, group: str, topics: Iterable[str]) -> bool:
        """Return whether all members of the group are known.

        They are if a broker has listed them, or if every broker reports that the group has none. If False,
        the group may have members although ``members_of`` returns none.
        """
        self.members_of(group, topics)
        return group in self._listed

    def stored_from(self, queues: Collection[MessageQueue], at_s: float) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message stored at or after ``at_s``.

        If a queue has no such message, its value is the queue's end. Queues whose brokers do not answer are
        left out.

        Brokers before 5.1.1 may return the offset of another message near that time. So the messages around
        that offset are pulled, and their store times compared. If the broker refuses such a pull, the offset
        is returned unchecked.
        """
        topics = {queue.topic for queue in queues}
        bounds, addresses = self.bounds(topics), self.addresses(topics)
        time_ms = _milliseconds(at_s)

        def query(queue: MessageQueue, found: int) -> tuple[MessageQueue, int | None]:
            address = addresses[queue.broker_name]
            look = partial(stored_ms_at, self.brokers, PLAIN_SOURCE_GROUP, queue, address=address)
            try:
                return queue, first_stored_at(time_ms, found, bounds[queue], look)
            except TransportError as error:
                logger.warning("offset of a time not found, the queue is left out %s: %s", queue, error)
                return queue, None
            except RocketMQError as error:
                logger.info("offset of a time not checked, taken as the broker gave it %s: %s", queue, error)
                return queue, found

        answers = self.stored_by(sorted(queues), [at_s])[0]
        calls = [partial(query, queue, found) for queue, found in answers.items() if queue in bounds]
        checked = dict(run_concurrently(calls, at_most=CALLS_AT_ONCE))
        return {queue: offset for queue, offset in (answers | checked).items() if offset is not None}

    def stored_by(
        self,
        queues: Sequence[MessageQueue],
        times_s: Sequence[float],
        *,
        beside: Collection[MessageQueue] = (),
    ) -> tuple[dict[MessageQueue, int], ...]:
        """Return a mapping for each time: by queue, the offset of the first message stored then or later.

        If a queue has no such message, its value is the queue's end. Queues whose brokers do not answer are
        left out.

        If the topics of ``queues`` may have no route, as that of dead letters, give ``beside``: queues whose
        topics have one. The addresses of the brokers are then taken from their routes.
        """
        addresses = self.addresses({queue.topic for queue in (beside or queues)})

        def query(one: tuple[int, MessageQueue]) -> tuple[int, MessageQueue, int | None]:
            index, queue = one
            at_ms = _milliseconds(times_s[index])
            try:
                return index, queue, self.brokers.search_offset(addresses[queue.broker_name], queue, at_ms)
            except RocketMQError as error:
                logger.log(
                    logging.INFO if beside else logging.WARNING,
                    "offset of a time not found, the queue is left out %s: %s",
                    queue,
                    error,
                )
                return index, queue, None

        known = [queue for queue in queues if queue.broker_name in addresses]
        filled: tuple[dict[MessageQueue, int], ...] = tuple({} for _ in times_s)
        calls = [partial(query, (index, queue)) for index in range(len(times_s)) for queue in known]
        for index, queue, offset in run_concurrently(calls, at_most=CALLS_AT_ONCE):
            if offset is not None:
                filled[index][queue] = offset
        return filled

    def _read_snapshot(self, topic: str) -> Snapshot | None:
        view = ClusterView(self._read_options(topic), self._pool, self._clock)
        try:
            view.routes()
        except TopicNotFound as error:
            logger.warning("%s", error)
            return None
        try:
            found = view.snapshot()
        except TransportError as error:
            logger.warning("no broker of topic %s answers, its queues are left out: %s", topic, error)
            return None
        for broker_name, trouble in found.unreachable.items():
            logger.warning("broker does not answer broker=%s: %s", broker_name, trouble)
        return found

    def _query_members(self, group: str, addresses: Collection[BrokerAddress]) -> Members:
        """Return the queues of the group's members, as listed by the first broker that has the group.

        Members that do not answer are left out, and remembered as silent.
        """
        silent = 0
        for address in addresses:
            try:
                listed = self.brokers.consumer_list(address, group)
            except RocketMQError as error:
                # A broker that has just started also reports none.
                if not reports_no_members(error):
                    logger.warning("members not listed group=%s broker=%s: %s", group, address, error)
                    silent += 1
                continue
            self._listed.add(group)
            calls = [partial(self._queues_of, address, group, client_id) for client_id in set(listed)]
            reported = dict(run_concurrently(calls, at_most=CALLS_AT_ONCE))
            self._silent[group] = frozenset(one for one, queues in reported.items() if queues is None)
            return {client_id: queues for client_id, queues in reported.items() if queues is not None}
        if addresses and not silent:
            self._listed.add(group)
        return {}

    def _queues_of(self, address: BrokerAddress, group: str, client_id: str) -> tuple[str, Any]:
        try:
            return client_id, self.brokers.running_info(address, group, client_id).queues
        except RocketMQError as error:
            logger.warning("member does not answer group=%s client_id=%s: %s", group, client_id, error)
            return client_id, None

    def _read_options(self, topic: str) -> ReadOptions:
        return ReadOptions.parse({**self._options, "topic": topic})


def _milliseconds(at_s: float) -> int:
    # Not truncated: a time written with milliseconds has no exact float.
    return round(at_s * 1000)


def broker_bounds(
    topic: str,
    name_servers: Sequence[str],
    request_timeout_ms: int,
    access_options: Mapping[str, str] | None = None,
) -> dict[MessageQueue, QueueBounds]:
    """Return the current minimum and maximum offsets of ``topic``'s queues; empty if there is no such topic.

    Queues whose brokers do not answer are left out.
    """
    options = ReadOptions.parse(
        {
            "nameServers": ";".join(name_servers),
            "topic": topic,
            "requestTimeoutMs": str(request_timeout_ms),
            **(access_options or {}),
        }
    )
    pool = process_pool(ConnectionSettings.of(options))
    try:
        return dict(ClusterView(options, pool, SystemClock()).snapshot().bounds)
    except TopicNotFound:
        return {}


def members_holding(members: Members) -> Mapping[MessageQueue, str]:
    """Return for each queue the client id of the member that holds it, as the members report.

    If several members report a queue, the first one by name counts. A queue that a member reports as given up
    (``dropped``) does not count.
    """
    return {
        queue: client_id
        for client_id in sorted(members, reverse=True)
        for queue, info in members[client_id].items()
        if not info.dropped
    }
