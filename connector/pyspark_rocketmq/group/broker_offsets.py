"""Reads and writes a group's offsets at its brokers, also for ``offsetStore=broker``, and finds resets.

A broker keeps an operator's reset until the group's next pull of the queue, and returns it with the answer. A
Java consumer always has a pull waiting at the broker. Here, the plan of a micro-batch lacks queues without
new messages, so no task pulls them. Therefore the planner pulls such queues every 15 s. It does not wait for
the answers; the next plan uses them. In real time the next plan may be hours away, so a reset in an answer
ends the batch. See row F5 of ``docs/semantics.md``.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeVar

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import (
    SILENT_TIMEOUT_S,
    Cluster,
    Routes,
    SilentBrokers,
    TopicRoutes,
    at_brokers,
    at_queues,
    by_broker,
)
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.consume.not_now import sorted_out
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.errors import (
    BrokerError,
    BrokerOffsetUnavailable,
    GroupNotFound,
    NoPermission,
    OffsetNotFound,
    RocketMQError,
    TransportError,
)
from pyspark_rocketmq.group.join import offset_key
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.offsets.broker import Answers
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult
from pyspark_rocketmq.wire.subscription import expression_type

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EVERY_S: Final = 15.0
"""Pause between two checks for resets, in seconds. Java notices a reset as late as this, because its pull
waits at the broker for the same time (``brokerSuspendMaxTimeMillis``)."""

Addresses = Mapping[str, BrokerAddress]
"""Address of each broker's master, by the broker's name."""


class ReportedResets:
    """Keeps resets until they are taken: a broker reports each one once, with any pull. Thread-safe."""

    def __init__(self) -> None:
        self._resets: SimpleQueue[tuple[MessageQueue, int]] = SimpleQueue()

    def add(self, queue: MessageQueue, target: int) -> None:
        """Keep the target of an operator's reset of ``queue``; a later reset replaces it."""
        self._resets.put((queue, target))

    def take(self) -> dict[MessageQueue, int]:
        """Return and remove all resets."""
        resets: dict[MessageQueue, int] = {}
        with suppress(Empty):
            while True:
                queue, target = self._resets.get_nowait()
                resets[queue] = target
        return resets


