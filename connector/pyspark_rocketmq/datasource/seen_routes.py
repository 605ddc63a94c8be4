"""What the driver sees of the topic that tasks write to, before the first of them begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import TopicRoute
from pyspark_rocketmq.write_options import WriteOptions

logger = logging.getLogger(__name__)

SeenRoutes = Mapping[str, TopicRoute]
"""By topic."""


def seen_routes(options: WriteOptions) -> SeenRoutes:
    """The route of option ``topic`` if it can be had at once; topics of a column are looked up by the tasks.

    All tasks of a write, and those that are run again, spread sharding keys over the queues of this one look, whichever of
    the topic's brokers restarts meanwhile.
    """
    if options.topic is None:
        return {}
    clock = SystemClock()
    timeout_s = options.request_timeout_ms / 1000
    try:
        pool = process_pool(ConnectionSettings.of(options))
        names = NameServerClient(
            options.name_servers, pool, clock, timeout_s, namespace=options.namespace or ""
        )
        return {options.topic: names.route(options.topic, Deadline.after(clock, timeout_s))}
    except RocketMQError as error:
        # The tasks look for it longer, and from where they run.
        logger.warning(
            "topic not seen by the driver, its tasks will look for it topic=%s: %s", options.topic, error
        )
        return {}
