"""Look up single messages, which show whether a queue still has the log that was consumed."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import Cluster, at_brokers, by_broker, outcomes_at_queues
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S, Rests
from pyspark_rocketmq.consume.positions import first_stored_at
from pyspark_rocketmq.errors import (
    BrokerOffsetUnavailable,
    RemoteProtocolError,
    RocketMQError,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, PulledBody, QueueBounds
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.columnar.decode import offsets_of
from pyspark_rocketmq.wire.messages import decode_stored_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus

if TYPE_CHECKING:
    from pyspark_rocketmq.source.cluster_view import Snapshot

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """A broker's answer about one offset of a queue."""

    bounds: QueueBounds
    """The queue's bounds at this moment."""
    message: LastMessage | None
    """Place and time of the message at the offset; None if there is none or if it cannot be decoded."""
    reset_to: int | None = None
    """Target of a reset that the broker reported in place of the message."""

    @property
    def is_reset(self) -> bool:
        """Whether the broker reported a reset in place of the message."""
        return self.reset_to is not None

    @property
    def available(self) -> str:
        """The queue's offsets in words: the first one, and the end (exclusive)."""
        return f"offsets {self.bounds.extent}"


class MessageLookup:
    """Look up single messages by pulls in the name of the group, which has the right to pull.

    A broker reports an operator's reset only once, in the answer to any pull of the group. So a reset that a
    look-up has met is kept until :meth:`resets` returns it, even if something fails meanwhile.
    """

    def __init__(self, options: ReadOptions, pool: ChannelPool, clock: Clock) -> None:
        self._group = options.consumer_group or PLAIN_SOURCE_GROUP
        cluster = Cluster.of(options, clock, pool=pool)
        self._brokers = cluster.brokers()
        self._name_server = cluster.name_server()
        self._timeout_s = cluster.timeout_s
        self._pool = pool
        # Imported here, because tasks use only ``found_at`` and need not load the group's modules.
        from pyspark_rocketmq.group.broker_offsets import ReportedResets

        self._resets = ReportedResets()
        self._clock = clock
        self._rests: Rests[MessageQueue] = Rests()
        self._no_masters: dict[tuple[str, BrokerAddress, bool], tuple[BrokerOffsetUnavailable, float]] = {}
        """Brokers that routes name as masters but that are none now, each with its error and until when it is
        not asked again; the key also has whether name servers must list it."""

    def resets(self) -> dict[MessageQueue, int]:
        """Return, by queue, the target offsets of resets that look-ups have met since the last call."""
        return self._resets.take()

    def connections_to(self, address: BrokerAddress) -> int:
        """Return how many connections to a broker were opened so far; a restarted broker has another one."""
        return self._pool.opened(address)

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found | RocketMQError]:
        """Return what is stored at one offset of each queue, or the error of the look-up.

        Brokers are queried in parallel. After a broker refuses a queue's pull, the queue is not asked about
        for 3 s, and the result for the queue is that refusal.

        Args:
            places: The offset to look at, by queue.
            addresses: Addresses of the brokers to ask, by broker name.
        """
        now_s = self._clock.monotonic_s()
        resting = self._rests.among(places, now_s)
        outcomes = outcomes_at_queues(
            [queue for queue in places if queue not in resting],
            lambda queue: self._at(queue, places[queue], addresses[queue.broker_name]),
        )
        self._rests.note(outcomes, self._clock.monotonic_s())
        return {**resting, **outcomes}

    def end_now(self, queue: MessageQueue, address: BrokerAddress) -> int:
        """Return the end of a queue (exclusive), as its broker reports it when it is asked for only that.

        The end in the answer to a pull may be lower: in tiered storage it is the end of the tiered files,
        which lag behind the queue.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.

        Source: RocketMQ 5.3.3 ``MessageStoreFetcherImpl.getMessageAsync``.
        """
        return self._brokers.max_offset(address, queue)

    def with_end_from(self, found: Found, queue: MessageQueue, wanted: int, address: BrokerAddress) -> Found:
        """Return ``found``; if its end is below ``wanted``, with the end that the broker reports now.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """
        if found.bounds.max_offset >= wanted:
            return found
        end = max(found.bounds.max_offset, self.end_now(queue, address))
        return found._replace(bounds=found.bounds._replace(max_offset=end))

    def message_at(
        self, queue: MessageQueue, offset: int, snapshot: Snapshot, bounds: QueueBounds
    ) -> LastMessage | None:
        """Return place and time of the message at an offset within ``bounds``.

        Return None if the message is missing or cannot be decoded.

        Raises:
            RocketMQError: If the broker does not answer or refuses, or if the offset is no longer within the
                queue's bounds or the queue's end has gone back since ``bounds`` were read.
        """
        seen = self._seen_at(queue, offset, snapshot)
        if seen.is_reset:
            # A reset is reported only once: the next answer is the message.
            seen = self._seen_at(queue, offset, snapshot)
        seen = self.with_end_from(seen, queue, bounds.max_offset, snapshot.addresses[queue.broker_name])
        if seen.is_reset or seen.bounds.min_offset > offset or seen.bounds.max_offset < bounds.max_offset:
            raise BrokerOffsetUnavailable(
                f"{queue}: the queue's offsets changed while they were looked up, to {seen.available}. The "
                "queue waits for the next plan."
            )
        return seen.message

    def _seen_at(self, queue: MessageQueue, offset: int, snapshot: Snapshot) -> Found:
        [seen] = self.look({queue: offset}, snapshot.addresses).values()
        if isinstance(seen, RocketMQError):
            raise seen
        return seen

    def stored_after(
        self, queue: MessageQueue, address: BrokerAddress, timestamp: int, bounds: QueueBounds
    ) -> int:
        """Return the offset of the first message stored later than ``timestamp`` (ms), or the queue's end.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """

        def stored_ms(offset: int) -> int | None:
            seen = self._at(queue, offset, address)
            if seen.is_reset:
                # A reset is reported only once: the next answer is the message.
                seen = self._at(queue, offset, address)
            return None if seen.message is None else seen.message.store_timestamp

        found = self._brokers.search_offset(address, queue, timestamp + 1)
        return first_stored_at(timestamp + 1, found, bounds, stored_ms)

    def at_slaves(
        self, positions: Mapping[MessageQueue, int], snapshot: Snapshot
    ) -> dict[MessageQueue, RocketMQError]:
        """Return the queues whose broker is no master now although the route names it as one, with errors.

        Messages that such a broker lacks are not lost: the master may have them. A route names a slave while
        its master is down (name server with ``supportActingMaster``), or for a moment after a master has
        become a slave. A broker that does not answer is counted as a slave; one that refuses to show its role
        is not.

        A broker that has restarted serves before it has its role, and may show that of a master. In
        controller mode its queues may end too early until then. The last known route leads to it, although
        name servers do not list it. So if a position is beyond its queue's end, they are asked. A broker that
        they do not list is no master then, and no broker is while they do not answer.

        A broker that is no master is not asked again for 3 s, and its error stays the same object in this
        time. Source: ``RouteInfoManager.pickupTopicRouteData``, ``ReplicasManager.startBasicService``,
        ``CommitLog.getConfirmOffset``.

        Args:
            positions: Queues, each with an offset that is not within the snapshot's bounds.
            snapshot: The bounds and addresses at the brokers.
        """
        early = [queue for queue, at in positions.items() if at > snapshot.bounds[queue].max_offset]
        others = positions.keys() - early
        troubles = {
            **self.without_master(others, snapshot.addresses, is_to_be_listed=False),
            **self.without_master(early, snapshot.addresses, is_to_be_listed=True),
        }
        # The snapshot may be from the time before the broker had its role.
        ends = outcomes_at_queues(
            [queue for queue in early if queue not in troubles],
            lambda queue: self.end_now(queue, snapshot.addresses[queue.broker_name]),
        )
        for queue, end in ends.items():
            if isinstance(end, RocketMQError):
                troubles[queue] = end
            elif end >= positions[queue]:
                troubles[queue] = BrokerOffsetUnavailable(
                    f"{queue}: its broker has offsets up to {end} again. The queue waits for the next plan."
                )
        return troubles

    def require_master(self, queue: MessageQueue, addresses: Mapping[str, BrokerAddress]) -> None:
        """Raise an error if the queue's broker is no master now, or is not listed as one by name servers.

        :meth:`at_slaves` describes both.
        """
        for trouble in self.without_master([queue], addresses, is_to_be_listed=True).values():
            raise trouble

    def without_master(
        self,
        queues: Iterable[MessageQueue],
        addresses: Mapping[str, BrokerAddress],
        *,
        is_to_be_listed: bool,
    ) -> dict[MessageQueue, RocketMQError]:
        """Return the queues whose broker is no master now, with errors.

        With ``is_to_be_listed`` a broker is no master either if name servers do not list it as one.
        """
        of_broker = by_broker(queues)

        def trouble_at(name: str) -> RocketMQError | None:
            return self._trouble(name, addresses[name], of_broker[name][0].topic if is_to_be_listed else None)

        troubles = at_brokers(of_broker.keys(), trouble_at)
        return {
            queue: trouble
            for name, trouble in troubles.items()
            if trouble is not None
            for queue in of_broker[name]
        }

    def _trouble(self, broker_name: str, address: BrokerAddress, topic: str | None) -> RocketMQError | None:
        """Return the error if the broker is no master; with a topic, also if its route does not list it."""
        broker = broker_name, address, topic is not None
        known, until_s = self._no_masters.get(broker, (None, -math.inf))
        if self._clock.monotonic_s() < until_s:
            return known
        try:
            reason = self._why_slave(broker_name, address)
        except RocketMQError as error:
            return error
        if reason is None and topic is not None:
            reason = self._why_not_listed(broker_name, address, topic)
        if reason is None:
            return None
        trouble = known if known is not None and str(known) == reason else BrokerOffsetUnavailable(reason)
        self._no_masters[broker] = trouble, self._clock.monotonic_s() + REFUSED_PAUSE_S
        return trouble

    def _why_slave(self, broker_name: str, address: BrokerAddress) -> str | None:
        if not self._brokers.is_slave(address, broker_name):
            return None
        return (
            f"Broker {broker_name}: {address} is listed as its master, but is a slave or has no role yet. "
            "Queues whose messages this broker lacks wait until the master is back: start the master."
        )

    def _why_not_listed(self, broker_name: str, address: BrokerAddress, topic: str) -> str | None:
        try:
            deadline = Deadline.after(self._clock, self._timeout_s)
            masters = self._name_server.masters_now(topic, broker_name, deadline)
        except TopicNotFound:
            found = f"they have no topic {topic}"
        except TransportError:
            found = "none answers"
        except RocketMQError as error:
            found = str(error).rstrip(".")
        else:
            if address in masters:
                return None
            found = f"they list {', '.join(map(str, sorted(masters))) or 'none'}"
        return (
            f"Broker {broker_name}: name servers do not list {address} as its master now ({found}). If it "
            "has restarted, it may not have its role yet. Queues whose messages it lacks wait until it is "
            "listed: check that it reaches the name servers, and its controllers if it has any."
        )

    def _at(self, queue: MessageQueue, offset: int, address: BrokerAddress) -> Found:
        found = found_at(self._brokers, self._group, queue, offset, address)
        if found.reset_to is not None:
            self._resets.add(queue, found.reset_to)
        return found


