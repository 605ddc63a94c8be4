"""One group's offsets at the brokers of all its queues: what the offset store ``broker:`` is made on."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.client.topic_routes import Routes, TopicRoutes
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.datasource.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.datasource.group_member import progress_name
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.registry import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options import ReadOptions


def open_group_store(options: ReadOptions) -> OffsetStore:
    """The store of option ``offsetStore``, for the group and cluster of ``options``.

    Raises:
        OptionError: If it cannot be one.
    """
    assert options.offset_store is not None
    return open_offset_store(options.offset_store, RemoteGroup(options))


class RemoteGroup:
    """Implements ``GroupAtBrokers`` by the routes of the group's topics; connects to nobody before it is asked."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._threads = threading.local()

    @property
    def consumer_group(self) -> str:
        """The name its progress goes by."""
        return progress_name(self._options)

    def read(self, queues: Collection[MessageQueue] | None = None) -> Mapping[MessageQueue, int]:
        """See ``GroupAtBrokers.read``."""
        routes = self._routes()
        if queues is None:
            queues = [queue for queue in routes.queues if queue.broker_name in routes.masters]
        self._check_masters(queues, routes)
        return self._offsets().read(queues, routes.masters)

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> None:
        """See ``GroupAtBrokers.write``."""
        if not next_offsets:
            return
        routes = self._routes()
        self._check_masters(next_offsets, routes)
        self._offsets().write(next_offsets, routes.masters)

    def _routes(self) -> Routes:
        found: TopicRoutes | None = getattr(self._threads, "routes", None)
        options, timeout_s = self._options, self._options.request_timeout_ms / 1000
        if found is None:
            pool = process_pool(ConnectionSettings.of(options))
            name_server = NameServerClient(
                options.name_servers, pool, self._clock, timeout_s, namespace=options.namespace or ""
            )
            found = TopicRoutes(name_server, options.subscribed(), options.retry_topic(), self._clock)
            self._threads.routes = found
        try:
            return found.look(Deadline.after(self._clock, timeout_s))
        except RocketMQError as error:
            raise BrokerOffsetUnavailable(
                f"The brokers of group {self.consumer_group} are not known: {error} Look at the name servers."
            ) from error

    def _offsets(self) -> RemoteBrokerOffsets:
        pool = process_pool(ConnectionSettings.of(self._options))
        return RemoteBrokerOffsets.of(self._options, pool, self._clock)

    def _check_masters(
        self, queues: Collection[MessageQueue] | Mapping[MessageQueue, int], routes: Routes
    ) -> None:
        missing = sorted({queue.broker_name for queue in queues}.difference(routes.masters))
        if missing:
            raise BrokerOffsetUnavailable(
                f"The offsets of group {self.consumer_group} at {', '.join(missing)} cannot be reached: no route names "
                "a master. The queues wait; start the broker."
            )
