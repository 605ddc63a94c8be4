"""What lies in a simulated broker's queues."""

from __future__ import annotations

from broker_sim.broker import Broker
from broker_sim.message_store import PullLimits
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.messages import decode_messages


def stored_messages(broker: Broker, topic: str) -> list[MessageExt]:
    """All messages of the topic, queue by queue."""
    config = broker.state.topics.find(topic)
    limits = PullLimits(messages=1000, total_bytes=1 << 24)
    store = broker.state.store
    return [
        message
        for queue_id in range(config.queue_nums if config else 0)
        for message in decode_messages(
            store.get(topic, queue_id, 0, 1000, limits=limits, wanted=None).body, broker.name
        )
    ]
