"""Which brokers a producer avoids for a while: those that were slow or failed. Pure but for its lock; the clock is given.

A broker is *available* when the time for which it is avoided is over, and *reachable* unless its last answer was a refusal.
Neither ever leaves a producer without a queue: available ones are preferred, then reachable ones, then any.

Source: RocketMQ 5.3.3 ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``. Java's detector, a thread that probes brokers and
is off by default, is not here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pyspark_rocketmq.client.after_fork import renew_in_children
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import BrokerError, ConnectFailed, RocketMQError, TransportError
from pyspark_rocketmq.model import MessageQueue

_AVOIDED_MS: Final = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)
"""From this latency on, for so long (``MQFaultStrategy.latencyMax``, ``notAvailableDuration``)."""
_LATENCY_OF_A_FAILURE_MS: Final = 10_000


class SendOutcome(Enum):
    """What an attempt came to, as far as it tells of the broker."""

    ANSWERED = auto()
    REFUSED = auto()
    """The broker said no (``MQBrokerException``); it counts as not reachable."""
    UNHEARD = auto()
    """No answer came (``RemotingException``)."""

    @classmethod
    def of(cls, error: RocketMQError) -> SendOutcome:
        """That of a failed attempt; what was wrong on this side tells nothing of a broker."""
        if isinstance(error, BrokerError):
            return cls.REFUSED
        return cls.UNHEARD if isinstance(error, TransportError) else cls.ANSWERED

    @classmethod
    def of_async(cls, outcome: object) -> SendOutcome:
        """That of an attempt nobody waited for, where a refusal says that the broker can be reached.

        Source: ``MQClientAPIImpl.sendMessageAsync``, the arguments of its ``updateFaultItem``.
        """
        if isinstance(outcome, ConnectFailed):
            return cls.REFUSED
        return cls.UNHEARD if isinstance(outcome, (BrokerError, TransportError)) else cls.ANSWERED


def avoided_ms(latency_ms: float) -> int:
    """How long a broker is avoided after an answer that took ``latency_ms``.

    Source: ``MQFaultStrategy.computeNotAvailableDuration``.
    """
    return next((duration for least, duration in _AVOIDED_MS if latency_ms >= least), 0)


@dataclass(slots=True)
class _Broker:
    available_at_s: float = 0.0
    is_reachable: bool = True


class FaultTable:
    """What a producer knows of its brokers. Shared by any number of threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._brokers: dict[str, _Broker] = {}
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: what is known stays."""
        self._lock = threading.Lock()

    def note(self, broker_name: str, latency_ms: float, outcome: SendOutcome) -> None:
        """Take in how an attempt went (``MQFaultStrategy.updateFaultItem``)."""
        counted_ms = latency_ms if outcome is SendOutcome.ANSWERED else _LATENCY_OF_A_FAILURE_MS
        available_at_s = self._clock.monotonic_s() + avoided_ms(counted_ms) / 1000
        with self._lock:
            broker = self._brokers.setdefault(broker_name, _Broker())
            broker.available_at_s = max(broker.available_at_s, available_at_s)
            broker.is_reachable = outcome is not SendOutcome.REFUSED

    def is_available(self, broker_name: str) -> bool:
        """Whether it is not avoided now; True of a broker nothing is known of."""
        with self._lock:
            broker = self._brokers.get(broker_name)
            return broker is None or self._clock.monotonic_s() >= broker.available_at_s

    def is_reachable(self, broker_name: str) -> bool:
        """Whether its last answer was no refusal; True of a broker nothing is known of."""
        with self._lock:
            broker = self._brokers.get(broker_name)
            return broker is None or broker.is_reachable

    def preferred(
        self, queues: Sequence[MessageQueue], failed_broker: str | None = None
    ) -> Sequence[MessageQueue]:
        """Those of brokers that are available, else reachable, and did not just fail; all if there is none.

        Source: ``MQFaultStrategy.selectOneMessageQueue``, which takes the next one of these.
        """
        others = {queue.broker_name for queue in queues} - {failed_broker}
        filters: tuple[Callable[[str], bool], ...] = (self.is_available, self.is_reachable)
        for is_good in filters:
            good = set(filter(is_good, others))
            if good:
                return [queue for queue in queues if queue.broker_name in good]
        return queues
