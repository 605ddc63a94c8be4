"""Warns about brokers that drop messages which a concurrent listener gives back.

A group created with ``retryQueueNums=0`` (``mqadmin updateSubGroup -q 0``) has no retry topic: its broker
answers SUCCESS to a message that is sent back, but does not keep it.

Source: RocketMQ 5.3.3 ``AbstractSendMessageProcessor.consumerSendMsgBack``.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import Cluster, at_brokers
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.options.read import ReadOptions

logger = logging.getLogger(__name__)

_WITHIN_S: Final = 5.0
"""Time for all brokers together; the start of a query does not wait longer for a warning."""


def warn_of_dropped_retries(options: ReadOptions, clock: Clock) -> None:
    """Log which brokers of the topics drop the messages that the group sends back.

    Brokers that do not report the number of retry queues (proxies, missing rights, a group that is new to
    them) are skipped.
    """
    assert options.consumer_group is not None
    cluster = Cluster.of(options, clock, at_most_s=_WITHIN_S)
    try:
        masters = cluster.routes(options).look(Deadline.after(clock, _WITHIN_S)).masters
    except RocketMQError as error:
        logger.debug("could not check retry queues group=%s: %s", options.consumer_group, error)
        return
    ask = partial(_drops, cluster.brokers(), options.consumer_group)
    dropping = at_brokers(masters.keys(), lambda name: ask(masters[name]))
    names = [name for name, drops in dropping.items() if drops]
    if names:
        logger.warning(
            "messages that the listener fails on are lost: the group has no retry queues on these brokers "
            "(retryQueueNums=0), which drop messages that are sent back. Give the group one: mqadmin "
            "updateSubGroup -n NAMESRV -c CLUSTER -g %s -q 1, with the group's other settings; brokers=%s",
            options.consumer_group,
            ", ".join(names),
        )


def _drops(brokers: BrokerClient, consumer_group: str, address: str) -> bool:
    try:
        return brokers.retry_queue_nums(address, consumer_group) <= 0
    except RocketMQError as error:
        logger.debug("could not check retry queues group=%s address=%s: %s", consumer_group, address, error)
        return False
