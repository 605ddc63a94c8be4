"""When the next message of each queue was stored, asked of the brokers within a bound, and not twice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.stored_time import stored_at_s
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options import ReadOptions

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 1.5
"""Of one request: figures are late rather than kept waiting for a broker that is away."""
_CALLS_AT_ONCE: Final = 16


class StoredTimes:
    """Asks with the access that ``options`` give. For one thread."""

    def __init__(self, options: ReadOptions) -> None:
        namespace = options.namespace or ""
        pool = process_pool(ConnectionSettings.of(options))
        self._clock = SystemClock()
        self._name_server = NameServerClient(
            options.name_servers, pool, self._clock, _TIMEOUT_S, namespace=namespace
        )
        self._brokers = BrokerClient(pool, self._clock, _TIMEOUT_S, namespace=namespace)
        self._known: dict[MessageQueue, tuple[int, float]] = {}
        self._silent: set[str] = set()

    def ask(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Wall-clock seconds at which the messages at ``positions`` were stored; queues that do not tell are left out."""
        self._known = {
            queue: known for queue, known in self._known.items() if positions.get(queue) == known[0]
        }
        self._silent = set()
        unknown = {queue: at for queue, at in positions.items() if queue not in self._known}
        if unknown:
            with ThreadPoolExecutor(_CALLS_AT_ONCE, "rocketmq-stored-times") as threads:
                times = list(threads.map(self._ask_one, unknown.items()))
            for (queue, at), stored in zip(unknown.items(), times, strict=True):
                if stored is not None:
                    self._known[queue] = at, stored
        return {queue: stored for queue, (_, stored) in self._known.items()}

    def _ask_one(self, position: tuple[MessageQueue, int]) -> float | None:
        queue, queue_offset = position
        # A broker that did not answer is not asked for its other queues: a bound for each broker, not for each queue.
        if queue.broker_name in self._silent:
            return None
        try:
            route = self._name_server.route(queue.topic, Deadline.after(self._clock, _TIMEOUT_S))
            address = route.address_of(queue.broker_name)
            return None if address is None else stored_at_s(self._brokers, address, queue, queue_offset)
        except RocketMQError as error:
            self._silent.add(queue.broker_name)
            logger.warning("age of the next message not known %s: %s", queue, error)
            return None
