"""Decide which queue a send tries, when it is repeated, and which brokers it avoids.

A broker is *available* if the time for which it is avoided is over, and *reachable* unless the last attempt
at it ended as ``SendOutcome.REFUSED``. There is always a queue to send to: available brokers are preferred,
then reachable ones, then any.

Source: RocketMQ 5.3.3 ``MQFaultStrategy``, ``LatencyFaultToleranceImpl`` (without Java's detector, a thread
that probes brokers and is off by default); ``MQClientAPIImpl.sendMessageAsync``, ``onExceptionImpl``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.transport import renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline, waits
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import BrokerError, ConnectFailed, RocketMQError, TransportError
from pyspark_rocketmq.model import MessageQueue, TopicRoute
from pyspark_rocketmq.wire.requests.send import (
    DEFAULT_TOPIC_QUEUE_NUMS,
    SendResult,
    ShardingKey,
    select_by_hash,
)

logger = masking_logger(__name__)

OutcomeT = TypeVar("OutcomeT")

_LATE_S: Final = 60.0
"""Seconds after a send's time-out within which its outcome must come. If no outcome comes, a callback was
lost, which is a bug."""

_AVOIDED_MS: Final = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)
"""Pairs of a latency and how long a broker with at least that latency is avoided.

Source: ``MQFaultStrategy.latencyMax``, ``notAvailableDuration``.
"""
_LATENCY_OF_A_FAILURE_MS: Final = 10_000


def next_outcome(outcomes: SimpleQueue[OutcomeT], send_timeout_s: float) -> OutcomeT:
    """Wait for the next outcome of sends that may take ``send_timeout_s`` each, and return it.

    The wait may last 60 s longer than a send; time in which the process is suspended does not count.

    Raises:
        AssertionError: If no outcome comes in that time, although each send has exactly one.
    """
    patience_s = send_timeout_s + _LATE_S
    for timeout_s in waits(patience_s):
        with suppress(Empty):
            return outcomes.get(timeout=timeout_s)
    raise AssertionError(
        f"a send neither succeeded nor failed within {patience_s:g} s, so it is unknown whether its messages "
        "are stored. This is a bug of pyspark-rocketmq: please report it"
    )


def route_to_create(default_route: TopicRoute) -> TopicRoute:
    """Return the expected route of a topic that the first send will create.

    ``default_route`` is the route of TBW102, the topic whose settings brokers copy for new topics.

    Source: RocketMQ 5.3.3 ``MQClientInstance.updateTopicRouteInfoFromNameServer``.
    """
    queues = []
    for data in default_route.queues:
        nums = min(DEFAULT_TOPIC_QUEUE_NUMS, data.read_queue_nums)
        queues.append(replace(data, read_queue_nums=nums, write_queue_nums=nums))
    return replace(default_route, queues=tuple(queues))


def round_robin_queue(
    queues: Sequence[MessageQueue], turn: int, failed_broker: str | None = None
) -> MessageQueue:
    """Return the ``turn``-th queue (modulo their number), or the next one not on ``failed_broker``.

    If all queues are on ``failed_broker``, return the ``turn``-th one.

    Source: RocketMQ 5.3.3 ``TopicPublishInfo.selectOneMessageQueue(lastBrokerName)``.
    """
    for step in range(len(queues)):
        queue = queues[(turn + step) % len(queues)]
        if queue.broker_name != failed_broker:
            return queue
    return queues[turn % len(queues)]


def select_message_queue_by_hash(queues: Sequence[MessageQueue], sharding_key: ShardingKey) -> MessageQueue:
    """Return a sharding key's queue from a topic's queues in their order (``SelectMessageQueueByHash``)."""
    return queues[select_by_hash(sharding_key, len(queues))]


class SendOutcome(Enum):
    """Outcome of one attempt to send, which decides whether its broker counts as reachable."""

    ANSWERED = auto()
    REFUSED = auto()
    """The broker counts as not reachable: it refused (``MQBrokerException``).

    An asynchronous attempt has this outcome if there was no connection (:meth:`of_async`).
    """
    UNHEARD = auto()
    """No answer came (``RemotingException``), or the broker refused an asynchronous attempt."""

    @classmethod
    def of(cls, error: RocketMQError) -> SendOutcome:
        """Return REFUSED for a broker's error answer, UNHEARD without an answer, otherwise ANSWERED."""
        if isinstance(error, BrokerError):
            return cls.REFUSED
        return cls.UNHEARD if isinstance(error, TransportError) else cls.ANSWERED

    @classmethod
    def of_async(cls, outcome: object) -> SendOutcome:
        """Return the outcome of an asynchronous attempt.

        An error answer counts as UNHEARD, so the broker stays reachable; a failed connection as REFUSED.

        Source: ``MQClientAPIImpl.sendMessageAsync``, the arguments of its ``updateFaultItem``.
        """
        if isinstance(outcome, ConnectFailed):
            return cls.REFUSED
        return cls.UNHEARD if isinstance(outcome, (BrokerError, TransportError)) else cls.ANSWERED


