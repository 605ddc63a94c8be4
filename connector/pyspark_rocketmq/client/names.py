"""The names of topics and groups: as users know them (bare), and as brokers know them (named)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.namespace import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Names:
    """Adds one namespace to all names that are sent, and removes it from those that are received."""

    namespace: str
    """Empty if names are not changed."""

    def named(self, resource: str) -> str:
        """Return the name by which brokers know a topic or group."""
        return with_namespace(self.namespace, resource)

    def bare(self, resource: str) -> str:
        """Return the name by which users know a topic or group."""
        return without_namespace(self.namespace, resource)

    def named_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as brokers name it."""
        return queue_with_namespace(self.namespace, queue)

    def bare_queues(self, by_queue: dict[MessageQueue, T]) -> dict[MessageQueue, T]:
        """Return values by queues as users name them."""
        return {queue_without_namespace(self.namespace, queue): value for queue, value in by_queue.items()}

    def named_pull(self, request: PullRequest) -> PullRequest:
        """Return a pull with the names of its group and topic as brokers know them."""
        if not self.namespace:
            return request
        return replace(
            request,
            consumer_group=self.named(request.consumer_group),
            queue=self.named_queue(request.queue),
        )

    def named_batch(self, batch: Batch) -> Batch:
        """Return a batch with the topics of its queue and messages as brokers know them."""
        if not self.namespace:
            return batch
        messages = [replace(message, topic=self.named(message.topic)) for message in batch.messages]
        return replace(batch, queue=self.named_queue(batch.queue), messages=messages)

    def named_settings(self, settings: SendSettings) -> SendSettings:
        """Add the namespace to the producer group; the template topic for new topics keeps its name."""
        if not self.namespace:
            return settings
        return replace(settings, producer_group=self.named(settings.producer_group))

    def named_heartbeat(self, heartbeat: HeartbeatData) -> HeartbeatData:
        """Return a heartbeat with the names of all groups and topics as brokers know them."""
        consumers = [
            replace(
                consumer,
                group_name=self.named(consumer.group_name),
                subscriptions=tuple(
                    replace(subscription, topic=self.named(subscription.topic))
                    for subscription in consumer.subscriptions
                ),
            )
            for consumer in heartbeat.consumers
        ]
        producers = tuple(map(self.named, heartbeat.producers))
        return replace(heartbeat, consumers=tuple(consumers), producers=producers)