class ResetWatch(Protocol):
    """Asks brokers in the background whether an operator has reset the group's offsets there."""

    def found(self) -> dict[MessageQueue, int]:
        """Return the target offsets of the resets that were reported since the last call, by queue."""
        ...

    def look(self, idle: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        """Ask the brokers for resets of queues without new messages, if a check is due.

        ``idle`` has the next offsets of these queues.
        """
        ...


class PullingResetWatch:
    """Implements :class:`ResetWatch` with one pull per queue. Does not wait for the answers."""

    def __init__(
        self,
        options: ReadOptions,
        pool: ChannelPool,
        clock: Clock,
        reset_is_due: Callable[[MessageQueue], None],
    ) -> None:
        """Prepare to look at queues of the group in ``options``; nothing is sent yet.

        ``reset_is_due`` gets the queue of each reset that an answer reports, once :meth:`found` returns the
        reset. It is called on a connection's thread, and must not wait.
        """
        assert options.consumer_group is not None
        self._group = options.consumer_group
        self._subscription_of = options.subscription_of
        self._clock = clock
        self._reset_is_due = reset_is_due
        self._brokers = Cluster.of(options, clock, pool=pool).brokers()
        self._reported = ReportedResets()
        self._look_at_s = clock.monotonic_s() + _EVERY_S

    def found(self) -> dict[MessageQueue, int]:
        """Return the target offsets of the resets that were reported since the last call, by queue."""
        return self._reported.take()

    def look(self, idle: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        """Send one pull for each queue of ``idle`` if 15 s have passed since the last pulls; do not wait.

        ``idle`` has the next offsets of the queues without new messages.
        """
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _EVERY_S
            for queue, next_offset in idle.items():
                self._ask(queue, next_offset, addresses[queue.broker_name])

    def _ask(self, queue: MessageQueue, next_offset: int, address: BrokerAddress) -> None:
        wanted = self._subscription_of(queue.topic)
        request = PullRequest(
            consumer_group=self._group,
            queue=queue,
            queue_offset=next_offset,
            max_msg_nums=1,
            subscription=wanted.expression,
            expression_type=expression_type(is_sql92=wanted.is_sql92),
        )

        def take_in(outcome: PullResult | RocketMQError) -> None:
            if isinstance(outcome, RocketMQError):
                logger.info("could not check for a reset group=%s %s: %s", self._group, queue, outcome)
            elif (target := outcome.reset_from(next_offset)) is not None:
                self._reported.add(queue, target)
                self._reset_is_due(queue)

        self._brokers.pull_async(address, request, take_in)


class BrokerOffsets(Protocol):
    """Next offsets of one group as stored at its brokers."""

    def read(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        """Return the offsets of ``queues``; leave out queues without one.

        Raises:
            BrokerOffsetUnavailable: If a broker did not answer or refused; no offset is returned then.
            NoPermission: If the group's offsets may not be read.
        """
        ...

    def write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        """Store the group's next offsets, even if a broker has higher ones.

        A broker that does not know the group stores nothing, which is no error.

        Raises:
            BrokerOffsetUnavailable: If a broker did not store one; others may be stored.
            NoPermission: If the group's offsets may not be written.
        """
        ...


class RemoteBrokerOffsets:
    """Implements :class:`BrokerOffsets`: one call per queue, brokers in parallel.

    Source: ``RemoteBrokerOffsetStore``.
    """

    def __init__(
        self, consumer_group: str, brokers: BrokerClient, zeros: set[MessageQueue] | None = None
    ) -> None:
        """Prepare to read and write; nothing connects yet.

        Args:
            consumer_group: The group's name, without a namespace.
            brokers: Sends the requests.
            zeros: Queues for which a broker before 5.0 is known to store 0. Such a broker also answers 0 if
                it stores nothing. So for a queue that is not in this set, :meth:`read` asks the broker for
                its list of all offsets, and adds the queue if the list has a 0 for it.
        """
        self._group = consumer_group
        self._brokers = brokers
        self._zeros = set() if zeros is None else zeros

    @classmethod
    def of(
        cls,
        options: ReadOptions,
        clock: Clock,
        *,
        pool: ChannelPool | None = None,
        zeros: set[MessageQueue] | None = None,
    ) -> RemoteBrokerOffsets:
        """Create an instance for the consumer group in ``options``; nothing connects yet.

        ``pool`` has the connections to use, or is None for new ones; for ``zeros`` see the constructor.
        """
        assert options.consumer_group is not None
        return cls(options.consumer_group, Cluster.of(options, clock, pool=pool).brokers(), zeros)

    def read(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        """Return the group's offsets of ``queues``; leave out queues without one.

        Raises:
            BrokerOffsetUnavailable: If a broker did not answer or refused; no offset is returned then.
            NoPermission: If the group's offsets may not be read.
        """

        def query(address: BrokerAddress, queue: MessageQueue) -> tuple[int, bool] | None:
            try:
                return self._brokers.find_consumer_offset(address, self._group, queue)
            except OffsetNotFound:
                return None

        found = self._each(queues, addresses, query)
        stored = {queue: each[0] for queue, each in found.items() if each is not None}
        made_up = {queue for queue, each in found.items() if each is not None and not each[1]} - self._zeros
        if not made_up:
            return stored
        listed = self._listed(made_up, addresses)
        self._zeros.update(queue for queue, offset in listed.items() if offset == 0)
        return {queue: offset for queue, offset in stored.items() if queue not in made_up} | listed

    def _listed(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        """Return the offsets of ``queues`` that brokers before 5.0 store, from their lists of all offsets.

        If a broker refuses to list its offsets, its queues get 0, and a warning is logged.
        """
        some_of = by_broker(queues)

        def list_all(address: BrokerAddress, first: MessageQueue) -> dict[MessageQueue, int]:
            some = some_of[first.broker_name]
            try:
                return self._brokers.consumer_offsets(address, self._group, some)
            except BrokerError as error:
                if error.retryable:
                    raise
                logger.warning("offsets of 0 are taken as stored, the broker does not list them: %s", error)
                return dict.fromkeys(some, 0)

        found = self._each([some[0] for some in some_of.values()], addresses, list_all)
        return {queue: offset for listed in found.values() for queue, offset in listed.items()}

    def write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        """Store the group's next offsets at the brokers, even if a broker has higher ones.

        A broker that does not know the group stores nothing, which is no error.

        Raises:
            BrokerOffsetUnavailable: If a broker did not store one; others may be stored.
            NoPermission: If the group's offsets may not be written.
        """

        def update(address: BrokerAddress, queue: MessageQueue) -> None:
            try:
                self._brokers.update_consumer_offset(address, self._group, queue, next_offsets[queue])
            except GroupNotFound:
                # A broker without the group has no offset of it, so there is none to correct.
                logger.info("offset not stored, the broker has no such group group=%s %s", self._group, queue)

        self._each(next_offsets, addresses, update)

    def _each(
        self,
        queues: Iterable[MessageQueue],
        addresses: Addresses,
        ask: Callable[[BrokerAddress, MessageQueue], T],
    ) -> dict[MessageQueue, T]:
        def asked(queue: MessageQueue) -> T:
            address = addresses[queue.broker_name]
            try:
                return ask(address, queue)
            except NoPermission:
                raise
            except RocketMQError as error:
                raise BrokerOffsetUnavailable(
                    f"Group {self._group}, {queue}: the group's offset could not be read from or written to "
                    f"broker {address}: {error} The queue waits. If the error does not pass, check that "
                    "broker."
                ) from error

        return at_queues(queues, asked)


def open_group_store(options: ReadOptions, storage: StorageOptions | None = None) -> OffsetStore:
    """Open the store of option ``offsetStore``, for the group and cluster of ``options``.

    ``storage`` replaces option ``storageSecrets``.

    Raises:
        OptionError: If the option's value cannot be used.
    """
    assert options.offset_store is not None
    if storage is None:
        storage = StorageOptions.parse(options.storage_secrets)
    return open_offset_store(options.offset_store, RemoteGroup(options), storage)


def at_each_broker(
    queues: Collection[MessageQueue], ask: Callable[[Collection[MessageQueue]], T]
) -> tuple[list[T], dict[MessageQueue, RocketMQError]]:
    """Call ``ask`` once for each broker, with that broker's queues.

    Return what the calls returned, and an error for each queue of a broker that does not answer now or
    refuses for the moment.

    Raises:
        RocketMQError: If a broker refuses for good.
    """
    some_of = by_broker(queues)

    def outcome(name: str) -> T | RocketMQError:
        try:
            return ask(some_of[name])
        except RocketMQError as error:
            return error

    answers, silent = sorted_out(at_brokers(some_of.keys(), outcome), has_worked=True)
    waiting = {queue: error for name, error in silent.items() for queue in some_of[name]}
    return list(answers.values()), waiting


class RemoteGroup:
    """Implements ``GroupAtBrokers``; connects at the first request.

    The routes of the group's topics show which brokers to call. After a failure they are looked up again.
    """

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._threads = threading.local()
        self._zeros: set[MessageQueue] = set()
        self._silent = SilentBrokers(self._clock)

    @property
    def consumer_group(self) -> str:
        """Key of the group's progress: ``GROUP``, or ``NAMESPACE%GROUP`` with a namespace."""
        return offset_key(self._options)

    def read(self, queues: Collection[MessageQueue] | None = None) -> Answers:
        """Return the group's offset of each queue, None if its broker stores none, or the broker's error.

        By default these are all queues whose broker has a master.

        Raises:
            BrokerOffsetUnavailable: If the name servers did not answer.
            NoPermission: If the group's offsets may not be read.
        """
        routes = self._routes()
        if queues is None:
            queues = [queue for queue in routes.queues if queue.broker_name in routes.masters]

        def read(offsets: RemoteBrokerOffsets, some: Collection[MessageQueue]) -> dict[MessageQueue, int]:
            return offsets.read(some, routes.masters)

        answers, failed = self._at_each_broker(queues, routes, read)
        found = {queue: offset for each in answers for queue, offset in each.items()}
        return {queue: failed.get(queue, found.get(queue)) for queue in queues}

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, RocketMQError]:
        """Store the group's next offsets at the brokers, even if a broker has higher ones.

        Return the error of each queue whose broker failed; such a broker may have stored some of the offsets.
        A broker that does not know the group stores nothing, which is no error.

        Raises:
            BrokerOffsetUnavailable: If the name servers did not answer.
            NoPermission: If the group's offsets may not be written.
        """
        if not next_offsets:
            return {}
        routes = self._routes()

        def write(offsets: RemoteBrokerOffsets, some: Collection[MessageQueue]) -> None:
            offsets.write({queue: next_offsets[queue] for queue in some}, routes.masters)

        return self._at_each_broker(next_offsets, routes, write)[1]

    def _topic_routes(self, cluster: Cluster) -> TopicRoutes:
        found: TopicRoutes | None = getattr(self._threads, "routes", None)
        if found is None:
            found = self._threads.routes = cluster.routes(self._options)
        return found

    def _routes(self) -> Routes:
        cluster = Cluster.of(self._options, self._clock)
        try:
            return self._topic_routes(cluster).look(Deadline.after(self._clock, cluster.timeout_s))
        except RocketMQError as error:
            raise BrokerOffsetUnavailable(
                f"Could not look up the brokers of group {self.consumer_group}: {error} Check the name "
                "servers."
            ) from error

    def _at_each_broker(
        self,
        queues: Collection[MessageQueue],
        routes: Routes,
        ask: Callable[[RemoteBrokerOffsets, Collection[MessageQueue]], T],
    ) -> tuple[list[T], dict[MessageQueue, RocketMQError]]:
        """Call ``ask`` with each broker's queues, as :func:`at_each_broker` does.

        A broker without a master counts as one that does not answer.
        """

        def ask_one(some: Collection[MessageQueue]) -> T:
            name = next(iter(some)).broker_name
            if name not in routes.masters:
                raise BrokerOffsetUnavailable(
                    f"The offsets of group {self.consumer_group} cannot be reached at {name}: no route names "
                    "a master there. Start the broker's master; its queues wait until then."
                )
            is_silent = name in self._silent
            at_most_s = SILENT_TIMEOUT_S if is_silent else math.inf
            brokers = Cluster.of(self._options, self._clock, at_most_s=at_most_s).brokers()
            assert self._options.consumer_group is not None
            try:
                answer = ask(RemoteBrokerOffsets(self._options.consumer_group, brokers, self._zeros), some)
            except BrokerOffsetUnavailable as error:
                if isinstance(error.__cause__, TransportError) and not is_silent:
                    self._silent.add(name)
                raise
            self._silent.discard(name)
            return answer

        answers, failed = at_each_broker(queues, ask_one)
        if failed:
            # The broker may have moved to another address.
            self._topic_routes(Cluster.of(self._options, self._clock)).invalidate()
        return answers, failed