def found_at(
    brokers: BrokerClient, consumer_group: str, queue: MessageQueue, offset: int, address: BrokerAddress
) -> Found:
    """Ask a broker by one pull which message it has at an offset, and which bounds the queue has.

    If an operator has reset the queue, the broker may report the reset instead of the message. A reset is
    reported only once, so a caller whose group consumes the queue must follow ``reset_to``.

    Raises:
        RocketMQError: If the broker does not answer, or refuses.
    """
    request = PullRequest(consumer_group=consumer_group, queue=queue, queue_offset=offset, max_msg_nums=1)
    return found_in(brokers.pull(address, request), queue, offset)


def stored_ms_at(
    brokers: BrokerClient, consumer_group: str, queue: MessageQueue, offset: int, address: BrokerAddress
) -> int | None:
    """Return when the message at an offset was stored (ms since the epoch).

    Return None if the message is missing or cannot be decoded, or if the broker reports an operator's reset
    instead; this report is then lost.

    Raises:
        RocketMQError: If the broker does not answer, or refuses.
    """
    message = found_at(brokers, consumer_group, queue, offset, address).message
    return None if message is None else message.store_timestamp


def found_in(pulled: PullResult, queue: MessageQueue, offset: int) -> Found:
    """Return what the answer to a pull from ``offset`` shows about that offset."""
    bounds = QueueBounds(pulled.first_from(offset), pulled.max_offset)
    if pulled.status is PullStatus.FOUND:
        return Found(bounds, _message_at(queue, offset, pulled.body))
    return Found(bounds, None, pulled.reset_from(offset))


def _message_at(queue: MessageQueue, offset: int, data: PulledBody) -> LastMessage | None:
    """Return place and time of the message at an offset; None if ``data`` lacks it or cannot be decoded."""
    try:
        # Bodies are not decompressed: they may be damaged.
        messages = decode_stored_messages(data)
    except RemoteProtocolError as error:
        logger.warning(
            "cannot check whether offsets begin again, this message cannot be decoded %s queueOffset=%d: %s",
            queue,
            offset,
            error,
        )
        return None
    for message in messages:
        if offset in offsets_of(message):
            return LastMessage(offset, message.store_timestamp, message.commit_log_offset)
    return None
