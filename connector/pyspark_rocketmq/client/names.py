"""Names of topics and groups: as users write them (*bare*), and with a namespace for brokers (*named*)."""

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
    """Namespace to add and to remove; empty if names are not changed."""

    def named(self, resource: str) -> str:
        """Return a topic's or group's name with the namespace, as brokers have it."""
        return with_namespace(self.namespace, resource)

    def bare(self, resource: str) -> str:
        """Return a topic's or group's name without the namespace, as users write it."""
        return without_namespace(self.namespace, resource)

    def named_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return the queue with the namespace added to its topic."""
        return queue_with_namespace(self.namespace, queue)

    def bare_queues(self, by_queue: dict[MessageQueue, T]) -> dict[MessageQueue, T]:
        """Return the same values with the namespace removed from the topics of their queues."""
        return {queue_without_namespace(self.namespace, queue): value for queue, value in by_queue.items()}

    def named_pull(self, request: PullRequest) -> PullRequest:
        """Return the pull with the namespace added to its group and topic."""
        if not self.namespace:
            return request
        return replace(
            request,
            consumer_group=self.named(request.consumer_group),
            queue=self.named_queue(request.queue),
        )

    def named_batch(self, batch: Batch) -> Batch:
        """Return the batch with the namespace added to the topics of its queue and messages."""
        if not self.namespace:
            return batch
        messages = [replace(message, topic=self.named(message.topic)) for message in batch.messages]
        return replace(batch, queue=self.named_queue(batch.queue), messages=messages)

    def named_settings(self, settings: SendSettings) -> SendSettings:
        """Return the settings with the namespace added to the producer group, not to ``default_topic``."""
        if not self.namespace:
            return settings
        return replace(settings, producer_group=self.named(settings.producer_group))

    def named_heartbeat(self, heartbeat: HeartbeatData) -> HeartbeatData:
        """Return the heartbeat with the namespace added to all its groups and topics."""
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