def avoided_ms(latency_ms: float) -> int:
    """Return for how many milliseconds a broker is avoided after an answer that took ``latency_ms``.

    Source: ``MQFaultStrategy.computeNotAvailableDuration``.
    """
    return next((duration for least, duration in _AVOIDED_MS if latency_ms >= least), 0)


@dataclass(slots=True)
class _Broker:
    available_at_s: float = 0.0
    is_reachable: bool = True


class FaultTable:
    """Availability of a producer's brokers, from recent sends to them. Shared by any number of threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._brokers: dict[str, _Broker] = {}
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: keep the brokers' states."""
        self._lock = threading.Lock()

    def note(self, broker_name: str, latency_ms: float, outcome: SendOutcome) -> None:
        """Note the outcome of an attempt, and avoid its broker for as long as the latency demands.

        A failure counts as a latency of 10 s (``MQFaultStrategy.updateFaultItem``).
        """
        counted_ms = latency_ms if outcome is SendOutcome.ANSWERED else _LATENCY_OF_A_FAILURE_MS
        available_at_s = self._clock.monotonic_s() + avoided_ms(counted_ms) / 1000
        with self._lock:
            broker = self._brokers.setdefault(broker_name, _Broker())
            broker.available_at_s = max(broker.available_at_s, available_at_s)
            broker.is_reachable = outcome is not SendOutcome.REFUSED

    def is_available(self, broker_name: str) -> bool:
        """Return whether the broker is not avoided now; True for an unknown broker."""
        with self._lock:
            broker = self._brokers.get(broker_name)
            return broker is None or self._clock.monotonic_s() >= broker.available_at_s

    def is_reachable(self, broker_name: str) -> bool:
        """Return False if the broker refused the last attempt (``REFUSED``); True also before any attempt.

        ``REFUSED`` is an answer with an error or, if asynchronous, a connection that could not be opened.
        """
        with self._lock:
            broker = self._brokers.get(broker_name)
            return broker is None or broker.is_reachable

    def preferred(
        self, queues: Sequence[MessageQueue], failed_broker: str | None = None
    ) -> Sequence[MessageQueue]:
        """Return the queues of available brokers; if there are none, of reachable ones; if none, all queues.

        Only the last of these results includes queues of ``failed_broker``.

        Source: ``MQFaultStrategy.selectOneMessageQueue``, which returns the next one of these queues.
        """
        others = {queue.broker_name for queue in queues} - {failed_broker}
        filters: tuple[Callable[[str], bool], ...] = (self.is_available, self.is_reachable)
        for is_good in filters:
            good = set(filter(is_good, others))
            if good:
                return [queue for queue in queues if queue.broker_name in good]
        return queues


@dataclass(slots=True, kw_only=True)
class AsyncAttempts:
    """The attempts of one asynchronous send.

    An attempt without an answer is repeated, at most ``retries`` times, until the deadline, which all
    attempts share. An attempt that a broker refuses is not repeated.
    """

    send: Callable[[MessageQueue, OnSend], None]
    """Begins an attempt; calls back exactly once, on any thread, unless it raises."""
    next_queue: Callable[[MessageQueue], MessageQueue]
    """Returns the queue to try after a failure at the given queue; may block."""
    note: Callable[[MessageQueue, float, SendOutcome], None]
    """Notes the outcome of an attempt at a queue, begun at this monotonic second."""
    later: Callable[[Callable[[], None]], bool]
    """Calls a function on a thread that may block; returns False if there is no thread any more."""
    on_result: OnSend
    """Called once, with the outcome of the last attempt."""
    deadline: Deadline
    retries: int
    """Attempts left after the first."""

    def begin(self, queue: MessageQueue) -> None:
        """Begin an attempt at ``queue``; ``on_result`` gets the outcome of the last attempt.

        If this attempt cannot begin, ``RocketMQError`` is raised and ``on_result`` is not called.
        """
        begun_s = self.deadline.clock.monotonic_s()
        self.send(queue, lambda outcome: self._ended(queue, begun_s, outcome))

    def _ended(self, queue: MessageQueue, begun_s: float, outcome: SendResult | RocketMQError) -> None:
        self.note(queue, begun_s, SendOutcome.of_async(outcome))
        if isinstance(outcome, TransportError) and self.retries > 0 and not self.deadline.has_passed:
            self.retries -= 1
            failure = outcome
            if self.later(lambda: self._repeat(queue, failure)):
                return
        self.on_result(outcome)

    def _repeat(self, queue: MessageQueue, failure: RocketMQError) -> None:
        try:
            self.begin(self.next_queue(queue))
        except Exception as error:
            # A caller waits for the result: pass on the attempt's failure and not this error.
            if not isinstance(error, RocketMQError):
                logger.exception("a send could not be repeated queue=%s", queue)
            self.on_result(failure)
