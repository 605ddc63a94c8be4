"""The ends of a topic's queues, as brokers return them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.model import MessageQueue


def queue_ends(name_servers: str, broker_addresses: Mapping[str, str], topic: str) -> dict[MessageQueue, int]:
    """Return the next offset of each queue of a topic."""
    with Producer(name_servers, "queue-ends") as producer:
        queues = producer.queues(topic)
    with ChannelPool(SystemClock()) as pool:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=60.0)
        return {queue: client.max_offset(broker_addresses[queue.broker_name], queue) for queue in queues}
